"""What other codecs would make of real hidden states, and what lossy ones lose.

    nice -n 5 python benchmarks/compression.py

States of SmolLM2-135M-Instruct for the bundled chats, in bfloat16, cut into inner chunks as the store cuts them; lossy
ones beside random states too. Speeds are those of one thread, by the seconds that it had on the CPU.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numcodecs import Blosc, Zstd
from record import write_result
from synthetic_stores import make_samples, make_spec
from transformers import AutoTokenizer

from storage import StateSpec
from storage.codecs import BLOCK_BYTES, BLOSC, TOKENS_PER_CHUNK, decode_chunk, encode_chunk
from storage.float8 import dequantize
from storage.rounding import round_states
from storage.specs import LayerId
from storage.storage_dtypes import FLOAT8
from tasks.engine.base import EngineOptions
from tasks.engine.reference_engine import ReferenceEngine
from tasks.smollm2 import ensure_smollm2

CHATS = Path(__file__).parent.parent / "flows" / "data" / "mt_bench_smollm2.jsonl"
LAYERS: tuple[LayerId, ...] = (2, 15, 27, "final")
NUM_CHATS, MAX_TOKENS = 24, 1024
NUM_RANDOM = 40
ROUNDS = 5
HIDDEN_SIZE = 576

Chunk = npt.NDArray[np.uint16]
Encode = Callable[[Chunk], bytes]
Decode = Callable[[bytes], object]


def main() -> None:
    """Measure all codecs on the same chunks."""
    chunks = make_chunks()
    figures: dict[str, Any] = {"chunks": len(chunks), "raw_bytes": sum(chunk.nbytes for chunk in chunks)}
    figures["exact"] = {name: measure(chunks, *codec) for name, codec in EXACT.items()}
    figures["exponents"] = {name: bound(chunks, exponents) for name, exponents in EXPONENTS.items()}
    given = {"SmolLM2": chunks, "random": make_random_chunks(NUM_RANDOM)}
    specs = lossy_specs(chunks[0].shape[1])
    figures["lossy"] = {
        source: {name: measure_lossy(of_source, spec) for name, spec in specs.items()}
        for source, of_source in given.items()
    }
    print(write_result("compression", figures))


def make_chunks() -> list[Chunk]:
    """Return whole inner chunks [TOKENS_PER_CHUNK, hidden_size] of the model's states, as the bits of bfloat16."""
    folder = ensure_smollm2()
    engine = ReferenceEngine(EngineOptions(folder, LAYERS, "float32", "bfloat16", "cpu", MAX_TOKENS))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chunks: list[Chunk] = []
    for line in CHATS.read_text().splitlines()[:NUM_CHATS]:
        text = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)
        ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"][:MAX_TOKENS], np.int32)
        states = engine.forward([ids]).view(torch.uint16).numpy().view("<u2")
        starts = range(0, len(ids) - TOKENS_PER_CHUNK + 1, TOKENS_PER_CHUNK)
        chunks += [
            np.ascontiguousarray(states[start : start + TOKENS_PER_CHUNK, slot])
            for start in starts
            for slot in range(len(LAYERS))
        ]
    return chunks


def make_random_chunks(count: int) -> list[Chunk]:
    """Return as many inner chunks of normal values with a scale of its own for each channel."""
    ((_, states),) = make_samples(make_spec(HIDDEN_SIZE, (2,)), [count * TOKENS_PER_CHUNK])
    return [np.ascontiguousarray(chunk) for chunk in np.split(states[:, 0], count)]


def measure(chunks: Sequence[Chunk], encode: Encode, decode: Decode) -> dict[str, float]:
    """Return how much smaller the chunks become, and how fast one core encodes and decodes them."""
    raw_bytes = sum(chunk.nbytes for chunk in chunks)
    encoded = [encode(chunk) for chunk in chunks]
    return {
        "ratio": raw_bytes / sum(map(len, encoded)),
        "encode_bytes_per_cpu_second": raw_bytes / _cpu_seconds(encode, chunks),
        "decode_bytes_per_cpu_second": raw_bytes / _cpu_seconds(decode, encoded),
    }


def _cpu_seconds(work: Callable[[Any], object], items: Iterable[Any]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for item in items:
            work(item)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def bound(chunks: Sequence[Chunk], exponents: Callable[[Chunk], npt.NDArray[np.uint8]]) -> dict[str, float]:
    """Return the ratio where exponents take their entropy in each chunk and nothing else shrinks: Huffman's best."""
    num_bits = 0.0
    for chunk in chunks:
        counts = np.bincount(exponents(chunk).ravel(), minlength=256)
        shares = counts[counts > 0] / chunk.size
        num_bits += chunk.size * (8 - float((shares * np.log2(shares)).sum()))
    return {"ratio": sum(chunk.nbytes for chunk in chunks) * 8 / num_bits}


def lossy_specs(hidden_size: int) -> dict[str, StateSpec]:
    """Return one spec of one layer for each way to store bfloat16 states, the exact one first."""
    exact = make_spec(hidden_size, (2,))
    fewer = {f"bfloat16, {bits} bits": replace(exact, mantissa_bits=bits) for bits in range(6, 0, -1)}
    return {"bfloat16": exact, **fewer, FLOAT8: replace(exact, storage_dtype=FLOAT8)}


def measure_lossy(chunks: Sequence[Chunk], spec: StateSpec) -> dict[str, float]:
    """Return how much the store makes of the chunks under a spec, what that loses, and how fast it is on one core.

    To encode is also to measure the error; to decode is also to check the CRC-32C. The error of the rest is that
    without the channel in which a state is largest: in some, one channel has nearly all of the norm.
    """
    stored = [round_states(chunk[:, None], spec) for chunk in chunks]
    errors = [error for _, error in stored if error is not None]
    encoded = [encode_chunk(rows[:, 0]) for rows, _ in stored]
    raw_bytes, encoded_bytes = sum(chunk.nbytes for chunk in chunks), sum(map(len, encoded))
    encode, decode = partial(_encode, spec=spec), partial(_decode, spec=spec)
    rest = np.concatenate([_rest_errors(chunk, decode(data)) for chunk, data in zip(chunks, encoded, strict=True)])
    return {
        "ratio": raw_bytes / encoded_bytes,
        "bytes_per_token": encoded_bytes / (len(chunks) * TOKENS_PER_CHUNK) * len(LAYERS),
        "mean_relative_error": statistics.fmean(error.mean for error in errors) if errors else 0.0,
        "largest_relative_error": max((error.largest for error in errors), default=0.0),
        "mean_relative_error_of_the_rest": float(rest.mean()),
        "largest_relative_error_of_the_rest": float(rest.max()),
        "encode_bytes_per_cpu_second": raw_bytes / _cpu_seconds(encode, chunks),
        "decode_bytes_per_cpu_second": raw_bytes / _cpu_seconds(decode, encoded),
    }


def _rest_errors(given: Chunk, read: Chunk) -> npt.NDArray[np.float32]:
    before, after = ((bits.astype(np.uint32) << 16).view(np.float32) for bits in (given, read))
    for values in (after, before):
        np.put_along_axis(values, np.abs(before).argmax(axis=1, keepdims=True), 0, axis=1)
    errors: npt.NDArray[np.float32] = np.linalg.norm(before - after, axis=1) / np.linalg.norm(before, axis=1)
    return errors


def _encode(chunk: Chunk, spec: StateSpec) -> bytes:
    return encode_chunk(round_states(chunk[:, None], spec)[0][:, 0])


def _decode(encoded: bytes, spec: StateSpec) -> npt.NDArray[Any]:
    rows = decode_chunk(encoded, spec.stored_dtype, spec.stored_width, "a chunk")
    if not spec.is_scaled:
        return rows
    states = np.empty((len(rows), spec.hidden_size), spec.dtype.bits)
    dequantize(states, rows)
    return states


def _blosc(shuffle: int = Blosc.SHUFFLE, clevel: int = 1, blocksize: int = BLOCK_BYTES) -> tuple[Encode, Decode]:
    codec = Blosc(cname="zstd", clevel=clevel, shuffle=shuffle, blocksize=blocksize)
    return codec.encode, codec.decode


def _exponents(chunk: Chunk) -> npt.NDArray[np.uint8]:
    return (chunk >> 7).astype(np.uint8)


def _biased(chunk: Chunk) -> npt.NDArray[np.uint8]:
    exponents = _exponents(chunk)
    return exponents - np.median(exponents, axis=0).astype(np.uint8)


def _encode_transposed(chunk: Chunk) -> bytes:
    return bytes(BLOSC.encode(np.ascontiguousarray(chunk.T)))


def _decode_transposed(encoded: bytes) -> Chunk:
    return np.ascontiguousarray(np.frombuffer(BLOSC.decode(encoded), "<u2").reshape(-1, TOKENS_PER_CHUNK).T)


def _decode_exact(encoded: bytes) -> Chunk:
    return decode_chunk(encoded, np.dtype("<u2"), HIDDEN_SIZE, "a chunk")


EXACT: dict[str, tuple[Encode, Decode]] = {
    "the store's: the stream of the next, made plane by plane": (encode_chunk, _decode_exact),
    "blosc zstd-1, shuffle, blocks of 1 MiB": _blosc(),
    "the same, blocks of Blosc's choice": _blosc(blocksize=0),
    "the same, zstd-3": _blosc(clevel=3),
    "the same, bitshuffle": _blosc(shuffle=Blosc.BITSHUFFLE),
    "the same, after transpose": (_encode_transposed, _decode_transposed),
    "zstd-1": (Zstd(level=1).encode, Zstd(level=1).decode),
}
EXPONENTS = {"as they are": _exponents, "less the median of their channel": _biased}


if __name__ == "__main__":
    main()
