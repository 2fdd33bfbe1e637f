"""Files of `torch.save`: written with the same bytes each time, and read without running what they hold."""

import gzip
import io
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from storage.dataset import to_tensor
from tasks.errors import ImportFilesError
from tasks.trainer_files.base import Tensors

GZIP = ".gz"


def write_torch(file: BinaryIO, tensors: Tensors) -> None:
    """Write a dict of tensors, text and flags into an open file."""
    torch.save({key: _to_torch(value) for key, value in tensors.items()}, file)


def read_torch(path: Path) -> dict[str, Any]:
    """Read a file of tensors, gzipped or not; nothing but tensors and plain values is unpickled.

    Raises:
        ImportFilesError: it is something else, or holds something else.
    """
    options: dict[str, Any] = {"weights_only": True, "map_location": "cpu"}
    try:
        if path.name.endswith(GZIP):
            with gzip.open(path, "rb") as file:
                loaded = torch.load(io.BytesIO(file.read()), **options)
        else:
            loaded = torch.load(path, mmap=True, **options)
    except Exception as error:  # pickles can fail in any way
        reason = str(error).split("\n", 1)[0]
        raise ImportFilesError(
            f"{path} cannot be read as tensors ({type(error).__name__}: {reason[:160]}); files that hold anything else "
            "are not unpickled"
        ) from error
    if not isinstance(loaded, dict):
        raise ImportFilesError(
            f"{path} holds {type(loaded).__name__}, not a dict of tensors; take it out of the folder"
        )
    return loaded


def _to_torch(value: Any) -> Any:
    return to_tensor(value) if isinstance(value, np.ndarray) else value
