"""A run in the shape of the one that this project comes from: many samples, interrupted twice, and finished.

    python benchmarks/long_run.py FOLDER                       # on a GPU: 10,000 samples of 17.3 M tokens, 35 GB
    python benchmarks/long_run.py FOLDER --device cpu --small  # anywhere, in a few minutes

Random token ids and a Llama of hidden size 256 with random weights; three layers and the final state. `aerie extract`
is run as a user runs it. Ctrl-C comes when a third and two thirds of the samples are there; the third run finishes and
compacts. Then every sample is checked.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from extraction_models import draw_lengths, make_model
from record import RESULTS, ROOT, write_result

from storage.checks import check_store
from storage.store import open_store
from tasks.engine.models import read_model

# Of the raw bytes, what loose objects and packs take together, as a run plans it, and a little more.
TWICE_SHARE = 1.6
INTERRUPTIONS = (1 / 3, 2 / 3)
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def main(arguments: list[str] | None = None) -> None:
    """Run it and write what came out."""
    given = _parse(arguments)
    given.folder.mkdir(parents=True)
    try:
        figures = run_job(given)
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)
    print(json.dumps(figures, indent=1), flush=True)
    write_result("long-run", figures, given.results)
    if figures["faults"]:
        sys.exit(f"faults: {figures['faults']}")


def run_job(given: argparse.Namespace) -> dict[str, Any]:
    """Prepare model and data, run the job until it is finished, and account for every sample."""
    model = make_model("llama-256", given.folder / "model", small=given.small)
    if not given.small:
        add_tokenizer(model)
    data = write_data(given.folder / "data.parquet", given.samples, given.mean_tokens, read_model(model).vocab_size)
    store = given.folder / "store"
    flags = {"model": model, "data": data, "store": store, "devices": "cpu" if given.device == "cpu" else "auto"}
    if given.batch_tokens:
        flags["max-batch-tokens"] = given.batch_tokens
    if given.trace:
        flags["trace"] = given.trace
    fits_twice = shutil.disk_usage(given.folder).free > TWICE_SHARE * sample_bytes(model, data)
    if not fits_twice:  # a pack is written before what it is made of goes
        flags["compact"] = "false"
    began = time.monotonic()
    runs = [run_once(flags, given.samples * share) for share in (*INTERRUPTIONS, math.inf)]
    seconds = time.monotonic() - began
    digest = open_store(store).spec_digest
    began = time.monotonic()
    findings = len(check_store(store, digest).findings)
    found = account(runs, seconds, given.samples, findings)
    return found | {"check_seconds": time.monotonic() - began, "compacted": fits_twice}


def sample_bytes(model: Path, data: Path) -> int:
    """Return the raw bytes of all states: four of bfloat16 a token."""
    num_tokens = sum(len(ids) for ids in pq.read_table(data)["input_ids"])
    return num_tokens * 4 * 2 * read_model(model).hidden_size


def add_tokenizer(model: Path) -> None:
    """Give a model a tokenizer that is never asked for anything: the data has token ids."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words = {
        f"word{number}": number for number in range(read_model(model).vocab_size)
    }  # rows with other ids are rejected
    backend = Tokenizer(models.WordLevel(words, unk_token="word0"))  # noqa: S106 - no password
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="word0")  # noqa: S106
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model)


def write_data(path: Path, samples: int, mean_tokens: int, vocab_size: int) -> Path:
    """Write samples of random ids, of 64 tokens to nearly twice the mean."""
    lengths = draw_lengths(samples * mean_tokens, 64, 2 * mean_tokens - 64)
    ids = np.random.default_rng(1).integers(5, vocab_size, sum(lengths), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    pq.write_table(pa.table({"input_ids": rows}), path, row_group_size=500)
    return path


def run_once(flags: dict[str, Any], stop_at: float) -> dict[str, Any]:
    """Run `aerie extract`; press Ctrl-C once so many samples are stored. Returns its report, and the whole time."""
    store = Path(flags["store"])
    before = set(store.glob("runs/*"))
    given = [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "flows.cli", "extract", *given]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    began = time.monotonic()
    aerie = subprocess.Popen(command, start_new_session=True, env=environment)  # noqa: S603 - our own command
    while aerie.poll() is None:
        time.sleep(0.1)
        if sum(1 for _ in store.glob("objects/*/*/*")) >= stop_at:
            os.killpg(aerie.pid, signal.SIGINT)
            break
    code = aerie.wait()
    seconds = time.monotonic() - began
    [folder] = set(store.glob("runs/*")) - before
    report = json.loads((folder / "report.json").read_text())
    return {"seconds_in_all": seconds, "exit_code": code, **report}


def account(runs: list[dict[str, Any]], seconds: float, samples: int, findings: int) -> dict[str, Any]:
    """Return the figures, and whatever is not as it must be."""
    last = runs[-1]
    done = [run["rows"]["done"] for run in runs]
    # Committed a moment before the end of an interrupted run, and not told: the next one finds it.
    untold = last["rows"]["reused"] - sum(done[:-1])
    faults = [
        name
        for name, is_fault in {
            "the last run did not complete": last["status"] != "completed",
            "rows are unfinished": last["rows"]["unfinished"] != 0,
            "samples were set aside": any(run["rows"]["quarantined"] for run in runs),
            "samples were done twice": sum(done) + untold != samples or untold < 0,
            "an interruption was none": [run["status"] for run in runs[:-1]] != ["interrupted"] * (len(runs) - 1),
            "the check found something": findings != 0,
        }.items()
        if is_fault
    ]
    extract = sum(run["seconds"].get("extract", 0.0) for run in runs)
    computed = sum(run["tokens_computed"] for run in runs)
    return {
        "faults": faults,
        "samples": samples,
        "tokens": last["tokens"],
        "raw_bytes": last["bytes"]["raw"],
        "stored_bytes": last["bytes"]["stored"],
        "ratio": last["bytes"]["ratio"],
        "seconds": seconds,
        "extract_seconds": extract,
        "tokens_per_second": last["tokens"] / seconds,
        "extract_tokens_per_second": computed / extract,
        "extract_raw_gb_per_second": computed * last["bytes"]["raw"] / last["tokens"] / extract / 1e9,
        "done": done,
        "untold": untold,
        "findings": findings,
        "runs": [
            {key: run[key] for key in ("status", "exit_code", "seconds_in_all", "seconds", "rows", "engines")}
            for run in runs
        ],
    }


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where all is made, and removed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--small", action="store_true", help="a few samples and the tests' tiny model")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--trace", type=Path)
    given = parser.parse_args(arguments)
    given.samples = given.samples or (60 if given.small else 10_000)
    given.mean_tokens = 100 if given.small else 1730
    given.batch_tokens = given.batch_tokens or (200 if given.small else None)
    return given


if __name__ == "__main__":
    main()
