"""A tokens artifact in a few numbers, and a digest of it that no order changes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import TokensSpec
from storage.tokens import TokensWriter
from tasks import token_summaries
from tasks.token_summaries import summarize_tokens

SAMPLES = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=9), min_size=1, max_size=9
)


def write(root, samples):
    with TokensWriter(root, TokensSpec((repr(samples),), "t", "c")) as writer:
        for row, sample in enumerate(samples):
            ids, mask = zip(*sample, strict=True)
            writer.append(np.array(ids, np.int32), np.array(mask, np.uint8), row)
        return writer.commit()


def test_tokens_are_counted_and_sorted_by_size(tmp_path):
    found = summarize_tokens(write(tmp_path, [[(1, 1)], [(1, 0), (2, 1)], [(3, 0)] * 7 + [(4, 1)]]))
    assert (found.samples, found.tokens, found.supervised_tokens) == (3, 11, 3)
    assert (found.length.edges, found.length.counts) == ([0, 1, 2, 4, 8, 16], [0, 1, 1, 0, 1])
    assert (found.supervised.edges, found.supervised.counts) == ([0, 1, 2], [0, 3])
    assert found.supervised_share.counts == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=SAMPLES, data=st.data())
def test_the_digest_is_the_same_for_the_same_samples_in_any_order(tmp_path_factory, samples, data):
    root = tmp_path_factory.mktemp("tokens")
    shuffled = data.draw(st.permutations(samples))
    found = summarize_tokens(write(root, samples))
    again = summarize_tokens(write(root, [*shuffled]))
    assert again == found
    other = summarize_tokens(write(root, [*samples, samples[0]]))
    assert other.content_digest != found.content_digest, "a copy counts"
    flipped = [[(token, not learnt) for token, learnt in samples[0]], *samples[1:]]
    assert summarize_tokens(write(root, flipped)).content_digest != found.content_digest, "the mask counts"
    assert sum(found.length.counts) == sum(found.supervised_share.counts) == len(samples)


@pytest.mark.parametrize("block", [1, 5, 1 << 22])
def test_it_is_the_same_however_much_is_read_at_a_time(tmp_path, monkeypatch, block):
    tokens = write(tmp_path, [[(i, i % 2) for i in range(1, n)] for n in range(2, 12)])
    whole = summarize_tokens(tokens)
    monkeypatch.setattr(token_summaries, "_BLOCK_TOKENS", block)
    assert summarize_tokens(tokens) == whole
