"""What Prefect costs: a run of the flow with a real server, beside the same steps without Prefect.

    python benchmarks/overhead.py FOLDER [--units 4] [--unit-seconds 30] [--rounds 2]

A tiny Llama on the CPU. Units of work are as long as asked, by a run that measures the speed first. Two figures:

- *share*: of the wall time of the flow, that in which none of our own code ran: neither a step, nor preparing, nor the
  report. It is what Prefect adds where it makes the run wait, and other programs on the machine hardly change it.
- the wall time of both ways, in turns, and the seconds of the CPU of this process and of the server: what Prefect does
  beside the run. On a machine with few cores they come out of the same cores.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
from models import ensure_model
from prefect_servers import running_server
from record import RESULTS, write_result

from flows import crash_detection, pipeline, steps
from flows.accounting import Ledger
from flows.job import prepare_job
from flows.pipeline import extract_hidden_states
from flows.progress import LineProgress
from flows.run import Run
from flows.settings import Settings
from storage.store import add_spec, init_store
from tasks.compaction import compact_samples
from tasks.engine_pool import EnginePool
from tasks.extraction import _extract, extract_unit
from tasks.planning import cut_units, make_plan, require_space
from tasks.tokenization import ensure_tokens
from tasks.validation import validate_samples

WORDS = ("the", "sky", "is", "blue", "because", "air", "scatters", "light", "more", "where", "waves", "are", "short")
PROBE_TOKENS = 40_000
CHAT_TOKENS = 217
LONGEST_GAPS = 6
# What a run waits for, by module: tasks by the functions that they wrap, and what the flow calls by itself.
_TASKS = ("tokenize", "extract", "validate", "compact")
_CALLS = {
    pipeline: ("prepare_job", "init_store"),
    steps: ("summarize_tokens", "make_plan", "require_space", "add_spec"),
}


class Clock:
    """The time in which at least one of the functions that are watched was running."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self.calls: Counter[str] = Counter()

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, watched."""

        @wraps(function)
        def watched(*arguments: Any, **given: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*arguments, **given)
            finally:
                self.spans.append((began, time.monotonic()))
                self.calls[function.__name__] += 1

        return watched

    def gaps(self, began: float, ended: float) -> list[tuple[float, float]]:
        """Return when nothing was running between two times, as beginnings after the first and lengths."""
        found, reached = [], began
        for start, end in [*sorted(self.spans), (ended, ended)]:
            if start > reached:
                found.append((reached - began, start - reached))
            reached = max(reached, end)
        return found


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the figures."""
    given = _parse(arguments)
    if given.server_pid is not None:
        print(json.dumps(measure_rounds(given)))
        return
    given.folder.mkdir(parents=True)
    try:
        figures = measure(given)
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)
    print(json.dumps(figures, indent=1))
    write_result("overhead", figures, given.results)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run both ways in turns, in a process that knows a server from its beginning as a worker's runs do."""
    with running_server(_made(given.folder / "server")) as server:
        assert server.process is not None  # noqa: S101 - it runs
        numbers = {"units": given.units, "unit-seconds": given.unit_seconds, "rounds": given.rounds}
        numbers |= {"server-pid": server.process.pid}
        numbers |= {"unit-tokens": given.unit_tokens} if given.unit_tokens else {}
        flags = [part for name, number in numbers.items() for part in (f"--{name}", str(number))]
        environment = os.environ | server.environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, __file__, str(given.folder), *flags]
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - ours
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def measure_rounds(given: argparse.Namespace) -> dict[str, Any]:
    """Run both ways in turns."""
    model, _ = ensure_model("llama")
    unit_tokens = given.unit_tokens or int(_measure_rate(given.folder, model) * given.unit_seconds)
    data = write_chats(given.folder / "chats.jsonl", unit_tokens * given.units)
    rounds = []
    for number in range(given.rounds):
        shape = {"model": model, "data": data, "unit_tokens": unit_tokens + 2 * CHAT_TOKENS}
        plain = run_plain(_settings(given.folder / f"plain-{number}", **shape))
        flow = run_flow(_settings(given.folder / f"flow-{number}", **shape), psutil.Process(given.server_pid))
        rounds.append({"plain": plain, "flow": flow})
        print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    return {
        "unit_seconds": given.unit_seconds,
        "unit_tokens": unit_tokens,
        "share": max(one["flow"]["share"] for one in rounds),
        "flow_of_plain": [round(one["flow"]["seconds"] / one["plain"]["seconds"], 4) for one in rounds],
        "rounds": rounds,
    }


def run_flow(settings: Settings, server: psutil.Process) -> dict[str, Any]:
    """Run the flow against the server; `share` is that of its wall time in which none of our code ran."""
    clock = Clock()
    with _watched(clock), crash_detection.watched():
        before = _cpu_seconds(server)
        began, own = time.monotonic(), time.process_time()
        report = extract_hidden_states(settings).report
        seconds, own = time.monotonic() - began, time.process_time() - own
        of_the_server = _cpu_seconds(server) - before
    gaps = clock.gaps(began, began + seconds)
    return _figures(seconds, own, report.rows["done"], report.engines[0].busy_seconds) | {
        "units": clock.calls[_extract.__name__],
        "share": round(sum(length for _, length in gaps) / seconds, 5),
        "longest_gaps": [
            {"at": round(at, 2), "seconds": round(length, 3)}
            for at, length in sorted(gaps, key=lambda gap: -gap[1])[:LONGEST_GAPS]
        ],
        "server_cpu_seconds": round(of_the_server, 2),
    }


def run_plain(settings: Settings) -> dict[str, Any]:
    """Do the same steps by plain calls, with as many units at a time."""
    began, own = time.monotonic(), time.process_time()
    job = prepare_job(settings)
    init_store(job.store)
    ledger = Ledger(LineProgress(lambda _: None))
    tokens = ensure_tokens(job.store, **job.tokenization)
    plan = ledger.plan = make_plan(job.store, job.spec, tokens)
    require_space(plan, job.store, compact=True)
    add_spec(job.store, job.spec)
    units = cut_units(plan, unit_tokens=settings.unit_tokens, num_groups=len(job.groups))
    pool = EnginePool(job.start_message(plan, tokens.digest), job.groups, Path(str(settings.store)) / "logs")
    with pool as engines, ThreadPoolExecutor(3 * len(job.groups)) as threads:
        list(threads.map(lambda unit: extract_unit(unit, engines, ledger.on_event), units))
    validate_samples(job.store, job.spec_digest, hashes=sorted(ledger.done), set_aside=True)
    compact_samples(job.store, job.spec_digest)
    seconds, own = time.monotonic() - began, time.process_time() - own
    return _figures(seconds, own, len(ledger.done), engines.counts[0].busy_seconds)


def write_chats(path: Path, tokens: int) -> Path:
    """Write different chats of about `CHAT_TOKENS` each, which have about so many tokens in all."""
    with path.open("w") as file:
        for number in range(max(2, tokens // CHAT_TOKENS)):
            answer = " ".join(WORDS[(number + at) % len(WORDS)] for at in range(170))
            messages = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def _figures(seconds: float, cpu_seconds: float, samples: Any, busy_seconds: float) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 2),
        "engine_seconds": round(busy_seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "samples": samples,
    }


def _measure_rate(folder: Path, model: Path) -> float:
    """Return tokens a second of an engine that is warm."""
    data = write_chats(folder / "probe.jsonl", PROBE_TOKENS)
    figures = run_plain(_settings(folder / "probe", model=model, data=data, unit_tokens=PROBE_TOKENS))
    return float(figures["samples"]) * CHAT_TOKENS / float(figures["engine_seconds"])


def _settings(store: Path, **given: Any) -> Settings:
    return Settings(store=store, devices="cpu", **given)


@contextmanager
def _watched(clock: Clock) -> Iterator[None]:
    """Have our own functions watched, those that Prefect's tasks wrap as well."""
    with ExitStack() as undo:
        for module, names in _CALLS.items():
            for name in names:
                undo.enter_context(_replaced(module, name, clock))
        for name in _TASKS:
            undo.enter_context(_replaced(getattr(steps, name), "fn", clock))
        undo.enter_context(_replaced(Run, "close", clock))
        yield


@contextmanager
def _replaced(owner: Any, name: str, clock: Clock) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, clock.watch(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where all is made, and removed")
    parser.add_argument("--units", type=int, default=4)
    parser.add_argument("--unit-seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--unit-tokens", type=int, help="instead of seconds, and of measuring the speed")
    parser.add_argument("--server-pid", type=int, help=argparse.SUPPRESS)  # of a server that the environment names
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
