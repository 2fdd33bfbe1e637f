"""One reader in one process that may take little memory and time: what `fuzz` starts, and tests.

python benchmarks/fuzz_child.py READER FOLDER [--first 0] [--count 1000] [--hypothesis]

Each fault is a line of JSON on standard output; the last line says how many inputs there were.
"""

import argparse
import json
import mmap
import os
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others reserve a gigabyte at once
os.environ["MALLOC_ARENA_MAX"] = "2"

from fuzz_base import Target
from fuzz_limits import INPUT_SECONDS, MEMORY_BYTES, PROGRESS
from fuzz_targets import READERS, make_target


class TooLongError(BaseException):
    """An input took longer than it may; nothing that expects errors takes it for one of them."""


def main() -> int:
    """Read inputs and say what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--hypothesis", action="store_true", help="inputs are drawn and shrunk by hypothesis")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    target = make_target(arguments.reader, arguments.folder)
    for valid in target.valid():
        target.read(valid)  # whatever is wrong with it is a fault of ours
    base = limit_memory()
    signal.signal(signal.SIGALRM, _interrupt)
    run = _draw if arguments.hypothesis else _count
    outcomes = run(target, arguments.first, arguments.count, arguments.folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"outcomes": outcomes, "peak_bytes": peak - base}), flush=True)
    return 0


def limit_memory() -> int:
    """Have the kernel refuse more address space than this process has and `MEMORY_BYTES`; return its peak by now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _count(target: Target, first: int, count: int, folder: Path) -> dict[str, int]:
    """Read the inputs of some numbers, each made by a die of that seed."""
    outcomes: Counter[str] = Counter()
    with _progress(folder / PROGRESS) as progress:
        for number in range(first, first + count):
            progress[:8] = number.to_bytes(8, "little")
            outcome, fault = try_input(target, Random(number))  # noqa: S311 - inputs are to be made again
            outcomes[outcome] += 1
            if fault is not None:
                print(json.dumps({"number": number, **fault}), flush=True)
    return dict(outcomes)


def _draw(target: Target, first: int, count: int, folder: Path) -> dict[str, int]:  # noqa: ARG001 - as `_count`
    """Read inputs that hypothesis draws; one that is a fault is shrunk, and told."""
    from hypothesis import HealthCheck, Phase, given, settings  # noqa: PLC0415 - a benchmark needs none
    from hypothesis import strategies as st  # noqa: PLC0415

    outcomes: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def check(dice: Random) -> None:
        outcome, fault = try_input(target, dice)
        outcomes[outcome] += 1
        if fault is not None:
            faults[:] = [fault]
            raise AssertionError(fault["error"])

    try:
        check()
    except AssertionError:
        print(json.dumps({"number": -1, **faults[0]}), flush=True)
    return dict(outcomes)


def try_input(target: Target, dice: Random) -> tuple[str, dict[str, Any] | None]:
    """Make an input and read it.

    Returns:
        `read`, the name of one of our errors, or `fault`; and what was wrong.
    """
    made = target.make(dice)
    signal.alarm(INPUT_SECONDS)
    try:
        target.read(made)
    except target.errors as error:
        message = str(error)
        if "\n" in message or not message:
            return "fault", _describe(error, target.show(made))
        return type(error).__name__, None
    except (Exception, TooLongError) as error:  # noqa: BLE001 - that is what is looked for
        return "fault", _describe(error, target.show(made))
    finally:
        signal.alarm(0)
    return "read", None


def _describe(error: BaseException, shown: str) -> dict[str, Any]:
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in frame.filename]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return {"error": f"{type(error).__name__}: {str(error)[:200]}", "where": where, "input": shown}


def _interrupt(*_: object) -> None:
    raise TooLongError(f"over {INPUT_SECONDS} s")


@contextmanager
def _progress(file: Path) -> Iterator[mmap.mmap]:
    file.write_bytes(bytes(8))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as shared:
        yield shared


if __name__ == "__main__":
    sys.exit(main())
