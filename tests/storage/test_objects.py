"""Loose objects: all or nothing, once, by whoever is first."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import Barrier

import ml_dtypes
import numpy as np
import pytest

from storage import StateSpec, init_store, open_store
from storage.checks import check_store
from storage.errors import SampleShapeError, SpecError, StoreFullError, StoreNotFoundError, StoreReadOnlyError
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.store import add_spec


def staged(store: Path) -> list[Path]:
    return list((store / "tmp").iterdir())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_is_written_is_read_back_bit_for_bit(make_filled: Callable, dtype: str) -> None:
    filled = make_filled(storage_dtype=dtype)
    store = open_store(filled.path)
    for name, (input_ids, states) in filled.samples.items():
        found = store[name].hidden_states()
        assert found.dtype == states.dtype
        assert found.tobytes() == states.tobytes()
        assert np.array_equal(store[name].input_ids, input_ids)
        assert store[name].num_tokens == len(input_ids)


def test_the_info_counts_bytes_as_they_lie_on_disk(filled) -> None:
    info = filled.write(300, seed=77)
    folder = filled.path / "objects" / filled.digest / info.sample_hash[:2] / info.sample_hash
    assert info.stored_bytes == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert (info.num_tokens, info.raw_bytes, info.existed) == (300, 300 * filled.spec.bytes_per_token, False)


def test_a_sample_is_written_once(filled) -> None:
    before = {file: file.stat().st_mtime_ns for file in filled.path.rglob("*") if file.is_file()}
    assert filled.write(256, seed=2).existed
    assert {file: file.stat().st_mtime_ns for file in filled.path.rglob("*") if file.is_file()} == before


def test_bfloat16_is_taken_as_such_and_as_its_bits(make_filled: Callable, sample_of: Callable) -> None:
    filled = make_filled(())
    input_ids, states = sample_of(20, 0)
    info = ObjectWriter(filled.path, filled.spec).write(input_ids, states.view(np.uint16))
    found = open_store(filled.path)[info.sample_hash].hidden_states()
    assert found.dtype == ml_dtypes.bfloat16
    assert found.tobytes() == states.tobytes()


def test_arrays_that_do_not_fit_are_refused_and_leave_nothing(make_filled: Callable, sample_of: Callable) -> None:
    filled = make_filled(())
    writer = ObjectWriter(filled.path, filled.spec)
    input_ids, states = sample_of(20, 0)
    for ids, values in (
        (input_ids[:19], states),
        (input_ids, states[:, :2]),
        (input_ids[:0], states[:0]),
        (input_ids[None], states),
    ):
        with pytest.raises(SampleShapeError):
            writer.write(ids, values)
    for ids, values in ((input_ids, states.astype(np.float32)), (input_ids.astype(np.int64), states)):
        with pytest.raises(SpecError):
            writer.write(ids, values)
    assert not filled.objects()
    assert not staged(filled.path)


def test_states_that_are_not_contiguous_are_stored_in_order(make_filled: Callable, sample_of: Callable) -> None:
    filled = make_filled(())
    input_ids, states = sample_of(300, 0)
    transposed = np.asfortranarray(states.view(np.uint16))
    info = ObjectWriter(filled.path, filled.spec).write(input_ids, transposed)
    assert open_store(filled.path)[info.sample_hash].hidden_states().tobytes() == states.tobytes()


LAYERS = (None, ["final"], [5, 2], [2, 2, "final"], [])
ROWS = (None, (0, 1), (250, 520), (256, 512), (-3, None), (699, 10_000), (5, 5), (9, 3), (0, 700))


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_layers_and_rows_select_like_numpy(make_filled: Callable, packed: bool) -> None:
    filled = make_filled((3, 700, 257))
    if packed:
        compact(filled.path, filled.digest, shard_bytes=512 * filled.spec.bytes_per_token)
    (name,) = (name for name, (ids, _) in filled.samples.items() if len(ids) == 700)
    sample = open_store(filled.path)[name]
    for layers, rows in product(LAYERS, ROWS):
        slots = [filled.spec.layers.index(layer) for layer in (filled.spec.layers if layers is None else layers)]
        chosen = None if rows is None else slice(*rows)
        expected = filled.samples[name][1][chosen or slice(None)][:, slots]
        found = sample.hidden_states(layers, chosen)
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


def test_layers_not_captured_and_steps_are_refused(filled) -> None:
    sample = next(iter(open_store(filled.path).values()))
    with pytest.raises(SpecError, match=r"layer 3 was not captured; the store has \[2, 5, 'final'\]"):
        sample.hidden_states([3])
    with pytest.raises(SpecError, match=r"layers are 'final'; give a list, such as \['final'\]"):
        sample.hidden_states("final")
    with pytest.raises(ValueError, match="step 2"):
        sample.hidden_states(rows=slice(0, 9, 2))
    with pytest.raises(TypeError, match=r"rows are 3; give a slice"):
        sample.hidden_states(rows=3)


def test_only_the_chunks_asked_for_are_decoded(make_filled: Callable) -> None:
    filled = make_filled((700,))
    (name,) = filled.samples
    shard = filled.objects()[0] / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[10] ^= 1  # in the first chunk: layer 2, tokens 0 to 255
    shard.write_bytes(data)
    sample = open_store(filled.path)[name]
    states = filled.samples[name][1]
    assert sample.hidden_states(rows=slice(256, 700)).tobytes() == states[256:].tobytes()
    assert sample.hidden_states([5, "final"]).tobytes() == states[:, 1:].tobytes()


def test_writers_that_race_for_a_sample_leave_one_whole_object(make_filled: Callable, sample_of: Callable) -> None:
    filled = make_filled(())
    writer = ObjectWriter(filled.path, filled.spec)
    barrier = Barrier(8)

    def write(seed: int) -> bool:
        barrier.wait()
        return writer.write(*sample_of(600, seed)).existed

    for round_ in range(5):
        with ThreadPoolExecutor(8) as pool:
            existed = list(pool.map(write, [round_] * 8))
        assert existed.count(False) == 1
    assert len(filled.objects()) == 5
    assert not check_store(filled.path, filled.digest).findings
    assert not staged(filled.path)


RACER = """
import sys; from pathlib import Path
sys.path.insert(0, {tests!r})
from conftest import SPEC, make_sample
from storage.objects import ObjectWriter
writer = ObjectWriter(Path(sys.argv[1]), SPEC)
print(sum(not writer.write(*make_sample(300, seed)).existed for seed in range(40)))
"""


def test_processes_that_write_the_same_samples_share_the_work(make_filled: Callable) -> None:
    filled = make_filled(())
    command = [sys.executable, "-c", RACER.format(tests=str(Path(__file__).parent)), str(filled.path)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    written = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(written) == len(filled.objects()) == 40
    report = check_store(filled.path, filled.digest)
    assert (report.checked, report.findings) == (40, [])


def test_no_store_is_said_before_any_work(tmp_path: Path, spec: StateSpec) -> None:
    with pytest.raises(StoreNotFoundError):
        ObjectWriter(tmp_path / "none", spec)


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    small_disk: Callable, spec: StateSpec, sample_of: Callable
) -> None:
    path = small_disk("size=1m") / "store"
    wide = replace(spec, hidden_size=512)
    init_store(path)
    digest = add_spec(path, wide)
    writer = ObjectWriter(path, wide)
    written: list[str] = []

    def fill() -> None:
        for seed in range(100):
            written.append(writer.write(*sample_of(200, seed, wide)).sample_hash)  # noqa: PERF401 the error ends it

    with pytest.raises(StoreFullError, match=rf"no space left at {path} \(up to \d+ bytes were needed\)"):
        fill()
    assert written
    assert not staged(path)
    report = check_store(path, digest)
    assert (report.checked, report.findings) == (len(written), [])
    assert list(open_store(path)) == sorted(written)


def test_a_read_only_store_is_one_clear_error_and_still_reads(small_disk: Callable, make_filled: Callable) -> None:
    disk = small_disk("size=8m")
    filled = make_filled((5, 300), path=disk / "store")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for write in (
        lambda: filled.write(9, seed=9),
        lambda: init_store(filled.path),
        lambda: add_spec(filled.path, replace(filled.spec, engine="other")),
        lambda: compact(filled.path, filled.digest),
    ):
        with pytest.raises(StoreReadOnlyError, match=f"cannot write at {filled.path}"):
            write()
    assert len(open_store(filled.path)) == 2
    assert check_store(filled.path, filled.digest).checked == 2
