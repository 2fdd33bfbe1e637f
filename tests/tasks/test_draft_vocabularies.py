"""Draft vocabularies have the ids that are learnt most often."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import TokensSpec, init_store
from storage.draft_vocabularies import draft_vocabulary_folder
from storage.tokens import TokensWriter
from tasks.draft_vocabularies import choose_tokens, count_supervised, ensure_draft_vocabulary, make_spec
from tasks.errors import TokenizerError


@pytest.fixture
def tokens(tmp_path):
    init_store(tmp_path)
    with TokensWriter(tmp_path, TokensSpec(("d",), "tokenizer", "template")) as writer:
        for row in range(3):
            writer.append(np.array([7, 7, 7, 3, 2, 9], np.int32), np.array([0, 0, 0, 1, 1, row > 0], np.uint8), row)
        return writer.commit()


def test_only_learnt_tokens_count_and_every_row_does(tokens):
    assert count_supervised(tokens, 10).tolist() == [0, 0, 3, 3, 0, 0, 0, 0, 0, 2]


def test_it_is_made_once_and_found_again(tokens, tmp_path):
    spec = make_spec(tokens, "tokenizer", target_size=10, draft_size=2)
    made = ensure_draft_vocabulary(tmp_path, tokens, spec)
    assert (made.target_ids.tolist(), made.coverage) == ([2, 3], 0.75)
    [place] = draft_vocabulary_folder(tmp_path, spec.digest()).parent.iterdir()
    before = place.stat().st_ino
    again = ensure_draft_vocabulary(tmp_path, tokens, spec)
    assert again.d2t.tolist() == made.d2t.tolist()
    assert place.stat().st_ino == before


def test_tokens_of_another_tokenizer_are_refused(tokens):
    with pytest.raises(TokenizerError, match="made with tokenizer tokenizer, the model has other"):
        make_spec(tokens, "other", target_size=10, draft_size=2)


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=30), data=st.data())
def test_the_most_frequent_are_chosen_and_both_maps_agree(counts, data):
    size = data.draw(st.integers(1, len(counts)))
    made = choose_tokens(np.array(counts), size)
    expected = sorted(sorted(range(len(counts)), key=lambda i: (-counts[i], i))[:size])
    assert made.target_ids.tolist() == np.flatnonzero(made.t2d).tolist() == expected
    assert (made.d2t >= 0).all()
    assert made.coverage == pytest.approx(sum(counts[i] for i in expected) / (sum(counts) or 1), abs=1e-6)
