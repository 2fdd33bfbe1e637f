"""Hostile inputs to every reader of what others have made: does each give a result or one of our errors, in bounds?

python benchmarks/fuzz.py [--count 100000] [--readers jsonl parquet ...] [--folder FOLDER] [--results FOLDER]

An input is made from its number: `fuzz_child.py READER FOLDER --first NUMBER --count 1` reads it again. A reader runs
in a process that may take 1 GiB beyond what it has after reading valid inputs, and 10 seconds an input; one that dies,
or does not answer its alarm within a minute, is a fault too, and the next process goes on behind the input.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz_limits import INPUT_SECONDS, MEMORY_BYTES, PROGRESS
from fuzz_targets import READERS
from record import RESULTS, write_result

SILENT_SECONDS = 60
POLL_SECONDS = 0.5
# Of faults that look alike, so many are kept.
KEPT = 3
CHILD = Path(__file__).with_name("fuzz_child.py")


def main() -> int:
    """Run all readers, write the figures after each, and tell whether there was no fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="inputs a reader (%(default)s)")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS), metavar="READER")
    parser.add_argument("--folder", type=Path, help="where files are made; memory is best (a temporary folder)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures go (%(default)s)")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {
        "limits": {"memory_bytes": MEMORY_BYTES, "seconds_an_input": INPUT_SECONDS},
        "faults": 0,
        "readers": {},
    }
    with tempfile.TemporaryDirectory(prefix="aerie-fuzz-", dir=arguments.folder) as folder:
        for reader in arguments.readers:
            found = fuzz(reader, arguments.count, Path(folder) / reader)
            figures["readers"][reader] = found
            figures["faults"] += found["outcomes"].get("fault", 0)
            write_result("fuzz", figures, arguments.results)
            print(reader, {name: value for name, value in found.items() if name != "examples"}, flush=True)
            for fault in found["examples"]:
                print(" ", fault, flush=True)
    return 1 if figures["faults"] else 0


def fuzz(reader: str, count: int, folder: Path) -> dict[str, Any]:
    """Give a reader inputs 0 to `count`; return what became of them, and some of the faults."""
    started, first, peak = time.monotonic(), 0, 0
    outcomes: Counter[str] = Counter()
    examples: dict[str, list[dict[str, Any]]] = {}
    while first < count:
        lines, died = run_child(reader, folder, first, count - first)
        for line in lines:
            if "outcomes" in line:
                outcomes.update(line["outcomes"])
                peak = max(peak, line["peak_bytes"])
            else:
                kept = examples.setdefault(line["error"][:60] + line["where"], [])
                kept += [line] if len(kept) < KEPT else []
        if died is None:
            break
        number = int.from_bytes((folder / PROGRESS).read_bytes()[:8], "little")
        outcomes["fault"] += 1
        outcomes["before a death"] += number - first
        examples[f"{died} {number}"] = [{"number": number, "error": died, "where": "", "input": ""}]
        first = number + 1
    seconds = time.monotonic() - started
    return {
        "inputs": outcomes.total(),
        "outcomes": dict(outcomes.most_common()),
        "peak_bytes": peak,
        "inputs_a_second": round(outcomes.total() / seconds),
        "examples": [fault for kept in examples.values() for fault in kept],
    }


def run_child(reader: str, folder: Path, first: int, count: int) -> tuple[list[dict[str, Any]], str | None]:
    """Run inputs in a process of their own; return what it said, and how it died, if it did.

    Raises:
        RuntimeError: it could not read what is valid.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    said = folder.with_suffix(".said")
    command = [sys.executable, str(CHILD), reader, str(folder), "--first", str(first), "--count", str(count)]
    with said.open("wb") as file:
        child = subprocess.Popen(command, stdout=file)  # noqa: S603 - our own script
        is_silent = _watch(child, folder / PROGRESS)
    lines = [json.loads(line) for line in said.read_bytes().splitlines()]
    if child.returncode == 0:
        return lines, None
    if child.returncode > 0:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
    return lines, f"silent for {SILENT_SECONDS} s" if is_silent else f"died of signal {-child.returncode}"


def _watch(child: subprocess.Popen[bytes], progress: Path) -> bool:
    """Wait for a process to end; end one that stays at one input for too long, and tell so."""
    last, since = b"", time.monotonic()
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        now = progress.read_bytes()[:8] if progress.exists() else b""
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > SILENT_SECONDS:
            child.kill()
            child.wait()
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
