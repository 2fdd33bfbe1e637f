"""The store is plain Zarr v3: zarr-python and tensorstore agree with us on every document, chunk and value."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from storage.codecs import BLOSC, TOKENS_PER_CHUNK, chunk_count
from storage.columns import Column, ColumnWriter, write_column
from storage.errors import CorruptObjectError
from storage.packs import compact
from storage.shards import decode_index, index_size

DTYPES = ("bfloat16", "float16", "float32")


def zarr_twin(path: Path, ours: Path) -> zarr.Array:
    """Write the values of one of our `hidden_states` arrays again, with zarr-python alone."""
    source = zarr.open_array(ours, mode="r")
    blosc = BloscCodec(typesize=source.dtype.itemsize, cname="zstd", clevel=1, shuffle="shuffle", blocksize=1 << 20)
    twin = zarr.create_array(
        path,
        shape=source.shape,
        dtype=source.dtype,
        chunks=source.chunks,
        shards=source.shards,
        compressors=[blosc, Crc32cCodec()],
        attributes=dict(source.attrs),
        config={"write_empty_chunks": True},
    )
    twin[:] = source[:]
    return twin


def inner_chunks(shard: Path, num_chunks: int) -> list[bytes]:
    data = shard.read_bytes()
    index = decode_index(data[-index_size(num_chunks) :], num_chunks, str(shard))
    return [data[offset : offset + size] for offset, size in index.tolist()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zarr_python_writes_the_same_document_and_chunks_that_are_the_same_and_no_smaller(
    tmp_path: Path, make_filled: Callable, dtype: str
) -> None:
    filled = make_filled((700,), storage_dtype=dtype)
    ours = filled.objects()[0] / "hidden_states"
    zarr_twin(tmp_path / "twin", ours)
    assert json.loads((tmp_path / "twin" / "zarr.json").read_text()) == json.loads((ours / "zarr.json").read_text())
    num_chunks = chunk_count(700) * filled.spec.num_captured
    theirs = inner_chunks(tmp_path / "twin/c/0/0/0", num_chunks)
    for chunk, found in zip(theirs, inner_chunks(ours / "c/0/0/0", num_chunks), strict=True):
        assert BLOSC.decode(chunk[:-4]) == BLOSC.decode(found[:-4])
        assert len(found) <= 1.02 * len(chunk)


def test_the_chunks_of_a_sample_are_one_range_in_c_order(filled) -> None:
    for folder, num_tokens in ((f, zarr.open_array(f / "hidden_states").shape[0]) for f in filled.objects()):
        num_chunks = chunk_count(num_tokens) * filled.spec.num_captured
        data = (folder / "hidden_states/c/0/0/0").read_bytes()
        assert b"".join(inner_chunks(folder / "hidden_states/c/0/0/0", num_chunks)) == data[: -index_size(num_chunks)]


@pytest.mark.parametrize(
    ("dtype", "row_shape"), [("<i4", ()), ("<i8", ()), ("u1", ()), ("<u4", ()), ("u1", (32,))], ids=str
)
@pytest.mark.parametrize(("num_rows", "chunk_rows"), [(0, 4), (3, 4), (4, 4), (11, 4)])
def test_columns_are_those_of_zarr_python(
    tmp_path: Path, dtype: str, row_shape: tuple, num_rows: int, chunk_rows: int
) -> None:
    values = np.random.default_rng(0).integers(0, 200, (num_rows, *row_shape)).astype(dtype)
    writer = ColumnWriter(tmp_path / "ours", dtype, chunk_rows, row_shape)
    for part in np.array_split(values, 3):
        writer.append(part)
    writer.close()
    chunks = (max(1, min(num_rows, chunk_rows)), *row_shape)
    twin = zarr.create_array(
        tmp_path / "twin",
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        compressors=[Crc32cCodec()],
        filters=None,
    )
    twin[:] = values
    files = sorted(p.relative_to(tmp_path / "twin") for p in (tmp_path / "twin").rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(tmp_path / "ours") for p in (tmp_path / "ours").rglob("*") if p.is_file())
    for file in files:
        theirs, ours = ((tmp_path / side / file).read_bytes() for side in ("twin", "ours"))
        assert json.loads(theirs) == json.loads(ours) if file.name == "zarr.json" else theirs == ours
    assert np.array_equal(Column(tmp_path / "ours", dtype, row_shape)[:], values)


def test_a_column_reads_any_slice(tmp_path: Path) -> None:
    values = np.arange(23, dtype="<i4")
    writer = ColumnWriter(tmp_path / "a", "<i4", 5)
    writer.append(values)
    writer.close()
    column = Column(tmp_path / "a", "<i4")
    for start in range(24):
        for stop in range(24):
            assert np.array_equal(column[start:stop], values[start:stop])


def test_a_column_of_another_dtype_is_refused(tmp_path: Path) -> None:
    write_column(tmp_path / "a", np.arange(3, dtype="<i8"))
    with pytest.raises(CorruptObjectError):
        Column(tmp_path / "a", "<i4")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_zarr_alone_reads_all_samples_as_the_format_page_says(
    make_filled: Callable, block_of: Callable[[str], str], dtype: str, packed: bool
) -> None:
    filled = make_filled(storage_dtype=dtype)
    if packed:
        compact(filled.path, filled.digest, shard_bytes=512 * filled.spec.bytes_per_token)
        assert not filled.objects()
    namespace: dict = {}
    exec(block_of("python"), namespace)  # noqa: S102 our own page
    reader = namespace["Reader"](filled.path, filled.digest)
    assert set(reader) == set(filled.samples)
    for name, (input_ids, states) in filled.samples.items():
        found_ids, found = reader[name]
        assert np.array_equal(found_ids, input_ids)
        assert np.array_equal(found.astype(np.float32), states.astype(np.float32))


def test_the_reader_of_the_format_page_stays_short(block_of: Callable[[str], str]) -> None:
    assert len(block_of("python").splitlines()) <= 50


def open_tensorstore(path: Path) -> np.ndarray:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return tensorstore.open(spec, read=True).result().read().result()


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensorstore_alone_reads_loose_and_packed(make_filled: Callable, dtype: str) -> None:
    filled = make_filled(storage_dtype=dtype)
    for folder in filled.objects():
        input_ids, states = filled.samples[folder.name]
        assert np.array_equal(open_tensorstore(folder / "hidden_states"), states.view(filled.spec.stored_dtype))
        assert np.array_equal(open_tensorstore(folder / "input_ids"), input_ids)
    compact(filled.path, filled.digest, shard_bytes=512 * filled.spec.bytes_per_token)
    (pack,) = filled.packs()
    arrays = {
        name: open_tensorstore(pack / name) for name in ("hidden_states", "input_ids", "sample_hash", "row_start")
    }
    for name, start in zip(arrays["sample_hash"], arrays["row_start"], strict=True):
        input_ids, states = filled.samples[name.tobytes().hex()]
        rows = slice(start, start + len(input_ids))
        assert np.array_equal(arrays["hidden_states"][rows], states.view(filled.spec.stored_dtype))
        assert np.array_equal(arrays["input_ids"][rows], input_ids)
        gap = slice(rows.stop, start + chunk_count(len(input_ids)) * TOKENS_PER_CHUNK)
        assert not arrays["hidden_states"][gap].any()
        assert not arrays["input_ids"][gap].any()
