"""Files to a tokens artifact: what is kept, cut or rejected, and that every row is accounted for."""

import json
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenized import ANSWER, GOOD, files_of, tokenize

from storage.store import init_store
from tasks.errors import EmptyDataError, TokenizerError
from tasks.rejections import BY_CHOICE, REASONS


def test_ids_are_those_of_the_model_s_own_template_with_nothing_doubled(root, smollm2, write):
    from transformers import AutoTokenizer

    tokens = tokenize(root, smollm2, write(GOOD))
    expected = AutoTokenizer.from_pretrained(smollm2).apply_chat_template(GOOD["messages"], return_dict=True)
    assert tokens.input_ids(0).tolist() == expected["input_ids"]
    assert tokens.accounting == {"in": 1, "rejected": {}, "truncated": 0}


REJECTED = {
    "invalid_unicode": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "invalid_json": b"{oops}",
    "too_big": b'{"messages": "' + b"x" * (17 << 20) + b'"}',
    "not_an_object": b"[]",
    "no_messages": b'{"text": "a"}',
    "bad_message": b'{"messages": [1]}',
    "not_text": b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
    "template_error": json.dumps({"messages": [{"role": "user", "content": "a"}, ANSWER | {"tool_calls": 7}]}).encode(),
    "nothing_to_supervise": b'{"messages": [{"role": "user", "content": "a"}]}',
    "too_long": json.dumps({"messages": [GOOD["messages"][0], {"role": "assistant", "content": "a b " * 99}]}).encode(),
}

# Those that need other options, data or templates.
ELSEWHERE = {
    "empty",
    "bad_tokens",
    "needs_date",
    "unstable_template",
    "too_little_to_supervise",
    "cut_off",
    "duplicate",
}


@pytest.mark.parametrize("reason", REJECTED)
def test_a_rejected_row_is_named_with_file_line_reason_and_cure(root, looping_template, write, reason):
    tokens = tokenize(
        root, looping_template, write(GOOD, b"", REJECTED[reason], GOOD, name="rows.jsonl"), max_length=64
    )
    [reject] = tokens.rejects()
    assert reject == {"file": "rows.jsonl", "line": 3, "row": 1, "reason": reason, "hint": reject["hint"]}
    assert reject["hint"].endswith(REASONS[reason])
    assert tokens.accounting == {"in": 3, "rejected": {reason: 1}, "truncated": 0}
    assert tokens.rows.tolist() == [0, 2]


def test_an_unpaired_surrogate_is_rejected(root, smollm2, write):
    chat = b'{"messages": [{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "a"}]}'
    assert tokenize(root, smollm2, write(GOOD, chat)).accounting["rejected"] == {"invalid_unicode": 1}


@pytest.fixture
def looping_template(model_copy):
    """A template that goes through tool calls, so that a number of them is an error."""
    with (model_copy / "chat_template.jinja").open("a") as template:
        template.write("{% for m in messages %}{% for call in m.tool_calls or [] %}{% endfor %}{% endfor %}")
    return model_copy


def test_a_template_that_renders_nothing_is_rejected(root, model_copy, write):
    (model_copy / "chat_template.jinja").write_text(
        "{% if messages[1].content != '' %}{{ messages[1].content }}{% endif %}"
    )
    empty = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": ""}]}
    with pytest.raises(EmptyDataError, match="empty 1"):
        tokenize(root, model_copy, write(empty))


def test_every_reason_has_a_row_in_these_tests():
    assert set(REASONS) == set(REJECTED) | ELSEWHERE | BY_CHOICE


content = st.text(max_size=20)

message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": content})

rubbish = st.recursive(
    st.none() | st.integers() | content, lambda inner: st.lists(inner) | st.dictionaries(content, inner)
)

row = st.one_of(
    st.builds(lambda messages: json.dumps({"messages": messages}).encode(), st.lists(message, max_size=4)),
    st.builds(lambda value: json.dumps(value).encode(), rubbish),
    st.builds(lambda value: json.dumps({"messages": value}).encode(), rubbish),
    st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")),
)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(row, max_size=40), st.sampled_from(["reject", "truncate", "truncate_turns"]))
def test_rows_in_are_rows_kept_and_rows_rejected_whatever_the_rows_are(smollm2, tmp_path_factory, rows, too_long):
    folder = tmp_path_factory.mktemp("rows")
    init_store(folder / "store")
    data = folder / "rows.jsonl"
    data.write_bytes(b"\n".join([json.dumps(GOOD).encode(), *rows, b""]))
    tokens = tokenize(folder / "store", smollm2, data, max_length=60, too_long=too_long)
    not_blank = 1 + sum(1 for row in rows if row.strip())
    rejected = list(tokens.rejects())
    assert tokens.accounting["in"] == not_blank == len(tokens) + len(rejected)
    assert sorted([*tokens.rows.tolist(), *(reject["row"] for reject in rejected)]) == list(range(not_blank))
    for i in range(len(tokens)):
        assert len(tokens.input_ids(i)) == len(tokens.loss_mask(i)) <= 60
        assert tokens.loss_mask(i).any()


def test_a_long_sample_is_cut_in_ids_and_mask_alike(root, smollm2, write):
    data = write(json.loads(REJECTED["too_long"]))
    whole = tokenize(root, smollm2, data)
    cut = tokenize(root, smollm2, data, max_length=64, too_long="truncate")
    assert cut.accounting["truncated"] == 1
    assert cut.input_ids(0).tolist() == whole.input_ids(0)[:64].tolist()
    assert cut.loss_mask(0).tolist() == whole.loss_mask(0)[:64].tolist()


def test_a_sample_of_exactly_the_limit_is_kept(root, smollm2, write):
    data = write(GOOD)
    length = tokenize(root, smollm2, data).num_tokens
    assert len(tokenize(root, smollm2, data, max_length=length)) == 1
    with pytest.raises(EmptyDataError, match=r"too_long 1\).*max_length"):
        tokenize(root, smollm2, data, max_length=length - 1)


def test_a_row_far_over_the_limit_is_rejected_without_being_encoded(root, smollm2, write):
    huge = {"messages": [{"role": "user", "content": "a b " * 3_000_000}, {"role": "assistant", "content": "No."}]}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [reject] = tokenize(root, smollm2, write(GOOD, huge), max_length=200).rejects()
    assert reject["reason"] == "too_long"
    assert "characters, the limit is 200 tokens" in reject["hint"]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 1 << 30


def test_a_sample_whose_answer_is_cut_away_is_rejected(root, smollm2, write):
    tokens = tokenize(root, smollm2, write(GOOD), max_length=8192)
    prompt = int(tokens.loss_mask(0).argmax())
    with pytest.raises(EmptyDataError, match="nothing_to_supervise 1"):
        tokenize(root, smollm2, write(GOOD), max_length=prompt, too_long="truncate")


@pytest.fixture
def small_chunks(monkeypatch):
    """Make chunks of a few rows."""
    monkeypatch.setattr("tasks.inputs.blocks.BLOCK_BYTES", 300)
    monkeypatch.setattr("tasks.inputs.lines.BLOCK_BYTES", 300)


@pytest.mark.usefixtures("small_chunks")
def test_the_artifact_is_the_same_whatever_the_number_of_processes(tmp_path, smollm2, write):
    chats = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "x " * i}]}
        for i in range(40)
    ]
    rejected = [row for reason, row in REJECTED.items() if reason != "too_big"]
    data = [write(GOOD, *chats, *rejected, GOOD), write(*rejected, *chats, GOOD, name="more.jsonl")]
    limits = {"max_length": 64, "max_total_tokens": 500, "sample_fraction": 0.8, "duplicates": "reject"}
    made = {}
    for workers in (1, 2, 7):
        init_store(tmp_path / f"store-{workers}")
        tokens = tokenize(tmp_path / f"store-{workers}", smollm2, *data, workers=workers, **limits)
        made[workers] = files_of(tmp_path / f"store-{workers}" / "tokens" / tokens.digest)
    assert made[1] == made[2] == made[7]
    assert made[1]
    assert {"duplicate", "over_total", "not_sampled", "no_messages"} <= set(tokens.accounting["rejected"])


def test_the_artifact_is_the_same_whatever_the_chunks(tmp_path, smollm2, write, monkeypatch):
    data = write(*[GOOD, *(row for reason, row in REJECTED.items() if reason != "too_big")] * 5)
    made = []
    for size in (100, 1000, 1 << 20):
        monkeypatch.setattr("tasks.inputs.blocks.BLOCK_BYTES", size)
        monkeypatch.setattr("tasks.inputs.lines.BLOCK_BYTES", size)
        init_store(tmp_path / f"store-{size}")
        tokens = tokenize(tmp_path / f"store-{size}", smollm2, data, max_length=64)
        made.append(files_of(tmp_path / f"store-{size}" / "tokens" / tokens.digest))
    assert made[0] == made[1] == made[2]


@pytest.mark.usefixtures("small_chunks")
def test_progress_counts_rows_and_bytes_over_all_files(root, smollm2, write):
    heard = []
    first, second = write(*[GOOD] * 9), write(GOOD, name="more.jsonl")
    tokenize(root, smollm2, first, second, on_progress=lambda *counts: heard.append(counts))
    assert len(heard) > 2
    assert heard == sorted(heard)
    assert (9, first.stat().st_size) in heard
    assert heard[-1] == (10, first.stat().st_size + second.stat().st_size)


@pytest.mark.parametrize("rows", [[], [b"", b"  "], [b"{oops}"], [REJECTED["no_messages"], REJECTED["too_long"]]])
def test_without_a_usable_row_nothing_is_written(root, smollm2, write, rows):
    before = files_of(root)
    with pytest.raises(EmptyDataError, match=r"chats\.jsonl: no") as error:
        tokenize(root, smollm2, write(*rows), max_length=64)
    assert "\n" not in str(error.value)
    assert files_of(root) == before


def test_why_no_row_is_usable_is_counted(root, smollm2, write):
    with pytest.raises(EmptyDataError, match=r"none of 3 rows can be used \(invalid_json 2, no_messages 1\)"):
        tokenize(root, smollm2, write(b"{a}", b"{b}", b"{}"))


def test_a_broken_tokenizer_is_refused_in_one_line(root, model_copy, write):
    (model_copy / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be loaded") as error:
        tokenize(root, model_copy, write(GOOD))
    assert "\n" not in str(error.value)


def test_generation_tags_of_a_template_decide_what_is_supervised(root, model_copy, write):
    from transformers import AutoTokenizer

    (model_copy / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}{% endgeneration %}"
        "<|im_end|>{% else %}U:{{ m.content }};{% endif %}{% endfor %}"
    )
    tokens = tokenize(root, model_copy, write({"messages": GOOD["messages"] * 2}))
    learnt = tokens.input_ids(0)[tokens.loss_mask(0) == 1]
    assert AutoTokenizer.from_pretrained(model_copy).decode(learnt) == "Hello, you." * 2


def test_lengths_in_tokenizer_json_do_not_cut_or_pad(root, model_copy, smollm2, write):
    document = json.loads((model_copy / "tokenizer.json").read_text("utf-8"))
    document["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (model_copy / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    data = write(GOOD)
    assert tokenize(root, model_copy, data).num_tokens == tokenize(root, smollm2, data).num_tokens


def test_the_real_chats_are_all_kept(root, smollm2):
    data = Path(__file__).parents[2] / "flows" / "data" / "mt_bench_smollm2.jsonl"
    tokens = tokenize(root, smollm2, data)
    assert tokens.accounting == {"in": 70, "rejected": {}, "truncated": 0}
