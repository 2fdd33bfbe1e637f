"""A draft vocabulary is found under what it was made of, and nothing else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage import init_store
from storage.draft_vocabularies import (
    DraftVocabulary,
    DraftVocabularySpec,
    draft_vocabulary_folder,
    open_draft_vocabulary,
    write_draft_vocabulary,
)
from storage.errors import CorruptObjectError, SpecError
from storage.file_checks import check_files

SPEC = DraftVocabularySpec("d" * 64, "t" * 64, target_size=6, draft_size=3)
MADE = DraftVocabulary(np.array([1, 1, 3]), np.array([0, 1, 1, 0, 0, 1], bool), 0.75)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    init_store(tmp_path / "store")
    write_draft_vocabulary(tmp_path / "store", SPEC, MADE)
    return tmp_path / "store"


def test_it_comes_back_as_trainers_have_it(store: Path) -> None:
    found = open_draft_vocabulary(store, SPEC)
    assert found is not None
    assert (found.d2t.dtype, found.t2d.dtype, found.coverage) == (np.int64, np.bool_, 0.75)
    assert found.target_ids.tolist() == np.flatnonzero(found.t2d).tolist() == [1, 2, 5]


@pytest.mark.parametrize(
    "change", [{"tokens_digest": "e" * 64}, {"tokenizer": "u" * 64}, {"target_size": 7}, {"draft_size": 2}]
)
def test_that_of_another_run_is_never_taken_for_it(store: Path, change: dict) -> None:
    assert open_draft_vocabulary(store, replace(SPEC, **change)) is None


def test_it_may_be_written_twice_and_a_check_of_the_store_lets_it_be(store: Path) -> None:
    write_draft_vocabulary(store, SPEC, MADE)
    assert list((store / "tmp").iterdir()) == []
    assert check_files(store) == []


@pytest.mark.parametrize("size", [0, 7])
def test_sizes_that_do_not_fit_are_refused(size: int) -> None:
    with pytest.raises(SpecError, match="give 1 to 6"):
        replace(SPEC, draft_size=size)


def test_damage_is_noticed(store: Path) -> None:
    folder = draft_vocabulary_folder(store, SPEC.digest())
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        data = file.read_bytes()
        file.write_bytes(
            data.replace(b"d" * 64, b"e" * 64) if file.parent == folder else bytes([data[0] ^ 1]) + data[1:]
        )
        with pytest.raises(CorruptObjectError):
            open_draft_vocabulary(store, SPEC)
        file.write_bytes(data)
    assert open_draft_vocabulary(store, SPEC) is not None
