"""float8 rows: quantized as said and as torch does, told apart from exact ones, and as safe as these in every place."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
import torch
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from storage import StateSpec, init_store, open_store
from storage.checks import check_store
from storage.codecs import TOKENS_PER_CHUNK
from storage.errors import AllZeroError, NonFiniteError, RowCountError, SampleShapeError, SpecError
from storage.float8 import SCALE_BYTES, dequantize, quantize, split
from storage.objects import ObjectWriter
from storage.pack_listing import open_packs
from storage.packs import Compaction, compact
from storage.repairs import repair
from storage.store import add_spec
from storage.values import ValueCheck

FLOAT8 = "float8_e4m3fn"


@pytest.fixture
def scaled(spec: StateSpec) -> StateSpec:
    return replace(spec, storage_dtype=FLOAT8)


def by_torch(states: npt.NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, scales and what is read of bfloat16 states [..., hidden_size], as one writes it in torch."""
    given = torch.from_numpy(states.view(np.int16)).view(torch.bfloat16).float()
    scales = given.abs().amax(-1, keepdim=True) / 448
    values = (given / torch.where(scales == 0, 1, scales)).to(torch.float8_e4m3fn)
    return values, scales[..., 0], (values.float() * scales).to(torch.bfloat16)


def read(rows: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Return what a reader gets of rows [n, hidden_size + SCALE_BYTES]."""
    out = np.empty((len(rows), rows.shape[1] - SCALE_BYTES), "<u2")
    dequantize(out, rows)
    return out.view(ml_dtypes.bfloat16)


def hard_states() -> npt.NDArray[Any]:
    """Return states of one layer: all magnitudes that bfloat16 has, zeros, subnormals, one giant among small ones."""
    rng = np.random.default_rng(0)
    bits = np.arange(1 << 16, dtype="<u2")
    finite = bits[(bits & 0x7F80) != 0x7F80].view(ml_dtypes.bfloat16)
    every = rng.permutation(finite).reshape(-1, 1, 480)
    alike = np.sort(finite.astype(np.float32)).astype(ml_dtypes.bfloat16).reshape(-1, 1, 480)
    usual = rng.normal(size=(200, 1, 480)).astype(ml_dtypes.bfloat16)
    giants = usual.copy()
    giants[:, 0, 7] = 24_000
    return np.concatenate([every, alike, usual, giants, np.zeros((1, 1, 480), ml_dtypes.bfloat16)])


def test_torch_computes_the_same_bits() -> None:
    states = hard_states()
    rows = quantize(states.view("<u2"))
    values, scales = split(rows)
    expected = by_torch(states)
    assert np.array_equal(values.view(np.uint8), expected[0].view(torch.uint8).numpy())
    assert np.array_equal(scales, expected[1].numpy())
    assert np.array_equal(read(rows[:, 0]).view(np.int16), expected[2].view(torch.int16).numpy()[:, 0])
    assert np.array_equal(scales == 0, ~states.astype(np.float32).any(axis=-1)), "zero for states of zeros alone"


def test_the_largest_value_is_exact_and_the_others_within_half_a_unit() -> None:
    """Of three bits of mantissa, or of the smallest number, 2^-9; and what bfloat16 adds."""
    given = hard_states()[:, 0].astype(np.float64)
    found = read(quantize(hard_states().view("<u2"))[:, 0]).astype(np.float64)
    largest = np.abs(given).max(axis=1, keepdims=True)
    is_largest = np.abs(given) == largest
    assert np.array_equal(found[is_largest], given[is_largest])
    normal = (largest > 2.0**-100)[:, 0]  # float32 has no scale as exact for less
    bound = np.maximum(np.abs(given) / 16, largest / 448 * 2.0**-10) * 1.0001 + np.abs(found) * 2.0**-8
    assert (np.abs(found - given) <= bound)[normal].all()
    assert (np.abs(found[-201:-1]) > 0).any(axis=1).all(), "a giant leaves of the others what float8 can hold"


def reference(given: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return by_torch(np.ascontiguousarray(given))[2].view(torch.int16).numpy().view(ml_dtypes.bfloat16)


@pytest.mark.parametrize("place", ["loose", "packed", "merged"])
def test_a_store_has_them_and_their_error_wherever_they_lie(
    make_filled: Callable, block_of: Callable[[str], str], place: str
) -> None:
    filled = make_filled(() if place == "merged" else (1, 256, 700), storage_dtype=FLOAT8)
    shard_bytes = 512 * filled.spec.bytes_per_token
    if place == "packed":
        compact(filled.path, filled.digest, shard_bytes=shard_bytes)
    for length in (1, 256, 700) if place == "merged" else ():
        filled.write(length, seed=length)
        Compaction(filled.path, filled.spec, shard_bytes).pack_loose()
    if place == "merged":
        Compaction(filled.path, filled.spec, shard_bytes).merge(open_packs(filled.path, filled.spec))
    assert len(filled.packs()) == (place != "loose")
    store = open_store(filled.path)
    namespace: dict = {}
    exec(block_of("python"), namespace)  # noqa: S102 our own page
    reader = namespace["Reader"](filled.path, filled.digest)
    for name, (input_ids, given) in filled.samples.items():
        expected = reference(given)
        assert store[name].hidden_states().tobytes() == expected.tobytes()
        assert np.array_equal(store[name].input_ids, input_ids)
        assert np.array_equal(reader[name][1], expected.astype(np.float32))
        norms = [np.linalg.norm(a.astype(np.float64), axis=2) for a in (expected.astype(np.float64) - given, given)]
        error = norms[0] / norms[1]
        assert store[name].rounding_error == pytest.approx((error.max(), error.mean()), rel=1e-5)
        assert 0 < error.max() < 1 / 16
    assert store.rounding_error().largest == max(store[name].rounding_error.largest for name in store)
    report = check_store(filled.path, filled.digest)
    assert (report.checked, report.findings) == (3, [])


def test_reading_selects_layers_and_rows_and_gives_the_float8_itself(make_filled: Callable) -> None:
    filled = make_filled((700, 20), storage_dtype=FLOAT8)
    (name,) = (name for name, (ids, _) in filled.samples.items() if len(ids) == 700)
    expected, store = reference(filled.samples[name][1]), open_store(filled.path)
    for layers, slots in ((["final", 2, 2], [2, 0, 0]), (None, [0, 1, 2])):
        for rows in (slice(None), slice(250, 520), slice(256, 512), slice(5, 5)):
            assert np.array_equal(store[name].hidden_states(layers, rows), expected[rows][:, slots])
            values, scales = store[name].float8_states(layers, rows)
            assert (values.dtype, values.shape) == (ml_dtypes.float8_e4m3fn, expected[rows][:, slots].shape)
            again = (values.astype(np.float32) * scales[..., None]).astype(ml_dtypes.bfloat16)
            assert np.array_equal(again, expected[rows][:, slots])
    out = np.empty((3, 720, filled.spec.hidden_size), ml_dtypes.bfloat16)
    batch = store.read_hidden_states(filled.samples, threads=2, out=out)
    assert all(np.array_equal(batch[i], store[n].hidden_states()) for i, n in enumerate(filled.samples))
    assert np.shares_memory(batch[0], out)
    with pytest.raises(SampleShapeError, match="give a contiguous array of bfloat16"):
        store.read_hidden_states(filled.samples, out=out.astype(ml_dtypes.float8_e4m3fn))


def test_what_is_stored_of_them_is_plain_zarr_and_smaller(make_filled: Callable, tmp_path: Path) -> None:
    exact = make_filled((700,), path=tmp_path / "exact", hidden_size=512)
    filled = make_filled((700,), path=tmp_path / "float8", hidden_size=512, storage_dtype=FLOAT8)
    assert open_store(filled.path).stored_bytes() < 0.7 * open_store(exact.path).stored_bytes()
    folder = filled.objects()[0] / "hidden_states"
    source = zarr.open_array(folder, mode="r")
    twin = zarr.create_array(
        tmp_path / "twin",
        shape=source.shape,
        dtype="uint8",
        chunks=source.chunks,
        shards=source.shards,
        compressors=[
            BloscCodec(typesize=1, cname="zstd", clevel=1, shuffle="shuffle", blocksize=1 << 20),
            Crc32cCodec(),
        ],
        attributes={"logical_dtype": FLOAT8, "scale_dtype": "float32"},
        config={"write_empty_chunks": True},
    )
    twin[:] = source[:]
    assert json.loads((tmp_path / "twin/zarr.json").read_text()) == json.loads((folder / "zarr.json").read_text())
    driver = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    assert np.array_equal(tensorstore.open(driver, read=True).result().read().result(), source[:])
    values, scales = split(source[:])
    found = open_store(filled.path)[filled.objects()[0].name].float8_states()
    assert np.array_equal(found.values.view(np.uint8), values.view(np.uint8))
    assert np.array_equal(found.scales, scales)


def test_a_damaged_packed_sample_is_found_set_aside_and_made_again(make_filled: Callable) -> None:
    filled = make_filled((20, 300), storage_dtype=FLOAT8)
    compact(filled.path, filled.digest)
    shard = filled.packs()[0] / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[9] ^= 1
    shard.write_bytes(data)
    findings = check_store(filled.path, filled.digest).findings
    assert [finding.reason for finding in findings] == ["checksum"]
    assert repair(filled.path, findings) == 1
    (lost,) = set(filled.samples) - set(open_store(filled.path))
    seed = list(filled.samples).index(lost)
    filled.write(len(filled.samples[lost][0]), seed)
    compact(filled.path, filled.digest)
    assert open_store(filled.path)[lost].hidden_states().tobytes() == reference(filled.samples[lost][1]).tobytes()
    assert not check_store(filled.path, filled.digest).findings


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ({(3, 5): 0x7F}, NonFiniteError),
        ({(3, 5): 0xFF}, NonFiniteError),
        ({(3, -1): 0x7F, (3, -2): 0x80}, NonFiniteError),
        ({(3, -1): 0x7F, (3, -2): 0xFF}, NonFiniteError),
        ({(3, -1): 0x7F, (3, -2): 0x7F}, NonFiniteError),
        ({(3, -1): 0, (3, -2): 0, (3, -3): 0, (3, -4): 0}, AllZeroError),
        ({(4, 0): 1}, RowCountError),
        ({(4, -1): 1}, RowCountError),
    ],
)
def test_values_that_cannot_be_are_found(scaled: StateSpec, damage: dict, error: type[Exception]) -> None:
    """The number NaN; a scale that is infinite, NaN, or too large; one of zero; something after the last token."""
    rows = np.zeros((TOKENS_PER_CHUNK, scaled.stored_width), np.uint8)
    states = np.random.default_rng(0).normal(size=(4, 1, scaled.hidden_size)).astype(ml_dtypes.bfloat16)
    rows[:4] = quantize(states.view("<u2"))[:, 0]
    ValueCheck(scaled, 4).check(0, 0, rows)
    for place, byte in damage.items():
        rows[place] = byte
    with pytest.raises(error):
        ValueCheck(scaled, 4).check(0, 0, rows)


def test_they_are_a_spec_of_their_own_that_says_so(spec: StateSpec, scaled: StateSpec, tmp_path: Path) -> None:
    assert StateSpec.from_json(scaled.to_json()) == scaled
    assert set(scaled.to_json()) == set(spec.to_json())
    assert scaled.digest() != spec.digest()
    assert not scaled.is_exact
    assert scaled.bytes_per_token == spec.bytes_per_token
    with pytest.raises(SpecError, match="mantissa_bits is 3; it must be None for float8_e4m3fn"):
        replace(scaled, mantissa_bits=3)
    init_store(tmp_path / "store")
    add_spec(tmp_path / "store", scaled)
    states = np.ones((3, scaled.num_captured, scaled.hidden_size), np.float32)
    with pytest.raises(SpecError, match="that of bfloat16 states; these are float32"):
        ObjectWriter(tmp_path / "store", scaled).write(np.arange(3, dtype=np.int32), states)


def test_only_they_are_given_as_float8(filled) -> None:
    sample = next(iter(open_store(filled.path).values()))
    with pytest.raises(SpecError, match="states are stored in bfloat16, not in float8; use hidden_states"):
        sample.float8_states()
