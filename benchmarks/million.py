"""A store of a million samples: opening it, what it lacks of a million, and the memory that takes.

    nice -n 5 python benchmarks/million.py FOLDER [--samples 1000000]

FOLDER gets about 3 GB, which stay there for the next time. Each figure is of a process of its own, the import of the
code not counted; cold is without the store's files in the page cache.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from record import median_of, write_result

from storage import StateSpec, Tokens, TokensSpec, init_store, open_store, open_tokens
from storage.codecs import TOKENS_PER_CHUNK, encode_chunk, join_checksum
from storage.digests import sample_hash
from storage.files import commit, staging
from storage.layout import object_path, packs_folder
from storage.pack_writer import PackWriter, Source
from storage.packs import SHARD_BYTES
from storage.state_arrays import Run
from storage.store import add_spec
from storage.tokens import TokensWriter
from tasks.planning import make_plan

SPEC = StateSpec("0" * 64, "LlamaForCausalLM", 8, 8, (2, "final"), "bfloat16", "bfloat16", None, "random", "1")
TOKENS_SPEC = TokensSpec(("1" * 64,), "2" * 64, "3" * 64)
NUM_TOKENS = 12
NUM_PACKS = 20
# Of the samples that the tokens artifact names, one in so many is not in the store.
MISSING_EACH = 10
# A million folders take 4 GB and minutes to make; to list them is linear.
LOOSE_SHARE = 10


def main() -> None:
    """Make the store if it is not there, measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=list(MEASURES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    packed, loose = (arguments.folder / f"{kind}-{arguments.samples}" for kind in ("packed", "loose"))
    if arguments.measure:
        print(json.dumps(measure(MEASURES[arguments.measure], loose if "loose" in arguments.measure else packed)))
        return
    prepare(packed, loose, arguments.samples)
    figures: dict[str, Any] = {"samples": arguments.samples, "packs": NUM_PACKS}
    figures["loose_samples"] = arguments.samples // LOOSE_SHARE
    for name in MEASURES:
        for state in ("warm", "cold") if name != "open_loose" else ("warm",):
            figures[f"{name}_{state}"] = figure = repeat(name, state, packed, arguments.rounds)
            print(name, state, figure, flush=True)
        write_result("million", figures)


def repeat(name: str, state: str, store: Path, rounds: int) -> dict[str, Any]:
    """Measure in processes of their own; return seconds, and the most memory that any took."""
    command = [sys.executable, *sys.argv, "--measure", name]
    peaks = []

    def once() -> float:
        if state == "cold":
            drop_cache(store)
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
        found = json.loads(done.stdout)
        peaks.append(found["peak_bytes"])
        return float(found["seconds"])

    return {"seconds": median_of(once, rounds), "peak_bytes": max(peaks)}


def measure(work: Callable[[Path], object], store: Path) -> dict[str, float]:
    """Time a piece of work in this process, which has done nothing else."""
    started = time.perf_counter()
    work(store)
    seconds = time.perf_counter() - started
    # Not getrusage: that counts what the process was before it became Python.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {"seconds": seconds, "peak_bytes": int(peak) * 1024}


def open_only(store: Path) -> None:
    """Open the store."""
    open_store(store)


def plan(store: Path) -> None:
    """Ask what the store lacks of what the tokens artifact names, as a run does."""
    found = make_plan(store, SPEC, read_tokens(store))
    expect(len(found.missing), found.rows)


def ask_by_names(store: Path) -> None:
    """Open the store, and ask what it lacks of a list of names."""
    names = read_tokens(store).sample_hashes
    expect(len(open_store(store).missing(names)), len(names))


def read_one(store: Path) -> None:
    """Open the store and read one sample."""
    found = open_store(store)
    found[next(iter(found))].hidden_states()


MEASURES: dict[str, Callable[[Path], None]] = {
    "open": open_only,
    "read_one": read_one,
    "plan": plan,
    "missing": ask_by_names,
    "open_loose": open_only,
}


def read_tokens(store: Path) -> Tokens:
    """Open the tokens artifact."""
    tokens = open_tokens(store, TOKENS_SPEC.digest())
    if tokens is None:
        raise FileNotFoundError(f"{store} has no tokens artifact; remove it to have it made anew")
    return tokens


def expect(missing: int, rows: int) -> None:
    """Check the answer."""
    if missing != -(-rows // MISSING_EACH):
        raise ValueError(f"{missing} of {rows} are missing, it should be one in {MISSING_EACH}")


def prepare(packed: Path, loose: Path, count: int) -> None:
    """Make what is not there: packs of samples that differ in their ids alone; folders named as loose objects are."""
    if not packed.exists():
        init_store(packed)
        add_spec(packed, SPEC)
        ids = make_ids(count)
        write_tokens(packed, ids)
        kept = np.flatnonzero(np.arange(count) % MISSING_EACH > 0)
        for number in range(NUM_PACKS):
            write_pack(packed, ids[kept[number::NUM_PACKS]])
    if not loose.exists():
        init_store(loose)
        digest = add_spec(loose, SPEC)
        for row in make_ids(count // LOOSE_SHARE):
            object_path(loose, digest, sample_hash(row)).mkdir(parents=True)
    os.sync()


def make_ids(count: int) -> npt.NDArray[np.int32]:
    """Return token ids, [count, NUM_TOKENS]."""
    return np.random.default_rng(0).integers(0, 50_000, (count, NUM_TOKENS), dtype=np.int32)


def write_tokens(store: Path, ids: npt.NDArray[np.int32]) -> None:
    """Write the tokens artifact."""
    mask = np.ones(NUM_TOKENS, np.uint8)
    with TokensWriter(store, TOKENS_SPEC) as writer:
        for row, values in enumerate(ids):
            writer.append(values, mask, row)
        writer.commit()


def write_pack(store: Path, ids: npt.NDArray[np.int32]) -> None:
    """Write one pack of samples with the same states."""
    states = np.zeros((TOKENS_PER_CHUNK, SPEC.hidden_size), "<u2")
    states[:NUM_TOKENS] = 0x3F80
    encoded = encode_chunk(states)
    checksum = 0
    for _ in range(SPEC.num_captured):
        checksum = join_checksum(encoded, checksum)
    shard_rows = SHARD_BYTES // SPEC.bytes_per_token // TOKENS_PER_CHUNK * TOKENS_PER_CHUNK
    with (
        tempfile.TemporaryFile(dir=store) as source,
        staging(store) as staged,
        PackWriter(staged, SPEC, shard_rows) as writer,
    ):
        source.write(encoded * SPEC.num_captured)
        source.flush()
        run = Run(source.fileno(), 0, np.array([len(encoded)] * SPEC.num_captured, "u8"))
        for name, row in sorted((sample_hash(row), index) for index, row in enumerate(ids)):
            writer.add(Source(name, ids[row], checksum, iter([run]), None))
        commit(staged, packs_folder(store, SPEC.digest()) / writer.close(), store)
    print(f"a pack of {len(ids):,} samples", file=sys.stderr, flush=True)


def drop_cache(folder: Path) -> None:
    """Have the next reader take all files from the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


if __name__ == "__main__":
    main()
