"""Extraction beside the forward alone and beside what others' scripts do; random weights, made on the spot.

    python benchmarks/extract.py FOLDER                      # on a GPU: Llama-8B and 1B shapes and a mixture of experts
    python benchmarks/extract.py FOLDER --device cpu --small # anywhere, in seconds
    python benchmarks/extract.py FOLDER --device cpu --model smollm2

All ways run one after the other in one process, with one engine, round after round, the first of which does not count.
What each leaves behind is removed and brought to disk before the next. FOLDER is where the store lies: its disk is
measured, too.
"""

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contenders import UNITS, Contenders
from disks import measure_commits, measure_disk
from extraction_models import NAMES, Subject, draw_lengths, make_model, make_subject
from extraction_table import format_table
from gauges import Reading
from models import SMOLLM2
from record import RESULTS, write_result

from storage.checks import check_store
from tasks import messages
from tasks.trace import begin_trace

# On a GPU: enough that what is left to write at the end is little beside it. The others run a part of the samples.
TOKENS = {
    "llama-8b": 393_216,
    "llama-1b": 2_621_440,
    "deepseek-moe": 524_288,
    "llama-256": 4_194_304,
    SMOLLM2: 1_048_576,
}
OTHERS_TOKENS = 32_768


def main(arguments: list[str] | None = None) -> None:
    """Measure each model, print its table, write the figures after each."""
    given = _parse(arguments)
    began = time.monotonic()
    figures: dict[str, Any] = {}
    for name in given.model.split(","):
        left = given.budget_seconds - (time.monotonic() - began)
        if left < given.least_seconds:
            print(f"no time is left for {name}", file=sys.stderr)
            break
        folder = given.folder / name
        try:
            figures[name] = measure_model(name, folder, given, time.monotonic() + left)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(format_table(name, figures[name]), flush=True)
        write_result("extraction", figures, given.results)


def measure_model(name: str, folder: Path, given: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Make a model, run all ways over it in turns until the rounds or the time are over, check the store."""
    began = time.monotonic()
    folder.mkdir(parents=True)
    model = make_model(name, folder / "model", small=given.small)
    made = time.monotonic()
    settings: dict[str, Any] = {"max_batch_tokens": given.batch_tokens}
    if given.encode_threads:
        settings["encode_threads"] = given.encode_threads
    if given.trace:
        begin_trace(given.trace.with_suffix(f".{name}.json"))
        settings["trace"] = str(given.trace.with_suffix(f".{name}.json"))
    num_tokens = given.tokens or TOKENS[name]
    lengths = draw_lengths(num_tokens, given.shortest, given.longest)
    subject = make_subject(model, folder / "store", lengths, given.device, settings)
    loaded = time.monotonic()
    contenders = Contenders(
        subject, folder / "saved", given.share or num_tokens // OTHERS_TOKENS, reference=not given.no_transformers
    )
    try:
        rounds = run_rounds(subject, contenders, given.rounds, deadline)
        found = {
            "seconds": {"make": made - began, "load": loaded - made},
            "samples": len(lengths),
            "tokens": sum(lengths),
            "bytes_per_token": subject.store.spec.bytes_per_token,
            "layers": list(subject.store.spec.layers),
            "padding_share": contenders.padding_share(),
            "batch_tokens": given.batch_tokens,
            "encode_threads": subject.start.encode_threads,
            "pinned_bytes": subject.worker.landing.ring.capacity_bytes if given.device == "cuda" else 0,
            "ways": {name: _join(rows) for name, rows in rounds.items()},
            "commits_per_second": measure_commits(folder / "commits", subject.start.encode_threads),
            "checked": check(subject, contenders, len(lengths)),
        }
    finally:
        contenders.close()
        subject.close()
    found["ratios"] = _ratios(rounds, "tokens_per_second")
    found["cpu_ratios"] = _ratios(rounds, "tokens_per_cpu_second")
    return found


def run_rounds(
    subject: Subject, contenders: Contenders, rounds: int, deadline: float
) -> dict[str, list[dict[str, float]]]:
    """Run all ways and the disk, round after round, every other one backwards; at least one counts."""
    ways = contenders.ways()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*ways, "disk")}
    longest = 0.0
    for number in range(rounds + 1):
        began = time.monotonic()
        if number > 1 and began + longest > deadline:
            break
        for name, run in list(ways.items())[:: -1 if number % 2 else 1]:
            contenders.clear()
            encoded, moment = subject.worker.writer.cpu_seconds, time.monotonic()
            reading = subject.engine.read(run)
            if number:
                row = describe(subject, contenders, name, reading)
                if name == "ours":
                    row |= describe_ours(subject, subject.worker.writer.cpu_seconds - encoded, moment, reading)
                found[name].append(row)
        contenders.clear()
        if number:
            raw = contenders.num_tokens("ours") * subject.store.spec.bytes_per_token
            found["disk"].append(measure_disk(contenders.folder, min(4 << 30, raw)))
            longest = max(longest, time.monotonic() - began)
        print(f"  round {number} took {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return found


def describe(subject: Subject, contenders: Contenders, name: str, reading: Reading) -> dict[str, float]:
    """Return the figures of one way in one round."""
    num_tokens = contenders.num_tokens(name)
    raw = num_tokens * subject.store.spec.bytes_per_token
    stored = contenders.stored_bytes(name)
    return {
        "tokens_per_second": num_tokens / reading.seconds,
        "tokens_per_cpu_second": num_tokens / reading.cpu_seconds,
        "raw_gb_per_second": raw / reading.seconds / 1e9,
        "stored_gb_per_second": stored / reading.seconds / 1e9,
        "stored_bytes": stored,
        "ratio": raw / stored if stored else 0.0,
        "idle_share": reading.idle_share,
        "cores": reading.cores,
        "peak_memory_bytes": reading.peak_memory_bytes,
        "seconds": reading.seconds,
    }


def describe_ours(subject: Subject, encoded: float, began: float, reading: Reading) -> dict[str, float]:
    """Return what else is known of our way."""
    while sum(isinstance(message, messages.UnitDone) for _, message in subject.said) < UNITS:
        time.sleep(0.001)  # until all that was said has been heard
    said = list(subject.said)
    commits = [at for at, message in said if isinstance(message, messages.Committed)]
    waited = sum(message.wait_seconds for _, message in said if isinstance(message, messages.UnitDone))
    return {
        "encode_cores": encoded / reading.seconds,
        "waited_seconds": waited,
        "first_commit_seconds": min(commits, default=began) - began,
        "in_flight_bytes": subject.worker.landing.ring.peak_bytes,
    }


def check(subject: Subject, contenders: Contenders, count: int) -> dict[str, Any]:
    """Run our way once more, and check every sample that it left."""
    contenders.clear()
    contenders.run_ours()
    began = time.monotonic()
    report = check_store(subject.store.path, subject.store.spec_digest)
    subject.store.refresh()
    return {
        "samples": len(subject.store),
        "missing": count - len(subject.store),
        "findings": len(report.findings),
        "seconds": time.monotonic() - began,
    }


def _join(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return median, extremes and number of rounds of each figure."""
    return {
        key: {
            "median": statistics.median(row[key] for row in rows),
            "min": min(row[key] for row in rows),
            "max": max(row[key] for row in rows),
            "rounds": len(rows),
        }
        for key in rows[0]
    }


def _ratios(rounds: Mapping[str, list[dict[str, float]]], key: str) -> dict[str, float]:
    """Return each way's speed where the forward's is 1: the median of the rounds' ratios."""
    return {
        name: statistics.median(row[key] / forward[key] for row, forward in zip(rows, rounds["forward"], strict=True))
        for name, rows in rounds.items()
        if name != "disk"
    }


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where models and stores are made, and removed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="llama-8b,llama-1b,deepseek-moe", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--small", action="store_true", help="tiny models and a few samples")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, help="of all samples together, about")
    parser.add_argument("--longest", type=int, help="tokens of the longest sample")
    parser.add_argument("--share", type=int, help="the others run every so manieth sample")
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--encode-threads", type=int)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="no round begins after this")
    parser.add_argument("--least-seconds", type=float, default=0.0, help="what a model needs at least to be begun")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--trace", type=Path, help="file for a timeline; the model's name is put in")
    given = parser.parse_args(arguments)
    sizes = (None, 4096, None, 16_384) if given.device == "cuda" else (3072, 512, 1, 2048)
    if given.small:
        sizes = (160, 40, 2, 64)
    for name, size in zip(("tokens", "longest", "share", "batch_tokens"), sizes, strict=True):
        setattr(given, name, getattr(given, name) or size)
    given.shortest = min(64, given.longest)
    if unknown := set(given.model.split(",")) - set(NAMES):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return given


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # as in an engine process; torch reads it when it is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_WAIT_POLICY": "PASSIVE"})  # noqa: S606
    main()
