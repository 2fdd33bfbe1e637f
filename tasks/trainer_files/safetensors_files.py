"""Files of safetensors, as numpy has them."""

from typing import BinaryIO

import numpy as np
from safetensors.numpy import save

from tasks.trainer_files.base import Tensors


def write_safetensors(file: BinaryIO, tensors: Tensors) -> None:
    """Write contiguous arrays into an open file; text, one at most, goes into the header, as its metadata."""
    arrays = {key: value for key, value in tensors.items() if isinstance(value, np.ndarray)}
    texts = {key: value for key, value in tensors.items() if isinstance(value, str)}
    # Several would come in another order each time, and the same row should give the same bytes.
    file.write(save(arrays, metadata=texts or None))
