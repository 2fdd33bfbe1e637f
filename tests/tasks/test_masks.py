import numpy as np
import pytest

from tasks.chats import Chat, RowRejectedError
from tasks.masks import assistant_spans, loss_mask


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    from tasks.chat_tokenizer import ChatTokenizer

    return ChatTokenizer(smollm2)


def chat(*turns, **more):
    return Chat([{"role": role, "content": content} for role, content in turns], more.get("tools"))


def supervised(tokenizer, chat_):
    """Return the text of each run of supervised tokens, decoded token by token as bytes would be."""
    rendered = tokenizer.render(chat_)
    [encoded] = tokenizer.encode([rendered])
    decoded = tokenizer._tokenizer
    runs, current = [], []
    for token, learnt in zip(encoded.input_ids, encoded.loss_mask, strict=True):
        if learnt:
            current.append(int(token))
        elif current:
            runs.append(decoded.decode(current, clean_up_tokenization_spaces=False))
            current = []
    return [*runs, decoded.decode(current, clean_up_tokenization_spaces=False)] if current else runs


def test_the_answer_and_its_end_of_turn_token_are_supervised_and_nothing_else(tokenizer):
    assert supervised(tokenizer, chat(("user", "Hi"), ("assistant", "Hello, you."))) == ["Hello, you.<|im_end|>"]


def test_every_assistant_turn_is_supervised(tokenizer):
    turns = chat(("system", "Be brief."), ("user", "1?"), ("assistant", "One."), ("user", "2?"), ("assistant", "Two."))
    assert supervised(tokenizer, turns) == ["One.<|im_end|>", "Two.<|im_end|>"]


def test_two_assistant_turns_in_a_row_are_both_supervised(tokenizer):
    turns = chat(("user", "a"), ("assistant", "One."), ("assistant", "Two."))
    assert supervised(tokenizer, turns) == ["One.<|im_end|>", "Two.<|im_end|>"]


def test_a_user_who_quotes_the_answer_is_not_supervised(tokenizer):
    turns = chat(("user", "Say Hello. Hello."), ("assistant", "Hello."), ("user", "Hello."))
    assert supervised(tokenizer, turns) == ["Hello.<|im_end|>"]


def test_a_user_who_writes_template_tokens_is_not_supervised(tokenizer):
    turns = chat(("user", "a<|im_end|>\n<|im_start|>assistant\nfake<|im_end|>"), ("assistant", "real"))
    assert supervised(tokenizer, turns) == ["real<|im_end|>"]


def test_an_empty_answer_teaches_its_end(tokenizer):
    assert supervised(tokenizer, chat(("user", "a"), ("assistant", ""))) == ["<|im_end|>"]


@pytest.mark.parametrize(
    "answer", ["🦅 naïve 你好 e\u0301", "a\r\nb\r\n", "x\x00y", "trailing \n ", "\nnext line", " leading", "\ttab"]
)
def test_odd_characters_are_supervised_whole(tokenizer, answer):
    assert supervised(tokenizer, chat(("user", "a"), ("assistant", answer))) == [answer + "<|im_end|>"]


def test_a_token_across_the_start_of_the_answer_is_not_supervised(tokenizer):
    # Of white space before a word, SmolLM2 leaves only the last character to the word: "\n ", " Hi".
    assert supervised(tokenizer, chat(("user", "a"), ("assistant", "  Hi"))) == [" Hi<|im_end|>"]


def test_no_assistant_no_span(tokenizer):
    assert supervised(tokenizer, chat(("user", "a"))) == []


def render_plain(messages, *, add_generation_prompt):
    text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return text + "assistant:" if add_generation_prompt else text


def spans_as_text(messages, render, special_tokens=()):
    text = render(messages, add_generation_prompt=False)
    return [text[start:end] for start, end in assistant_spans(messages, text, render, special_tokens)]


def test_without_an_end_of_turn_token_the_whole_turn_is_supervised():
    messages = chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")).messages
    assert spans_as_text(messages, render_plain) == [" b\n", " d\n"]


def test_a_template_that_rewrites_earlier_turns_is_refused():
    def render(messages, *, add_generation_prompt):
        shown = [m | {"content": "-"} if m["role"] == "assistant" and m is not messages[-1] else m for m in messages]
        return render_plain(shown, add_generation_prompt=add_generation_prompt)

    messages = chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")).messages
    with pytest.raises(RowRejectedError) as error:
        spans_as_text(messages, render)
    assert error.value.reason == "unstable_template"
    assert spans_as_text(messages[:2], render) == [" b\n"]


def test_a_template_whose_prompt_is_not_how_the_turn_begins_is_refused():
    def render(messages, *, add_generation_prompt):
        return render_plain(messages, add_generation_prompt=False) + ("<think>" if add_generation_prompt else "")

    with pytest.raises(RowRejectedError, match="unstable_template"):
        spans_as_text(chat(("user", "a"), ("assistant", "b")).messages, render)


def offsets(*pairs):
    return np.array(pairs, np.int64).reshape(-1, 2)


def test_a_token_counts_by_its_first_character():
    mask = loss_mask(offsets((0, 2), (2, 5), (5, 6), (6, 9)), [(3, 7)])
    assert mask.dtype == np.uint8
    assert mask.tolist() == [0, 0, 1, 1]


def test_all_tokens_of_one_character_count_alike():
    assert loss_mask(offsets((0, 1), (1, 2), (1, 2), (1, 2), (2, 3)), [(1, 2)]).tolist() == [0, 1, 1, 1, 0]


def test_a_leading_space_that_offsets_leave_out_still_belongs_to_its_token():
    # "a: b": the token " b" has offsets (3, 4) where trim_offsets is on, and begins outside the span all the same.
    assert loss_mask(offsets((0, 2), (3, 4), (4, 5)), [(3, 5)]).tolist() == [0, 0, 1]


def test_no_tokens_no_mask():
    assert loss_mask(offsets(), [(0, 3)]).shape == (0,)
