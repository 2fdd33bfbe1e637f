"""The codec chain and the shard index, for any bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.codecs import BLOSC, TOKENS_PER_CHUNK, add_checksum, decode_chunk, encode_chunk, strip_checksum
from storage.errors import ChecksumError, CorruptObjectError, TornObjectError
from storage.shards import MISSING, ShardIndex, decode_index, index_size


def test_crc32c_is_the_castagnoli_one_little_endian() -> None:
    assert add_checksum(b"123456789")[-4:] == bytes.fromhex("e3069283")[::-1]


@settings(deadline=None)  # two busy cores
@given(st.binary(max_size=200), st.data())
def test_any_flipped_bit_is_caught(body: bytes, data: st.DataObject) -> None:
    encoded = bytearray(add_checksum(body))
    assert strip_checksum(bytes(encoded), "x") == body
    position = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[position // 8] ^= 1 << position % 8
    with pytest.raises(ChecksumError, match="x has crc32c"):
        strip_checksum(bytes(encoded), "x")


@pytest.mark.parametrize("dtype", ["<u2", "<f2", "<f4"])
def test_a_chunk_decodes_to_what_was_encoded(dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 256, (TOKENS_PER_CHUNK, 12 * np.dtype(dtype).itemsize), dtype=np.uint8)
    values = bits.view(dtype)
    assert decode_chunk(encode_chunk(values), np.dtype(dtype), 12, "x").tobytes() == values.tobytes()


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["<u2", "<f2", "<f4", "u1"]),
    st.sampled_from([1, 12, 256, 2880, 7168]),
    st.integers(1, TOKENS_PER_CHUNK),
    st.booleans(),
    st.integers(0, 3),
)
def test_blosc_decodes_whatever_planes_were_stored_as_they_are(
    dtype: str, width: int, num_rows: int, has_repeats: bool, kind: int
) -> None:
    """Noise, numbers that compress in some of their bytes, repeated rows, zeros; less than a block, and several."""
    random = np.random.default_rng(kind)
    size = np.dtype(dtype).itemsize
    noise = random.integers(0, 256, (num_rows, width * size), dtype=np.uint8).view(dtype)
    numbers = (random.normal(size=(num_rows, width)) * 9).astype(dtype if dtype != "u1" else "i1").view(dtype)
    rows = [noise, numbers, np.repeat(noise[:1], num_rows, 0), np.zeros_like(noise)][kind]
    expected = np.zeros((TOKENS_PER_CHUNK, width), dtype)
    expected[:num_rows] = rows
    stream = encode_chunk(rows, has_repeats=has_repeats)
    assert BLOSC.decode(stream[:-4]) == expected.tobytes()
    if kind < 2:  # repeats are not looked for unless asked, and in each block anew
        assert len(stream) < len(BLOSC.encode(expected)) * 1.03 + 600
    assert decode_chunk(stream, np.dtype(dtype), width, "x").tobytes() == expected.tobytes()


def test_a_chunk_of_another_shape_or_none_is_refused() -> None:
    values = np.zeros((TOKENS_PER_CHUNK, 12), "<u2")
    with pytest.raises(CorruptObjectError, match="decodes to 6144 bytes, expected 6656"):
        decode_chunk(encode_chunk(values), np.dtype("<u2"), 13, "x")
    with pytest.raises(CorruptObjectError, match="not a Blosc stream"):
        decode_chunk(add_checksum(b"nonsense" * 9), np.dtype("<u2"), 12, "x")
    with pytest.raises(TornObjectError):
        decode_chunk(b"abc", np.dtype("<u2"), 12, "x")


@settings(deadline=None)  # two busy cores
@given(st.lists(st.integers(1, 1 << 40), max_size=20), st.integers(0, 5))
def test_an_index_says_where_chunks_lie_and_which_are_not_there(sizes: list[int], absent: int) -> None:
    index = ShardIndex()
    for size in sizes:
        index.append(size)
    num_chunks = len(sizes) + absent
    encoded = index.encode(num_chunks)
    assert len(encoded) == index_size(num_chunks)
    decoded = decode_index(encoded, num_chunks, "x")
    assert decoded[:, 1].tolist() == sizes + [int(MISSING)] * absent
    assert decoded[:, 0].tolist() == [sum(sizes[:i]) for i in range(len(sizes))] + [int(MISSING)] * absent
    with pytest.raises(CorruptObjectError):
        decode_index(encoded, num_chunks + 1, "x")


@pytest.mark.parametrize("num_rows", [1, 127, 128, 129, 255, 256])
@pytest.mark.parametrize("kind", ["normal", "noise"])
def test_of_the_first_rows_only_their_blocks_are_decoded(num_rows: int, kind: str) -> None:
    random = np.random.default_rng(0)
    normal = (random.standard_normal((TOKENS_PER_CHUNK, 4096), np.float32).view(np.uint32) >> 16).astype("<u2")
    noise = random.integers(0, 1 << 16, normal.shape).astype("<u2")
    values = normal if kind == "normal" else noise
    encoded = encode_chunk(values) if kind == "normal" else add_checksum(BLOSC.encode(values))
    out = np.full_like(values, 7)
    decode_chunk(memoryview(bytearray(encoded)), values.dtype, 4096, "x", out, num_rows)
    assert np.array_equal(out[:num_rows], values[:num_rows])
    if kind == "normal":  # two blocks; the other kind has none
        assert (out[128:] == 7).all() == (num_rows <= 128)


def test_bytes_that_cannot_be_written_to_are_decoded_whole() -> None:
    values = np.arange(TOKENS_PER_CHUNK * 12, dtype="<u2").reshape(TOKENS_PER_CHUNK, 12)
    encoded = encode_chunk(values)
    assert np.array_equal(decode_chunk(encoded, values.dtype, 12, "x", None, 3), values)
    assert encoded == encode_chunk(values)
