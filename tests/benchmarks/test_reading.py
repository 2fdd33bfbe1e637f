"""The benchmark of reading measures what it says, on stores small enough for a test."""

import numpy as np
import pytest
import reading
from synthetic_stores import make_samples, make_spec
from turns import Times, speed_ratio, take_turns

from storage import open_store
from storage.checks import check_store


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "HIDDEN_SIZE", 64)
    monkeypatch.setattr(reading, "NUM_SAMPLES", 3)
    monkeypatch.setattr(reading, "NUM_TINY_SAMPLES", 20)
    return reading.prepare(tmp_path)


def test_all_formats_hold_the_same_samples_and_the_store_is_sound(folders) -> None:
    packed, loose, tiny = (open_store(folders[name]) for name in ("packed", "loose", "tiny"))
    assert list(packed) == list(loose)
    assert len(tiny) == 20
    for store in (packed, loose, tiny):
        assert not check_store(store.path, store.spec_digest).findings
    assert [len(list(folders[name].iterdir())) for name in reading.FILES] == [3, 3]
    assert not list(packed.path.glob("objects/*/*/*"))
    assert not list(loose.path.glob("packs/*/*"))


def test_decoding_is_of_the_same_bytes_with_and_without_the_store(folders, tmp_path) -> None:
    store = open_store(folders["packed"])
    found = reading.measure_decoding(store, tmp_path / "chunks", 2, 1)
    num_chunks = sum(-(-sample.num_tokens // 256) * 4 for sample in store.values())
    assert found["decoded_gigabytes"] == pytest.approx(num_chunks * 256 * 64 * 2 / 1e9)
    assert all(rate["per_second"] > 0 for rate in found["gigabytes"].values())
    assert all(ratio["wall"] > 0 for ratio in found["store_to"].values())
    assert not (tmp_path / "chunks").exists()


def test_numcodecs_decodes_what_the_store_reads(folders, tmp_path) -> None:
    store = open_store(folders["packed"])
    chunks = reading.encoded_chunks(store)
    blocks = np.zeros((2, len(chunks), 256 * 64 * 2), np.uint8)
    with reading.ChunkFile(tmp_path / "chunks", chunks) as stored:
        reading.decode(stored, blocks[0], 1)
    reading.decode(chunks, blocks[1], 3)
    assert np.array_equal(blocks[0], blocks[1])
    first = next(iter(store.values())).hidden_states([2], slice(0, 100))
    assert blocks[0, 0].tobytes()[: first.nbytes] == first.tobytes()


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_every_format_is_read(folders, state: str) -> None:
    found = reading.measure_formats(folders, 2, state, 1)["formats"]
    assert set(found) == {"packed", "loose", *reading.FILES}
    assert found["packed"]["store_to_this"] == {"wall": 1, "cpu": 1}
    raw = open_store(folders["packed"]).num_tokens() * 4 * 64 * 2 / 1e9
    assert found["packed"]["stored_gigabytes"] < raw < found["torch.save"]["stored_gigabytes"]


def test_random_samples_are_counted(folders) -> None:
    found = reading.measure_random_samples(open_store(folders["tiny"]), 1)
    assert found["stored"] == 20
    assert found["samples"]["per_second"] > 0


def test_what_is_compared_takes_turns_there_and_back_after_a_round_that_does_not_count() -> None:
    calls: list[str] = []
    work = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = take_turns(work, 2, before=lambda name: calls.append(f"before {name}"))
    there, back = ["before a", "a", "before b", "b"], ["before b", "b", "before a", "a"]
    assert calls == [*there, *back, *there]
    assert [len(times[name].wall) for name in "ab"] == [2, 2]


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    ours, theirs = Times([1.0, 2.0, 40.0], [1.0, 1.0, 1.0]), Times([2.0, 2.0, 20.0], [3.0, 3.0, 3.0])
    assert speed_ratio(ours, theirs) == {"wall": 1.0, "cpu": 3.0}
    assert ours.rate(4.0) == {"per_second": 2.0, "best_per_second": 4.0, "per_cpu_second": 4.0}


def test_samples_depend_on_the_seed_alone() -> None:
    spec = make_spec(16)
    first, again, other = (list(make_samples(spec, [5, 300], seed)) for seed in (1, 1, 2))
    for (ids, states), (same_ids, same_states), (other_ids, _) in zip(first, again, other, strict=True):
        assert states.shape == (len(ids), 4, 16)
        assert np.array_equal(ids, same_ids)
        assert np.array_equal(states, same_states)
        assert not np.array_equal(ids, other_ids)
