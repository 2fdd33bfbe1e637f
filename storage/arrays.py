"""The zarr.json documents of the store's groups and arrays, as templates.

Written by hand because creating an array through zarr-python costs 5 ms;
tests prove that zarr-python writes equal documents.
"""

import json
from typing import Any

import numpy as np

from storage.codecs import BLOCK_BYTES, TOKENS_PER_CHUNK
from storage.specs import StateSpec

BYTES_CODEC = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C_CODEC = {"name": "crc32c"}


def encode_document(document: dict[str, Any]) -> bytes:
    """Return a zarr.json document as the text that is stored."""
    return json.dumps(document, indent=2, allow_nan=False).encode("ascii")


def group_document(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the zarr.json of a group."""
    return {"attributes": attributes, "zarr_format": 3, "node_type": "group"}


def column_document(shape: tuple[int, ...], dtype: np.dtype[Any], chunk_rows: int) -> dict[str, Any]:
    """Return the zarr.json of an uncompressed, checksummed array that is chunked along its first axis."""
    return _array_document(shape, dtype, (chunk_rows, *shape[1:]), [_bytes_codec(dtype), CRC32C_CODEC], {})


def hidden_states_document(spec: StateSpec, num_rows: int, shard_rows: int) -> dict[str, Any]:
    """Return the zarr.json of `hidden_states` [num_rows, num_captured, stored_width], with shards of `shard_rows`."""
    inner = [_bytes_codec(spec.stored_dtype), _blosc_codec(spec.stored_dtype.itemsize), CRC32C_CODEC]
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [TOKENS_PER_CHUNK, 1, spec.stored_width],
            "codecs": inner,
            "index_codecs": [BYTES_CODEC, CRC32C_CODEC],
            "index_location": "end",
        },
    }
    row = (spec.num_captured, spec.stored_width)
    attributes = {"logical_dtype": spec.storage_dtype, **({"scale_dtype": "float32"} if spec.is_scaled else {})}
    return _array_document((num_rows, *row), spec.stored_dtype, (shard_rows, *row), [sharding], attributes)


def _bytes_codec(dtype: np.dtype[Any]) -> dict[str, Any]:
    # Single bytes have no order, and zarr writes no endian for them.
    return BYTES_CODEC if dtype.itemsize > 1 else {"name": "bytes"}


def _blosc_codec(typesize: int) -> dict[str, Any]:
    configuration = {"typesize": typesize, "cname": "zstd", "clevel": 1, "shuffle": "shuffle", "blocksize": BLOCK_BYTES}
    return {"name": "blosc", "configuration": configuration}


def _array_document(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunk_shape: tuple[int, ...],
    codecs: list[Any],
    attributes: dict[str, Any],
) -> dict[str, Any]:
    return {
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if dtype.kind == "f" else 0,
        "codecs": codecs,
        "attributes": attributes,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
