"""The plan says exactly what the store lacks, and refuses what does not fit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from storage.objects import ObjectWriter
from storage.packs import compact
from storage.specs import StateSpec, TokensSpec
from storage.store import add_spec, init_store
from storage.tokens import Tokens, TokensWriter
from tasks.errors import NotEnoughSpaceError
from tasks.planning import EXPECTED_RATIO, PACK_BYTES, RESERVE_BYTES, cut_parts, cut_units, make_plan, require_space

SPEC = StateSpec(
    model_fingerprint="f" * 64,
    architecture="LlamaForCausalLM",
    num_layers=8,
    hidden_size=16,
    layers=(4, "final"),
    compute_dtype="float32",
    storage_dtype="bfloat16",
    quantization=None,
    engine="test",
    engine_version="1",
)
LENGTHS = (5, 300, 7, 5, 1)
# Rows 3 and 5 repeat rows 0 and 1.
ROWS = (0, 1, 2, 0, 4, 1)


def ids_of(sample: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(sample).integers(0, 1000, LENGTHS[sample]).astype(np.int32)


def make_tokens(store: Path, rows: Sequence[int] = ROWS) -> Tokens:
    with TokensWriter(store, TokensSpec(data=(repr(rows),), tokenizer="t", chat_template="c")) as writer:
        for row, sample in enumerate(rows):
            ids = ids_of(sample)
            writer.append(ids, np.ones(len(ids), np.uint8), row)
        return writer.commit()


def put(store: Path, *samples: int, spec: StateSpec = SPEC) -> None:
    for sample in samples:
        ids = ids_of(sample)
        ObjectWriter(store, spec).write(ids, np.ones((len(ids), 2, 16), np.uint16))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    init_store(tmp_path / "store")
    add_spec(tmp_path / "store", SPEC)
    return tmp_path / "store"


def test_an_empty_store_lacks_every_distinct_sample(store: Path) -> None:
    plan = make_plan(store, SPEC, make_tokens(store))
    assert plan.missing.tolist() == [0, 1, 2, 4]
    assert plan.lengths.tolist() == [5, 300, 7, 1]
    assert (plan.rows, plan.duplicates, plan.reused) == (6, 2, 0)
    assert plan.tokens == plan.missing_tokens == 313
    assert plan.raw_bytes == 313 * 2 * 16 * 2
    assert plan.stored_bytes == int(plan.raw_bytes / EXPECTED_RATIO)


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_what_the_store_has_is_reused_wherever_it_lies(store: Path, packed: bool) -> None:
    put(store, 1, 2)
    if packed:
        compact(store, SPEC.digest())
    plan = make_plan(store, SPEC, make_tokens(store))
    assert plan.missing.tolist() == [0, 4]
    assert (plan.reused, plan.duplicates, plan.missing_tokens, plan.tokens) == (2, 2, 6, 313)


def test_states_of_another_spec_are_not_reused(store: Path) -> None:
    other = replace(SPEC, layers=(5, "final"))
    add_spec(store, other)
    put(store, *range(5), spec=other)
    assert make_plan(store, SPEC, make_tokens(store)).reused == 0
    assert make_plan(store, other, make_tokens(store)).reused == 4


def test_other_samples_of_the_store_are_no_part_of_the_plan(store: Path) -> None:
    put(store, 3)
    assert make_plan(store, SPEC, make_tokens(store)).reused == 0


@pytest.mark.parametrize("exists", [True, False], ids=["without the spec", "without the store"])
def test_a_plan_needs_no_store_yet_and_makes_none(tmp_path: Path, exists: bool) -> None:
    init_store(tmp_path / "elsewhere")
    tokens = make_tokens(tmp_path / "elsewhere")
    place = tmp_path / "not" / "there"
    if exists:
        init_store(place)
    plan = make_plan(place, SPEC, tokens)
    assert len(plan.missing) == 4
    assert plan.free_bytes > 0
    assert place.exists() == exists


def test_too_little_room_is_refused_with_what_is_needed_and_what_is_free(store: Path) -> None:
    plan = make_plan(store, SPEC, make_tokens(store))
    needed = plan.stored_bytes + RESERVE_BYTES
    require_space(replace(plan, free_bytes=needed), store, compact=False)
    with pytest.raises(NotEnoughSpaceError) as error:
        require_space(replace(plan, free_bytes=needed - 1), store, compact=False)
    line = str(error.value)
    assert "\n" not in line
    for part in (str(store), f"{needed - 1:,}", f"{needed:,}", "313 tokens", "free some space"):
        assert part in line


def test_a_run_that_packs_needs_room_for_a_pack_beside_its_loose_objects(store: Path) -> None:
    plan = make_plan(store, SPEC, make_tokens(store))
    needed = 2 * plan.stored_bytes + RESERVE_BYTES
    require_space(replace(plan, free_bytes=needed), store, compact=True)
    with pytest.raises(NotEnoughSpaceError):
        require_space(replace(plan, free_bytes=needed - 1), store, compact=True)
    large = replace(plan, stored_bytes=10 * PACK_BYTES)
    require_space(replace(large, free_bytes=11 * PACK_BYTES + RESERVE_BYTES), store, compact=True)


def test_nothing_to_compute_needs_no_room(store: Path) -> None:
    put(store, 0, 1, 2, 4)
    plan = make_plan(store, SPEC, make_tokens(store))
    assert len(plan.missing) == plan.missing_tokens == plan.raw_bytes == 0
    require_space(replace(plan, free_bytes=0), store, compact=True)
    assert cut_units(plan, unit_tokens=10, num_groups=2) == []


@pytest.mark.parametrize(("unit_tokens", "num_groups"), [(1, 1), (10, 1), (10**9, 1), (50, 3), (1, 8)])
def test_units_hold_every_missing_sample_once(store: Path, unit_tokens: int, num_groups: int) -> None:
    put(store, 2)
    plan = make_plan(store, SPEC, make_tokens(store))
    units = cut_units(plan, unit_tokens=unit_tokens, num_groups=num_groups)
    assert np.concatenate(units).tolist() == [0, 1, 4]
    assert all(len(unit) and unit.dtype == np.int64 for unit in units)


def test_a_part_is_planned_as_the_whole_is(store: Path) -> None:
    tokens = make_tokens(store)
    put(store, 1)
    whole = make_plan(store, SPEC, tokens)
    parts = [make_plan(store, SPEC, tokens, range(*ends)) for ends in ((0, 2), (2, 4), (4, 6))]
    assert np.concatenate([part.missing for part in parts]).tolist() == whole.missing.tolist()
    assert np.concatenate([part.stored for part in parts]).tolist() == whole.stored.tolist() == [1]
    assert [part.rows for part in parts] == [2, 2, 2]
    assert [part.duplicates for part in parts] == [0, 1, 1], "of rows that come before, in another part too"


@pytest.mark.parametrize("part_tokens", [1, 7, 1000, 10**9])
def test_parts_have_every_sample_once_and_become_smaller_towards_the_end(store: Path, part_tokens: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 3000)
    plan = replace(make_plan(store, SPEC, make_tokens(store)), missing=np.arange(5, 3005), lengths=lengths)
    parts = cut_parts(plan, part_tokens)
    assert np.concatenate(parts).tolist() == plan.missing.tolist()
    sizes = [plan.tokens_of(part) for part in parts]
    assert max(sizes) < max(part_tokens, 100) + 100
    if part_tokens == 1000:
        assert min(sizes[: len(sizes) // 2]) > 900
        assert all(150 < size < 400 for size in sizes[-8:])


def test_nothing_missing_is_no_part(store: Path) -> None:
    put(store, 0, 1, 2, 3, 4)
    assert cut_parts(make_plan(store, SPEC, make_tokens(store)), 1000) == []
