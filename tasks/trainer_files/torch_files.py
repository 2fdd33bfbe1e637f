"""Files of `torch.save`: written with the same bytes each time, and read without running what they hold."""

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from storage.dataset import to_tensor
from tasks.errors import ImportFilesError
from tasks.trainer_files.base import Tensors

GZIP = ".gz"
# States pack to a half at best, and those of zeros are refused anyway.
MAX_RATIO = 100
FREE_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20


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
            unpacked = _unpack(path)
            _require_stored(path, unpacked)
            loaded = torch.load(unpacked, **options)
        else:
            _require_stored(path, path)
            loaded = torch.load(path, mmap=True, **options)
    except ImportFilesError:
        raise
    except Exception as error:  # pickles can fail in any way
        reason = str(error).split("\n", 1)[0].replace("\r", " ")
        raise ImportFilesError(
            f"{path} cannot be read as tensors ({type(error).__name__}: {reason[:160]}); files that hold anything else "
            "are not unpickled"
        ) from error
    if not isinstance(loaded, dict):
        raise ImportFilesError(
            f"{path} holds {type(loaded).__name__}, not a dict of tensors; take it out of the folder"
        )
    return loaded


def _unpack(path: Path) -> io.BytesIO:
    """Unpack a gzip file, block by block, as long as it is no more than states can become."""
    most = MAX_RATIO * path.stat().st_size + FREE_BYTES
    unpacked = io.BytesIO()
    with gzip.open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if unpacked.write(block) and unpacked.tell() > most:
                raise ImportFilesError(
                    f"{path} unpacks to over {most:,} bytes, more than {MAX_RATIO} times as many as it has; it is "
                    "damaged or made to fill memory: take it out of the folder"
                )
    unpacked.seek(0)
    return unpacked


def _require_stored(path: Path, file: Path | io.BytesIO) -> None:
    """Refuse a zip with packed entries: torch stores them as they are, and would unpack whatever they become."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            is_packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
        if is_packed:
            raise ImportFilesError(f"{path} has compressed entries, which torch.save does not write; save it again")
    if isinstance(file, io.BytesIO):
        file.seek(0)


def _to_torch(value: Any) -> Any:
    return to_tensor(value) if isinstance(value, np.ndarray) else value
