"""One model, measured in one process, variant after variant: the child of `fidelity.py`.

    python benchmarks/measurement.py '{"model": "llama", "variants": ["cpu-fp32"], ...}'

A row goes to the file of rows as soon as it is there. What raises ends the process: an engine that failed half-way
could taint the next row, so `fidelity.py` starts another process for that.
"""

import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from children import Job
from comparison import compare, measure_errors, summarize
from inputs import Ids, find_first, make_inputs
from models import QUANTIZED, ensure_model, is_dense
from references import load_reference
from repeats import LENGTHS as PROBE_LENGTHS
from repeats import differ, repeat
from variants import VARIANTS, Device, Variant

from tasks.engine.base import EngineOptions
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.engine.reference_engine import ReferenceEngine
from tasks.lifeline import tie_to_parent

BATCH_TOKENS, MAX_SEQUENCES = 4096, 64
# One token; past the sliding windows of the tiny models, and past the length before yarn (1,024); then as many as it
# takes: single tokens decide a whole layer where a router turns over by rounding, first tokens in a trained model.
LENGTHS = {
    "cpu": (1, 17, 2048) + (256,) * 8 + (32,) * 32,
    "cuda": (1, 17, 2048) + (256,) * 64 + (32,) * 200,
}
SMALL_LENGTHS = (5, 40, 17)


class Measurement:
    """One model: what transformers makes of the tokens, computed once a device and dtype, and engines beside it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._folder, self._twin = ensure_model(job.model)
        self._info = read_model(self._folder)
        self._layers = (*range(self._info.num_layers + 1), "final")
        self._probe = self._inputs(SMALL_LENGTHS if job.small else PROBE_LENGTHS, seed=1)
        self._references: dict[tuple[Device, str, str], torch.Tensor] = {}

    def measure(self, variant: Variant) -> dict[str, Any]:
        """Compare the engine with transformers in float32, beside transformers in a lower precision."""
        began = time.monotonic()
        lengths = self._lengths(variant.device)
        sequences = self._inputs(lengths, seed=0)
        truth = self._reference(variant, "float32", sequences)
        firsts = find_first(sequences)
        counted = torch.from_numpy(np.concatenate(firsts))
        lower = self._reference(variant, self._lower_dtype(variant), sequences)
        theirs = measure_errors(lower[counted], truth[counted])
        states, repeats = self._run(variant, sequences)
        ours = measure_errors(states[counted], truth[counted])
        equal = [torch.equal(states[:, slot], truth[:, slot]) for slot in range(len(self._layers))]
        row = self._head(variant) | {
            "num_tokens": int(counted.sum()),
            "num_sequences": len(lengths),
            "layers": self._layers,
            "equal": equal,
            "ours": summarize(ours, theirs),
            "theirs": summarize(theirs, theirs),
            **compare(ours, theirs, [int(first.sum()) for first in firsts]),
            "repeats": repeats,
        }
        return row | {"seconds": round(time.monotonic() - began, 1)}

    def compare_processes(self, variant: Variant) -> dict[str, Any]:
        """Compare the bits of this process with those that an earlier one left."""
        engine = load_engine(self._options(variant))
        try:
            states = engine.forward(self._probe).cpu()
        finally:
            engine.close()
        return self._head(variant) | {"process": differ(states, self._load(variant.name))}

    def _head(self, variant: Variant) -> dict[str, Any]:
        return {
            "model": self._job.model,
            "architecture": self._info.architecture,
            "variant": variant.name,
            "exact": variant.is_exact,
            "dense": self._job.model not in QUANTIZED and is_dense(self._job.model),
            "second": self._job.second,
        }

    def _run(self, variant: Variant, sequences: Sequence[Ids]) -> tuple[torch.Tensor, dict[str, Any]]:
        engine = load_engine(self._options(variant))
        try:
            states = torch.cat(
                [engine.forward(batch).cpu() for batch in _batches(sequences, 1 if variant.alone else MAX_SEQUENCES)]
            )
            first, repeats = repeat(engine, self._probe)
        finally:
            engine.close()
        _free()
        torch.save(first, self._file(variant.name))
        if variant.like and self._file(variant.like).exists():
            repeats["like"] = differ(first, self._load(variant.like)) | {"variant": variant.like}
        return states, repeats

    def _reference(self, variant: Variant, dtype: str, sequences: Sequence[Ids]) -> torch.Tensor:
        key = (variant.device, dtype, "own" if dtype == "float32" else variant.weights)
        if key not in self._references:
            options = EngineOptions(self._twin, self._layers, dtype, dtype, variant.device, BATCH_TOKENS)
            is_truth = dtype == "float32"
            engine = ReferenceEngine(options) if is_truth else load_reference(options, variant, self._job.model)
            self._references[key] = torch.cat([engine.forward([ids]).cpu() for ids in sequences])
            engine.close()
            _free()
        return self._references[key]

    def _lower_dtype(self, variant: Variant) -> str:
        dtype = variant.compute_dtype or self._info.dtype
        return "bfloat16" if dtype == "float32" else dtype

    def _options(self, variant: Variant) -> EngineOptions:
        return EngineOptions(
            model=self._folder,
            layers=self._layers,
            compute_dtype=variant.compute_dtype or self._info.dtype,
            output_dtype=variant.compute_dtype or self._info.dtype,
            device=variant.device,
            max_batch_tokens=BATCH_TOKENS,
            max_sequences=MAX_SEQUENCES,
            tp_size=variant.tp_size,
            ep_size=variant.ep_size,
            deterministic=variant.deterministic,
            quantization="fp8" if variant.weights == "online" else None,
        )

    def _inputs(self, lengths: Sequence[int], seed: int) -> list[Ids]:
        return make_inputs(self._job.model, self._folder, self._info.vocab_size, lengths, seed)

    def _lengths(self, device: Device) -> tuple[int, ...]:
        return SMALL_LENGTHS if self._job.small else LENGTHS[device]

    def _file(self, variant: str) -> Path:
        return self._job.scratch / f"{self._job.model}-{variant}.pt"

    def _load(self, variant: str) -> torch.Tensor:
        states: torch.Tensor = torch.load(self._file(variant), weights_only=True)
        return states


def _batches(sequences: Sequence[Ids], max_sequences: int) -> list[list[Ids]]:
    batches: list[list[Ids]] = [[]]
    for ids in sequences:
        if len(batches[-1]) == max_sequences or sum(map(len, batches[-1])) + len(ids) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(ids)
    return batches


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    """Measure what the one argument says."""
    job = Job.from_json(sys.argv[1])
    tie_to_parent(job.parent_pid)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the truth is in float32
    measurement = Measurement(job)
    for name in job.variants:
        variant = VARIANTS[name]
        row = measurement.compare_processes(variant) if job.second else measurement.measure(variant)
        with job.rows.open("a") as rows:
            rows.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
