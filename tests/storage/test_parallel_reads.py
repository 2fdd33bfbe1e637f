"""Many samples read on threads are what each is when read alone."""

import multiprocessing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from storage import open_store, parallel_reads
from storage.errors import ChecksumError, SampleNotFoundError, SampleShapeError, SpecError
from storage.packs import compact
from storage.parallel_reads import read_samples


@pytest.fixture
def half_packed(make_filled, monkeypatch):
    """Return a store with packed and loose samples, one of them longer than one thread reads."""
    monkeypatch.setattr(parallel_reads, "PART_ROWS", 512)
    filled = make_filled((1, 255, 256, 257, 1300))
    compact(filled.path, filled.digest, shard_bytes=1024 * filled.spec.bytes_per_token)
    for seed, num_tokens in enumerate((3, 700), start=10):
        filled.write(num_tokens, seed)
    return filled


@pytest.mark.parametrize("threads", [1, 2, 5, None])
@pytest.mark.parametrize(
    ("layers", "rows"), [(None, None), (["final"], slice(250, 260)), ([5, 2, 5], slice(-3, None)), ([], slice(0, 0))]
)
def test_every_sample_is_what_it_is_alone_in_the_order_asked_for(half_packed, layers, rows, threads) -> None:
    store = open_store(half_packed.path)
    names = [*sorted(half_packed.samples, reverse=True), *half_packed.samples]
    found = store.read_hidden_states(names, layers, rows, threads=threads)
    assert len(found) == len(names)
    for name, states in zip(names, found, strict=True):
        alone = store[name].hidden_states(layers, rows)
        assert states.dtype == alone.dtype
        assert states.shape == alone.shape
        assert states.tobytes() == alone.tobytes()


def test_they_are_what_was_written(half_packed) -> None:
    names = list(half_packed.samples)
    for name, states in zip(names, open_store(half_packed.path).read_hidden_states(names, threads=3), strict=True):
        assert states.tobytes() == half_packed.samples[name][1].tobytes()


def test_memory_of_the_caller_is_filled(half_packed) -> None:
    store, names = open_store(half_packed.path), list(half_packed.samples)
    num_rows = store.num_tokens()
    out = np.full((2, num_rows + 5, 48), 7, ml_dtypes.bfloat16)
    found = store.read_hidden_states(names, ["final", 2], threads=2, out=out)
    assert all(np.shares_memory(states, out) for states in found)
    expected = np.concatenate([half_packed.samples[name][1][:, [2, 0]] for name in names])
    assert np.array_equal(out[:, :num_rows].transpose(1, 0, 2), expected)
    assert (out[:, num_rows:] == 7).all()
    read_only = np.zeros((2, num_rows, 48), ml_dtypes.bfloat16)
    read_only.flags.writeable = False
    others = [out[:, : num_rows - 1], out[:1], out[:, :num_rows], out.view(np.uint16), out[..., :9], read_only]
    for other in others:
        with pytest.raises(SampleShapeError, match="give a contiguous array of bfloat16"):
            store.read_hidden_states(names, ["final", 2], out=other)


def test_no_sample_is_no_work(half_packed) -> None:
    assert open_store(half_packed.path).read_hidden_states([]) == []


def test_samples_that_move_into_a_pack_meanwhile_are_found(filled) -> None:
    store = open_store(filled.path)
    samples = [store[name] for name in filled.samples]
    compact(filled.path, filled.digest)
    found = read_samples(samples, filled.spec, threads=2)
    assert [states.tobytes() for states in found] == [states.tobytes() for _, states in filled.samples.values()]


def test_errors_are_those_of_one_sample(half_packed) -> None:
    store = open_store(half_packed.path)
    names = list(half_packed.samples)
    with pytest.raises(SampleNotFoundError, match="has no sample 0000"):
        store.read_hidden_states([*names, "0" * 64])
    with pytest.raises(SpecError, match="layer 3 was not captured"):
        store.read_hidden_states(names, [3])
    with pytest.raises(ValueError, match="step 2"):
        store.read_hidden_states(names, rows=slice(0, 9, 2))
    shard = half_packed.packs()[0] / "hidden_states/c/0/0/0"
    flip_a_bit(shard)
    with pytest.raises(ChecksumError, match="use aerie validate --repair"):
        store.read_hidden_states(names, threads=4)


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_reads_too(half_packed, method: str) -> None:
    store = open_store(half_packed.path)
    names = list(half_packed.samples)
    expected = checksums(half_packed.path, names)  # the parent has read, on threads, before it forks
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(checksums, [(store.path, names)] * 2) == [expected] * 2


def checksums(path: Path, names: list[str]) -> list[float]:
    return [float(np.abs(s.astype(np.float64)).sum()) for s in open_store(path).read_hidden_states(names, threads=2)]
