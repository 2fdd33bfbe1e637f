"""What other codecs would make of real hidden states, and what lossy ones lose.

    nice -n 5 python benchmarks/compression.py

States of SmolLM2-135M-Instruct for the bundled chats, in bfloat16, cut into inner chunks as the store cuts them. Speeds
are those of one thread, by the seconds that it had on the CPU.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from numcodecs import Blosc, Zstd
from record import write_result
from synthetic_stores import make_spec
from transformers import AutoTokenizer

from storage.codecs import BLOCK_BYTES, BLOSC, TOKENS_PER_CHUNK
from storage.rounding import round_mantissa
from storage.specs import LayerId
from tasks.engine.base import EngineOptions
from tasks.engine.reference_engine import ReferenceEngine
from tasks.smollm2 import ensure_smollm2

CHATS = Path(__file__).parent.parent / "flows" / "data" / "mt_bench_smollm2.jsonl"
LAYERS: tuple[LayerId, ...] = (2, 15, 27, "final")
NUM_CHATS, MAX_TOKENS = 24, 1024
ROUNDS = 5
FP8_MAX = 448.0

Chunk = npt.NDArray[np.uint16]
Encode = Callable[[Chunk], bytes]
Decode = Callable[[bytes], object]


def main() -> None:
    """Measure all codecs on the same chunks."""
    chunks = make_chunks()
    figures: dict[str, Any] = {"chunks": len(chunks), "raw_bytes": sum(chunk.nbytes for chunk in chunks)}
    figures["exact"] = {name: measure(chunks, *codec) for name, codec in EXACT.items()}
    figures["exponents"] = {name: bound(chunks, exponents) for name, exponents in EXPONENTS.items()}
    figures["lossy"] = {f"bfloat16, {bits} bits": measure_bits(chunks, bits) for bits in range(6, 0, -1)}
    figures["lossy"]["float8_e4m3fn with a scale per token and layer"] = measure_fp8(chunks)
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


def measure_bits(chunks: Sequence[Chunk], mantissa_bits: int) -> dict[str, float]:
    """Return ratio and error of bfloat16 with fewer bits of mantissa, through the store's own codec."""
    spec = replace(make_spec(chunks[0].shape[1]), mantissa_bits=mantissa_bits)
    rounded = [round_mantissa(chunk, spec) for chunk in chunks]
    encoded_bytes = sum(len(BLOSC.encode(chunk)) for chunk in rounded)
    return _lossy(chunks, encoded_bytes, [_values(chunk) for chunk in rounded])


def measure_fp8(chunks: Sequence[Chunk]) -> dict[str, float]:
    """Return ratio and error of float8_e4m3fn, each state over a float32 scale that puts its largest value at 448."""
    codec = Blosc(cname="zstd", clevel=1, shuffle=Blosc.NOSHUFFLE, blocksize=BLOCK_BYTES)
    encoded_bytes, found = 0, []
    for values in map(_values, chunks):
        scales = np.abs(values).max(axis=1, keepdims=True) / FP8_MAX
        scaled = (values / scales).astype(ml_dtypes.float8_e4m3fn)
        encoded_bytes += len(codec.encode(scaled.view(np.uint8))) + scales.nbytes
        found.append(scaled.astype(np.float32) * scales)
    return _lossy(chunks, encoded_bytes, found)


def _lossy(chunks: Sequence[Chunk], encoded_bytes: int, found: list[npt.NDArray[np.float32]]) -> dict[str, float]:
    pairs = [(_values(chunk), values) for chunk, values in zip(chunks, found, strict=True)]
    norm = np.linalg.norm
    errors = np.concatenate([norm(given - values, axis=1) / norm(given, axis=1) for given, values in pairs])
    raw_bytes = sum(chunk.nbytes for chunk in chunks)
    return {
        "ratio": raw_bytes / encoded_bytes,
        "mean_relative_error": float(errors.mean()),
        "largest_relative_error": float(errors.max()),
    }


def _values(bits: Chunk) -> npt.NDArray[np.float32]:
    return bits.view(ml_dtypes.bfloat16).astype(np.float32)


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


EXACT: dict[str, tuple[Encode, Decode]] = {
    "blosc zstd-1, shuffle, blocks of 1 MiB (the store's)": _blosc(),
    "the same, blocks of Blosc's choice": _blosc(blocksize=0),
    "the same, zstd-3": _blosc(clevel=3),
    "the same, bitshuffle": _blosc(shuffle=Blosc.BITSHUFFLE),
    "the same, after transpose": (_encode_transposed, _decode_transposed),
    "zstd-1": (Zstd(level=1).encode, Zstd(level=1).decode),
}
EXPONENTS = {"as they are": _exponents, "less the median of their channel": _biased}


if __name__ == "__main__":
    main()
