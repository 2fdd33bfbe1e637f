"""Measurements in child processes, several at a time, each row handed on as soon as it is there."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from record import ROOT

Row = dict[str, Any]
SCRIPT = ROOT / "benchmarks" / "measurement.py"
_POLL_SECONDS = 0.2
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)
_LONGEST_MESSAGE = 300
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_DISABLE_TQDM": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # as in an engine process (tasks/engine_process.py)
    # Models that several GPUs share start where other children fill one GPU more than the next.
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
}


@dataclass(frozen=True)
class Job:
    """What a child is told.

    Attributes:
        model: a name of `models.NAMES`.
        variants: names of `variants.VARIANTS`, in the order in which to measure them.
        rows: file to which rows are appended, one JSON object a line.
        scratch: folder where a first process leaves states for the second.
        parent_pid: whom not to outlive.
        small: a few tokens only, to see that it runs.
        second: only compare with the states that the first process left.
    """

    model: str
    variants: tuple[str, ...]
    rows: Path
    scratch: Path
    parent_pid: int
    small: bool = False
    second: bool = False

    def to_json(self) -> str:
        """Write this as one argument of a command line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        paths = {name: Path(fields[name]) for name in ("rows", "scratch")}
        return cls(**fields | paths | {"variants": tuple(fields["variants"])})


def measure_all(jobs: Sequence[Job], parallel: int, deadline: float, on_row: Callable[[Row], None]) -> bool:
    """Run jobs, `parallel` at a time, until all is measured or `deadline` (of `time.monotonic`) is reached.

    A child that dies costs the variant it was at, which becomes a row with `failure`; the rest goes to another child.

    Returns:
        Whether all was measured in time.
    """
    waiting, running = list(jobs), list[_Child]()
    threads = max(1, len(os.sched_getaffinity(0)) // parallel)
    try:
        while waiting or running:
            if time.monotonic() > deadline:
                return False
            while waiting and len(running) < parallel:
                running.append(_Child.start(waiting.pop(0), threads))
            time.sleep(_POLL_SECONDS)
            for child in list(running):
                ended = child.process.poll() is not None  # asked first, so that no last row is missed
                for row in child.read_rows():
                    on_row(row)
                if ended:
                    running.remove(child)
                    waiting[:0] = _rest(child, on_row)
        return True
    finally:
        for child in running:
            child.process.kill()
            child.process.wait()


@dataclass
class _Child:
    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    log_from: int  # earlier children of the same job wrote what is before
    done: set[str] = field(default_factory=set)
    offset: int = 0

    @classmethod
    def start(cls, job: Job, threads: int) -> "_Child":
        job.scratch.mkdir(parents=True, exist_ok=True)
        job.rows.unlink(missing_ok=True)  # of an earlier run in the same folder
        log = job.scratch / f"{job.model}.log"
        with log.open("ab") as output:
            log_from = output.tell()
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                [sys.executable, str(SCRIPT), job.to_json()],
                env=_ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)} | os.environ | {"PYTHONPATH": _python_path()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return cls(job, process, log, log_from)

    def read_rows(self) -> Iterator[Row]:
        if not self.job.rows.exists():
            return
        with self.job.rows.open("rb") as rows:
            rows.seek(self.offset)
            for line in rows:
                if line.endswith(b"\n"):  # it may be writing the last one
                    self.offset += len(line)
                    row = json.loads(line)
                    self.done.add(row["variant"])
                    yield row


def _python_path() -> str:
    """Return where a child finds the makers of models, which are in `tests`, after what was there already."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "tests")])


def _rest(child: _Child, on_row: Callable[[Row], None]) -> list[Job]:
    """Return what an ended child left undone, but for the variant that it died of, which is reported."""
    left = [name for name in child.job.variants if name not in child.done]
    if not left:
        return []
    on_row({"model": child.job.model, "variant": left[0], "failure": _cause(child), "second": child.job.second})
    return [replace(child.job, variants=tuple(left[1:]))] if left[1:] else []


def _cause(child: _Child) -> str:
    errors = _ERROR.findall(child.log.read_bytes()[child.log_from :].decode(errors="replace"))
    return errors[-1][:_LONGEST_MESSAGE] if errors else f"the process ended with status {child.process.returncode}"
