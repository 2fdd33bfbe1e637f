"""From characters to tokens: a token counts by its first character."""

import numpy as np
import pytest
from chat_templates import make_source
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.masks import first_token, token_spans
from tasks.supervision import Span


class Offsets:
    """The offsets of tokens, as `tokenizers` gives them."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def char_to_token(self, char_pos):
        return next((i for i, (start, end) in enumerate(self.pairs) if start <= char_pos < end), None)

    def token_to_chars(self, token_index):
        return self.pairs[token_index]

    def __len__(self):
        return len(self.pairs)


def spans_of(offsets, *spans):
    text = "x" * max((end for _, end in offsets.pairs), default=0)
    return token_spans(offsets, text, [Span(*span) for span in spans])


def test_a_token_counts_by_its_first_character():
    assert spans_of(Offsets((0, 2), (2, 5), (5, 6), (6, 9)), (3, 7)) == [(2, 4, 1.0)]


def test_all_tokens_of_one_character_count_alike():
    assert spans_of(Offsets((0, 1), (1, 2), (1, 2), (1, 2), (2, 3)), (1, 2, 0.5)) == [(1, 4, 0.5)]


def test_a_leading_space_that_offsets_leave_out_still_belongs_to_its_token():
    assert spans_of(Offsets((0, 2), (3, 4), (4, 5)), (3, 5)) == [(2, 3, 1.0)]


def test_a_token_without_characters_goes_with_the_one_after_it():
    assert spans_of(Offsets((0, 1), (1, 1), (1, 2)), (1, 2)) == [(1, 3, 1.0)]


def test_no_tokens_no_span():
    assert spans_of(Offsets(), (0, 3)) == [(0, 0, 1.0)]


def by_first_characters(offsets, position):
    """Return the first token that begins at or after a character, in the plainest way."""
    starts, ends = offsets[:, 0].copy(), np.maximum.accumulate(offsets[:, 1])
    starts[1:] = np.minimum(starts[1:], ends[:-1])
    return int(np.argmax(np.append(starts, position) >= position))


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=60), data=st.data())
def test_tokens_of_any_text_are_found_at_every_character(smollm2, text, data):
    encoding = make_source("smollm2", smollm2).backend.encode(text, add_special_tokens=False)
    position = data.draw(st.integers(0, len(text)))
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    assert first_token(encoding, text, position) == by_first_characters(offsets, position)


@pytest.mark.parametrize("answer", ["🦅 naïve 你好 e\u0301", "a\r\nb\r\n", "x\x00y", " leading", "\ttab"])
def test_odd_characters_are_found_whole(smollm2, answer):
    encoding = make_source("smollm2", smollm2).backend.encode(
        f"<|im_start|>{answer}<|im_end|>", add_special_tokens=False
    )
    text = f"<|im_start|>{answer}<|im_end|>"
    begin = len("<|im_start|>")
    assert token_spans(encoding, text, [Span(begin, begin + len(answer))]) == [(1, len(encoding) - 1, 1.0)]
