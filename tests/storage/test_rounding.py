"""Lossy rows: rounded as said, by explicit choice, with the error recorded, and told apart from exact ones."""

import json
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import zarr

from storage import StateSpec, open_store
from storage.checks import check_store
from storage.errors import CorruptObjectError, SpecError
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.rounding import round_mantissa
from storage.storage_dtypes import STORAGE_DTYPES
from storage.store import add_spec

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def spec_of(spec: StateSpec, dtype: str, bits: int | None) -> StateSpec:
    return replace(spec, storage_dtype=dtype, mantissa_bits=bits)


@pytest.mark.parametrize("bits", range(1, 7))
def test_every_bfloat16_is_rounded_to_the_nearest_with_ties_to_even(spec: StateSpec, bits: int) -> None:
    given = np.arange(1 << 16, dtype="<u2")
    given = given[(given & 0x7F80) != 0x7F80]
    values = given.view(ml_dtypes.bfloat16).astype(np.float64)
    rounded = round_mantissa(given, spec_of(spec, "bfloat16", bits))
    found = rounded.view(ml_dtypes.bfloat16).astype(np.float64)
    dropped = 7 - bits
    assert not (rounded & ((1 << dropped) - 1)).any()
    below, above = ((given >> dropped) + np.array([[0], [1]])).astype("<u2") << dropped
    low, high = (side.view(ml_dtypes.bfloat16).astype(np.float64) for side in (below, above))
    is_finite = np.isfinite(high)
    nearest = np.where(np.abs(values - low) <= np.abs(values - high), low, high)
    is_tie = np.abs(values - low) == np.abs(values - high)
    assert np.array_equal(found[is_finite & ~is_tie], nearest[is_finite & ~is_tie])
    assert not ((rounded[is_tie & is_finite] >> dropped) & 1).any()
    assert np.array_equal(found[~is_finite], low[~is_finite]), "what would be infinite stays finite"
    assert np.array_equal(np.signbit(found), np.signbit(values))


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 4), ("float32", 9), ("float32", 22)])
def test_other_dtypes_keep_as_many_bits_as_said(spec: StateSpec, dtype: str, bits: int) -> None:
    values = np.random.default_rng(0).normal(size=5000).astype(DTYPES[dtype])
    found = round_mantissa(values, spec_of(spec, dtype, bits))
    assert np.all(np.abs(found.astype(np.float64) - values) <= np.abs(values.astype(np.float64)) * 2.0 ** -(bits + 1))
    assert np.array_equal(round_mantissa(found, spec_of(spec, dtype, bits)), found)
    mantissa, _ = np.frexp(found.astype(np.float64))
    assert np.array_equal(mantissa * 2.0 ** (bits + 1), np.rint(mantissa * 2.0 ** (bits + 1)))


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 3), ("float16", 5), ("float32", 8)])
def test_a_store_has_the_rounded_states_and_their_error_loose_and_packed(
    make_filled: Callable, dtype: str, bits: int
) -> None:
    filled = make_filled(storage_dtype=dtype, mantissa_bits=bits)
    errors = {}
    for packed in (False, True):
        if packed:
            compact(filled.path, filled.digest)
        store = open_store(filled.path)
        for name, (_, given) in filled.samples.items():
            found = store[name].hidden_states().astype(np.float64)
            changed = np.linalg.norm(found - given.astype(np.float64), axis=2)
            relative = changed / np.linalg.norm(given.astype(np.float64), axis=2)
            assert 0 < relative.max() <= 2.0 ** -(bits + 1)
            error = store[name].rounding_error
            assert error == pytest.approx((relative.max(), relative.mean()), rel=1e-5)
            assert errors.setdefault(name, error) == error, "a pack has what the loose object had"
        total = store.rounding_error()
        assert total.largest == max(error.largest for error in errors.values())
        lengths = [len(filled.samples[name][0]) for name in errors]
        assert total.mean == pytest.approx(np.average([e.mean for e in errors.values()], weights=lengths), rel=1e-6)
        assert not check_store(filled.path, filled.digest).findings


def test_what_is_stored_of_them_is_plain_zarr_and_smaller(make_filled: Callable, tmp_path) -> None:
    exact = make_filled((700,), path=tmp_path / "exact", hidden_size=512)
    lossy = make_filled((700,), path=tmp_path / "lossy", hidden_size=512, mantissa_bits=3)
    assert open_store(lossy.path).stored_bytes() < 0.8 * open_store(exact.path).stored_bytes()
    (folder,) = lossy.objects()
    bits = zarr.open_array(folder / "hidden_states", mode="r")[:]
    name = folder.name
    assert np.array_equal(bits.view(ml_dtypes.bfloat16), open_store(lossy.path)[name].hidden_states())
    document = json.loads((folder / "hidden_states/zarr.json").read_text())
    (twin,) = exact.objects()
    assert document == json.loads((twin / "hidden_states/zarr.json").read_text())


@pytest.mark.parametrize("packed", [False, True])
def test_the_reader_of_the_format_page_reads_them_as_any(
    make_filled: Callable, block_of: Callable[[str], str], packed: bool
) -> None:
    filled = make_filled((300, 20), mantissa_bits=2)
    if packed:
        compact(filled.path, filled.digest)
    namespace: dict = {}
    exec(block_of("python"), namespace)  # noqa: S102 our own page
    reader, store = namespace["Reader"](filled.path, filled.digest), open_store(filled.path)
    assert set(reader) == set(filled.samples)
    for name in reader:
        assert np.array_equal(reader[name][1], store[name].hidden_states().astype(np.float32))


def test_exact_and_lossy_states_are_different_specs_and_say_which_they_are(filled, spec: StateSpec) -> None:
    lossy = add_spec(filled.path, replace(spec, mantissa_bits=4))
    assert lossy != filled.digest
    exact_store, lossy_store = open_store(filled.path, filled.digest), open_store(filled.path, lossy)
    assert exact_store.spec.is_exact
    assert exact_store.rounding_error() is None
    assert exact_store[next(iter(exact_store))].rounding_error is None
    assert not lossy_store.spec.is_exact
    assert lossy_store.rounding_error() is None, "it has no samples yet"
    assert len(lossy_store) == 0


def test_exact_specs_keep_their_digests_and_their_keys(spec: StateSpec) -> None:
    assert "mantissa_bits" not in spec.to_json()
    lossy = replace(spec, mantissa_bits=4)
    assert lossy.to_json() == {**spec.to_json(), "mantissa_bits": 4}
    assert StateSpec.from_json(lossy.to_json()) == lossy
    with pytest.raises(SpecError, match="left out where all are stored"):
        StateSpec.from_json({**spec.to_json(), "mantissa_bits": None})


@pytest.mark.parametrize(
    ("dtype", "bits"), [("bfloat16", 7), ("float16", 10), ("float32", 23), ("bfloat16", 0), ("float16", True)]
)
def test_bits_that_a_dtype_does_not_have_are_refused(spec: StateSpec, dtype: str, bits: int) -> None:
    most = STORAGE_DTYPES[dtype].mantissa_bits - 1
    with pytest.raises(SpecError, match=rf"mantissa_bits is {bits}; it must be in 1\.\.{most} for"):
        spec_of(spec, dtype, bits)


@pytest.mark.parametrize("recorded", [None, [0.1], [0.1, 0.1], [0.1, 0.1, 0], ["a", 0.1, 1], 3])
def test_an_object_without_its_error_is_damaged(make_filled: Callable, recorded) -> None:
    filled = make_filled((20,), mantissa_bits=3)
    document = filled.objects()[0] / "zarr.json"
    content = json.loads(document.read_text())
    content["attributes"]["rounding_error"] = recorded
    document.write_text(json.dumps(content))
    with pytest.raises(CorruptObjectError, match="says rounding_error"):
        open_store(filled.path)[filled.objects()[0].name]
    assert [finding.reason for finding in check_store(filled.path, filled.digest).findings] == ["metadata"]


def test_a_flipped_bit_of_a_recorded_error_is_found(make_filled: Callable) -> None:
    filled = make_filled((20,), mantissa_bits=3)
    document = filled.objects()[0] / "zarr.json"
    data = document.read_bytes()
    start = data.index(b"rounding_error")
    for position in range(start, data.index(b"]", start)):
        document.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert check_store(filled.path, filled.digest).findings


def test_the_largest_values_stay_finite_and_zeros_stay_zero(make_filled: Callable) -> None:
    filled = make_filled((), mantissa_bits=2, layers=(0, 5))
    states = np.zeros((3, 2, 48), "<u2")
    states[:, 1] = 0x7F7F
    info = ObjectWriter(filled.path, filled.spec).write(np.arange(3, dtype=np.int32), states)
    sample = open_store(filled.path)[info.sample_hash]
    found = sample.hidden_states().astype(np.float32)
    assert np.isfinite(found).all()
    assert not found[:, 0].any()
    assert sample.rounding_error.largest < 0.25
