"""The table of formats: what each trainer reads. A new one is one row."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from storage.tokens import Tokens
from tasks.trainer_files.base import Tensors, TrainerFormat
from tasks.trainer_files.safetensors_files import write_safetensors
from tasks.trainer_files.tensors import (
    modelopt_tensors,
    plain_tensors,
    specforge_tensors,
    speculators_float8_tensors,
    speculators_tensors,
)
from tasks.trainer_files.vocabulary_files import (
    write_modelopt_vocabulary,
    write_numpy_vocabulary,
    write_specforge_vocabulary,
)


def _write_torch(file: BinaryIO, tensors: Tensors) -> None:
    from tasks.trainer_files.torch_files import write_torch  # noqa: PLC0415 - torch takes a second

    write_torch(file, tensors)


def _write_dataset(folder: Path, tokens: Tokens, kept: npt.NDArray[np.int64]) -> list[Path]:
    from tasks.trainer_files.speculators_dataset import write_dataset  # noqa: PLC0415 - pyarrow, which few need

    return write_dataset(folder, tokens, kept)


def _below_prefix(suffix: str) -> Callable[[str, int], str]:
    return lambda name, _: f"{name[:2]}/{name}{suffix}"


_SPECULATORS = TrainerFormat(
    name="speculators",
    summary="speculators: a dataset folder with hidden_states/hs_{row}.safetensors, bfloat16",
    place=lambda _, number: f"hidden_states/hs_{number}.safetensors",
    make_tensors=speculators_tensors,
    write=write_safetensors,
    write_vocabulary=write_numpy_vocabulary,
    norms=("before",),
    write_rows=_write_dataset,
)
_ROWS = (
    TrainerFormat(
        name="specforge",
        summary="SpecForge, EAGLE-3 offline: .ckpt files of torch, bfloat16",
        place=_below_prefix(".ckpt"),
        make_tensors=specforge_tensors,
        write=_write_torch,
        write_vocabulary=write_specforge_vocabulary,
        norms=("after",),
        num_aux=3,
        counts_outputs=True,
    ),
    _SPECULATORS,
    replace(
        _SPECULATORS,
        name="speculators-fp8",
        summary="the same for its fp8 backend: float8 with scales",
        make_tensors=speculators_float8_tensors,
        takes_float8=True,
    ),
    TrainerFormat(
        name="modelopt",
        summary="NVIDIA ModelOpt, offline: .pt files of torch in one folder, bfloat16",
        place=lambda name, _: f"{name}.pt",
        make_tensors=modelopt_tensors,
        write=_write_torch,
        write_vocabulary=write_modelopt_vocabulary,
        norms=("after", "before"),
        counts_outputs=True,
    ),
    TrainerFormat(
        name="safetensors",
        summary="any other reader: all layers as the store has them",
        place=_below_prefix(".safetensors"),
        make_tensors=plain_tensors,
        write=write_safetensors,
        write_vocabulary=write_numpy_vocabulary,
        as_stored=True,
    ),
)

FORMATS: dict[str, TrainerFormat] = {row.name: row for row in _ROWS}
