"""How fast a store is read: beside numcodecs alone, sample by sample at random, and beside a file a sample.

    nice -n 5 python benchmarks/reading.py FOLDER

FOLDER, on the disk to be measured, gets 8 GB, which stay there for the next time. What is compared takes turns. Of a
figure the median over the rounds is told, of a ratio the median of the rounds' ratios, both by the clock on the wall
and by the seconds that the process had on the CPU, which a busy machine disturbs less.
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt
from file_formats import FILES, drop_cache, folder_bytes, make_readers, write_files
from record import write_result
from synthetic_stores import make_spec, make_store
from turns import speed_ratio, take_turns

from storage import Store, open_store
from storage.codecs import BLOSC, CHECKSUM_BYTES, TOKENS_PER_CHUNK

HIDDEN_SIZE, TINY_HIDDEN_SIZE = 4096, 8
NUM_SAMPLES, NUM_TINY_SAMPLES = 48, 100_000
ROUNDS = 9
CORES = len(os.sched_getaffinity(0))


def main() -> None:
    """Make what is not there yet, measure, and write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    folders = prepare(arguments.folder)
    store, tiny = open_store(folders["packed"]), open_store(folders["tiny"])
    figures: dict[str, Any] = {}
    for threads in sorted({1, CORES}):
        figures[f"decode_threads_{threads}"] = measure_decoding(
            store, arguments.folder / "chunks", threads, arguments.rounds
        )
        write_result("reading", figures)
    figures["random_samples"] = measure_random_samples(tiny, arguments.rounds)
    for threads in sorted({1, CORES}):
        for state in ("warm", "cold"):
            figures[f"formats_{state}_threads_{threads}"] = measure_formats(folders, threads, state, arguments.rounds)
            print(write_result("reading", figures))


def prepare(folder: Path) -> dict[str, Path]:
    """Make the stores and files that are not there; return the folder of each."""
    folders = {name: folder / name for name in ("packed", "loose", "tiny", *FILES)}
    lengths = np.random.default_rng(0).integers(100, 2000, NUM_SAMPLES).tolist()
    tiny_lengths = np.random.default_rng(0).integers(20, 250, NUM_TINY_SAMPLES).tolist()
    for name in ("packed", "loose"):
        if not folders[name].exists():
            make_store(folders[name], make_spec(HIDDEN_SIZE), lengths, packed=name == "packed")
    if not folders["tiny"].exists():
        make_store(folders["tiny"], make_spec(TINY_HIDDEN_SIZE), tiny_lengths, packed=True)
    if not folders[FILES[0]].exists():
        write_files(folder, open_store(folders["packed"]))
    return folders


def measure_decoding(store: Store, file: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Read all samples through the store, from the page cache, beside numcodecs alone over the same chunks.

    All but `fresh` write into memory that the process has used before: the pages of fresh memory cost as much as the
    decoding. numcodecs has the chunks in memory; or reads them from `file`, without a look at their checksums; or
    decodes into one buffer again and again, which throws the result away but stays in the processor's cache.
    """
    chunks = encoded_chunks(store)
    row_bytes = store.spec.hidden_size * store.spec.stored_dtype.itemsize
    block = np.ones((len(chunks), TOKENS_PER_CHUNK * row_bytes), np.uint8)
    out = block.reshape(-1).view(ml_dtypes.bfloat16).reshape(store.spec.num_captured, -1, store.spec.hidden_size)
    one_buffer = np.lib.stride_tricks.as_strided(block, strides=(0, 1))
    names = list(store)
    with ChunkFile(file, chunks) as stored:
        work = {
            "store": partial(store.read_hidden_states, names, threads=threads, out=out),
            "numcodecs": partial(decode, chunks, block, threads),
            "numcodecs_from_file": partial(decode, stored, block, threads),
            "numcodecs_one_buffer": partial(decode, chunks, one_buffer, threads),
            "store_fresh": partial(store.read_hidden_states, names, threads=threads),
            "numcodecs_fresh": lambda: decode(chunks, np.empty(block.shape, np.uint8), threads),
        }
        times = take_turns(work, rounds)
    gigabytes = block.nbytes / 1e9
    return {
        "decoded_gigabytes": gigabytes,
        "encoded_gigabytes": sum(map(len, chunks)) / 1e9,
        "gigabytes": {name: found.rate(gigabytes) for name, found in times.items()},
        "store_to": {
            name: speed_ratio(times["store_fresh" if name.endswith("fresh") else "store"], times[name])
            for name in work
            if name.startswith("numcodecs")
        },
    }


def encoded_chunks(store: Store) -> list[memoryview]:
    """Return the encoded inner chunks of all samples, without their checksums, as numcodecs takes them."""
    rows = (sample.stored_rows for sample in store.values())
    return [memoryview(bytes(chunk.data[:-CHECKSUM_BYTES])) for found in rows for chunk in found.encoded()]


class Chunks(Protocol):
    """Encoded inner chunks by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> memoryview: ...


class ChunkFile:
    """Chunks in one file, each read when it is asked for."""

    def __init__(self, path: Path, chunks: Sequence[memoryview]) -> None:
        path.write_bytes(b"".join(chunks))
        self._path = path
        self._ends = list(accumulate(map(len, chunks), initial=0))
        self._descriptor = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> memoryview:
        start, stop = self._ends[i : i + 2]
        return memoryview(os.pread(self._descriptor, stop - start, start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._descriptor)
        self._path.unlink()


def decode(chunks: Chunks, block: npt.NDArray[np.uint8], threads: int) -> None:
    """Decode chunks with numcodecs alone, each to its row of `block`."""

    def decode_share(share: npt.NDArray[np.int64]) -> None:
        for i in share:
            BLOSC.decode(chunks[i], out=block[i])

    shares = np.array_split(np.arange(len(chunks)), threads * 4)
    if threads == 1:
        for share in shares:
            decode_share(share)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(decode_share, shares))


def measure_random_samples(store: Store, rounds: int) -> dict[str, Any]:
    """Read single samples at random on one thread: all their states, from the page cache."""
    names = list(store)
    picked = [names[i] for i in np.random.default_rng(1).integers(0, len(names), 2000)]

    def read() -> None:
        for name in picked:
            store[name].hidden_states()

    return {"stored": len(names), "samples": take_turns({"store": read}, rounds)["store"].rate(len(picked))}


def measure_formats(folders: dict[str, Path], threads: int, state: str, rounds: int) -> dict[str, Any]:
    """Read all samples in random order from each format, with its files in the page cache or not."""
    store = open_store(folders["packed"])
    names = [list(store)[i] for i in np.random.default_rng(2).permutation(len(store))]
    gigabytes = store.num_tokens() * store.spec.bytes_per_token / 1e9
    readers = make_readers(folders, names, threads)
    times = take_turns(readers, rounds, before=lambda name: drop_cache(folders[name]) if state == "cold" else None)
    return {
        "gigabytes": gigabytes,
        "formats": {
            name: {
                "stored_gigabytes": folder_bytes(folders[name]) / 1e9,
                "gigabytes": found.rate(gigabytes),
                "store_to_this": speed_ratio(times["packed"], found),
            }
            for name, found in times.items()
        },
    }


if __name__ == "__main__":
    main()
