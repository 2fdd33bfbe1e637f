"""The dataset folder that speculators reads beside the states: token ids, loss masks and lengths, one row a file."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.tokens import Tokens
from tasks.errors import ExportError

# Written last, since a reader takes the dataset for there once it is.
STATE = "state.json"
# Rows that are in memory at a time.
_BLOCK_ROWS = 1024

_LIST = pa.list_(pa.int64())
_SCHEMA = pa.schema({"input_ids": _LIST, "loss_mask": _LIST, "seq_len": pa.int64()})


def write_dataset(folder: Path, tokens: Tokens, kept: npt.NDArray[np.int64]) -> list[Path]:
    """Write rows `kept` of an artifact as `datasets` saves them, such that it gives them as tensors of torch.

    Returns:
        The files, in the order in which they should become visible.

    Raises:
        ExportError: the package is not installed.
    """
    try:
        from datasets import Dataset, disable_progress_bars  # noqa: PLC0415 - a second, and one format needs it
    except ImportError as error:
        raise ExportError(f"speculators reads folders of datasets, and that is not installed ({error})") from error
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
        for batch in _batches(tokens, kept):
            stream.write_batch(batch)
    disable_progress_bars()  # ours says what is done
    dataset = Dataset.from_file(str(folder / "rows.arrow"))
    dataset.set_format("torch")
    dataset.save_to_disk(folder / "saved")
    return sorted((folder / "saved").iterdir(), key=lambda path: (path.name == STATE, path.name))


def _batches(tokens: Tokens, kept: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(kept), _BLOCK_ROWS):
        rows = kept[start : start + _BLOCK_ROWS].tolist()
        ids, masks = [tokens.input_ids(i) for i in rows], [tokens.loss_mask(i) for i in rows]
        lengths = pa.array([len(row) for row in ids], pa.int64())
        yield pa.record_batch([_ragged(ids), _ragged(masks), lengths], schema=_SCHEMA)


def _ragged(rows: Sequence[npt.NDArray[Any]]) -> pa.ListArray:
    offsets = pa.array(list(accumulate(map(len, rows), initial=0)), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(rows).astype(np.int64)))
