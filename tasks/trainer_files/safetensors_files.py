"""Files of safetensors: a header in JSON, and the bytes of each tensor.

Written here, since the library's own `save` copies all bytes twice, and its `save_file` takes no open file; its format
is fixed (https://huggingface.co/docs/safetensors).
"""

import json
from typing import Any, BinaryIO

import numpy as np

from tasks.trainer_files.base import Tensors

_ALIGNMENT = 8
_DTYPES = {
    "int64": "I64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
}


def write_safetensors(file: BinaryIO, tensors: Tensors) -> None:
    """Write contiguous arrays into an open file; text goes into the header, as its metadata."""
    arrays = {key: value for key, value in tensors.items() if isinstance(value, np.ndarray)}
    texts = {key: value for key, value in tensors.items() if isinstance(value, str)}
    # The wider elements first, so that all are aligned.
    ordered = sorted(arrays, key=lambda key: (-arrays[key].dtype.itemsize, key))
    header: dict[str, Any] = {"__metadata__": texts} if texts else {}
    start = 0
    for key in ordered:
        array, stop = arrays[key], start + arrays[key].nbytes
        header[key] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for key in ordered:
        file.write(arrays[key].reshape(-1).view(np.uint8).data)
