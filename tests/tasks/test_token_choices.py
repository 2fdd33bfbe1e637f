"""What a user may choose about tokens: templates, splits, duplicates, totals, samples, weights, formats."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenized import ANSWER, GOOD, decode, files_of, tokenize

from tasks.errors import EmptyDataError, TokenizerError, TruncatedDataError
from tasks.inputs.shapes import ShapeRules
from tasks.supervision import Supervision


def test_reordered_renamed_and_wider_rows_are_the_same_samples(root, smollm2, write):
    chats = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "x"}]} for i in range(9)
    ]
    plain = tokenize(root, smollm2, write(*chats))
    renamed = [{"id": i, "chat": row["messages"], "note": "y" * i} for i, row in enumerate(reversed(chats))]
    shape = ShapeRules(columns={"messages": "chat"})
    again = tokenize(root, smollm2, write(*renamed, name="renamed.jsonl"), shape=shape)
    assert again.digest != plain.digest
    assert again.sample_hashes == plain.sample_hashes[::-1]


def test_a_given_template_takes_the_place_of_the_model_s(root, smollm2, write, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokens = tokenize(root, smollm2, write(GOOD), chat_template=template)
    assert decode(smollm2, tokens.input_ids(0)) == "<user>Hi<assistant>Hello, you."
    template.write_text("{% if %}")
    with pytest.raises(TokenizerError, match="mistake in line 1"):
        tokenize(root, smollm2, write(GOOD), chat_template=template)
    with pytest.raises(TokenizerError, match="cannot be read"):
        tokenize(root, smollm2, write(GOOD), chat_template=tmp_path / "gone.jinja")


def test_a_split_row_is_several_samples_and_the_counts_say_so(root, model_copy, write):
    (model_copy / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if loop.last or m.role == 'user' else '-' }}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    row = {
        "messages": [
            t
            for i in range(3)
            for t in ({"role": "user", "content": f"{i}?"}, ANSWER | {"content": "x" * (1 + 99 * i)})
        ]
    }
    tokens = tokenize(root, model_copy, write(GOOD, row), max_length=40)
    assert (
        tokens.accounting == {"in": 2, "split": 2, "rejected": {"too_long": 1}, "truncated": 0}
        or tokens.accounting["split"] == 2
    )
    assert tokens.rows.tolist()[:2] == [0, 1]
    assert len(tokens) + sum(tokens.accounting["rejected"].values()) == 2 + 2
    assert all("sample" in reject["hint"] and reject["row"] == 1 for reject in tokens.rejects())


def test_duplicates_share_their_states_or_are_rejected(root, smollm2, write):
    data = write(GOOD, GOOD | {"id": 2}, GOOD)
    kept = tokenize(root, smollm2, data)
    assert kept.sample_hashes == kept.sample_hashes[:1] * 3
    first = tokenize(root, smollm2, data, duplicates="reject")
    assert first.accounting["rejected"] == {"duplicate": 2}
    assert [reject["line"] for reject in first.rejects()] == [2, 3]


def test_a_total_is_not_gone_beyond_and_copies_cost_nothing(root, smollm2, write):
    chats = [{"messages": [{"role": "user", "content": f"{i}?"}, ANSWER]} for i in range(9)]
    one = tokenize(root, smollm2, write(chats[0])).num_tokens
    data = write(chats[0], chats[0], *chats[1:], b"{oops}", chats[0])
    tokens = tokenize(root, smollm2, data, max_total_tokens=3 * one + 1)
    assert tokens.rows.tolist() == [0, 1, 2, 3]
    assert tokens.accounting == {"in": 12, "rejected": {"invalid_json": 1, "over_total": 7}, "truncated": 0}
    assert [reject["reason"] for reject in tokens.rejects()] == ["invalid_json"]


def test_a_sample_of_the_rows_is_chosen_by_content_and_seed(root, smollm2, write):
    chats = [{"messages": [{"role": "user", "content": f"{i}?"}, ANSWER]} for i in range(200)]
    some = tokenize(root, smollm2, write(*chats), sample_fraction=0.3)
    assert 30 < len(some) < 90
    assert some.accounting["rejected"] == {"not_sampled": 200 - len(some)}
    assert list(some.rejects()) == []
    again = tokenize(root, smollm2, write(*reversed(chats), name="reversed.jsonl"), sample_fraction=0.3)
    assert sorted(again.sample_hashes) == sorted(some.sample_hashes)
    other = tokenize(root, smollm2, write(*chats), sample_fraction=0.3, sample_seed=1)
    assert set(other.sample_hashes) != set(some.sample_hashes)


def test_a_sample_that_teaches_too_little_is_rejected(root, smollm2, write):
    tokens = tokenize(root, smollm2, write(GOOD, {"messages": [GOOD["messages"][0], ANSWER]}), min_supervised_tokens=3)
    [reject] = tokens.rejects()
    assert (reject["line"], reject["reason"]) == (2, "too_little_to_supervise")
    assert "2 tokens are learnt, the least is 3" in reject["hint"]


def test_a_chat_is_cut_behind_the_last_turn_that_fits(root, smollm2, write):
    row = {
        "messages": [
            t for i in range(5) for t in ({"role": "user", "content": f"{i}?"}, ANSWER | {"content": f"Answer {i}."})
        ]
    }
    whole = tokenize(root, smollm2, write(row))
    cut = tokenize(root, smollm2, write(row), max_length=whole.num_tokens // 2, too_long="truncate_turns")
    assert cut.accounting["truncated"] == 1
    text = decode(smollm2, cut.input_ids(0))
    assert text.endswith("Answer 0.<|im_end|>")
    assert decode(smollm2, whole.input_ids(0)).startswith(text)
    with pytest.raises(EmptyDataError, match="too_long 1"):
        tokenize(root, smollm2, write(row), max_length=30, too_long="truncate_turns")


def test_weights_of_roles_are_beside_the_mask(root, smollm2, write):
    supervision = Supervision(role_weights={"assistant": 1.0, "user": 0.25})
    tokens = tokenize(root, smollm2, write(GOOD, GOOD), supervision=supervision)
    assert tokens.is_weighted
    weights = tokens.loss_weight(1)
    assert set(weights.tolist()) == {0.0, 0.25, 1.0}
    assert tokens.loss_mask(1).tolist() == (weights > 0).tolist()
    ids = tokens.input_ids(1)
    assert decode(smollm2, ids[weights == 0.25]) == "Hi<|im_end|>"
    assert decode(smollm2, ids[weights == 1]) == "Hello, you.<|im_end|>"


def test_text_is_learnt_whole_and_tokens_are_taken_as_they_are(root, smollm2, write):
    text = tokenize(root, smollm2, write({"text": "An aerie is a nest."}))
    assert decode(smollm2, text.input_ids(0)) == "An aerie is a nest."
    assert text.loss_mask(0).all()
    rows = [{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 0]}, {"input_ids": [49_152]}, {"input_ids": []}]
    ids = tokenize(root, smollm2, write(*rows, name="ids.jsonl"))
    assert (ids.input_ids(0).tolist(), ids.loss_mask(0).tolist()) == ([5, 6, 7], [0, 1, 0])
    assert [reject["reason"] for reject in ids.rejects()] == ["bad_tokens", "empty"]


def test_a_text_gets_the_special_tokens_of_the_tokenizer_once(root, model_copy, write):
    document = json.loads((model_copy / "tokenizer.json").read_text("utf-8"))
    bos = {"id": 0, "special": True, "content": "<|endoftext|>"}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [bos["id"]], "tokens": ["<|endoftext|>"]}},
    }
    (model_copy / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    config = json.loads((model_copy / "tokenizer_config.json").read_text())
    (model_copy / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<|endoftext|>"}))
    tokens = tokenize(root, model_copy, write({"text": "a"}, {"text": "<|endoftext|>a"}))
    assert tokens.input_ids(0).tolist() == tokens.input_ids(1).tolist()
    assert tokens.input_ids(0)[0] == 0
    assert tokens.loss_mask(0).tolist() == [0, 1]
    chat = tokenize(root, model_copy, write(GOOD, name="chat.jsonl"))
    assert 0 not in chat.input_ids(0)


def test_a_file_that_is_cut_off_is_refused_or_its_rows_kept(root, smollm2, write):
    path = write(GOOD, GOOD)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TruncatedDataError):
        tokenize(root, smollm2, path)
    tokens = tokenize(root, smollm2, path, write(GOOD, name="whole.jsonl"), cut_off="keep")
    assert tokens.rows.tolist() == [0, 2]
    [reject] = tokens.rejects()
    assert (reject["file"], reject["line"], reject["row"], reject["reason"]) == ("chats.jsonl", 2, 1, "cut_off")
    assert f"byte {path.stat().st_size}" in reject["hint"]


def test_a_packed_file_that_is_cut_off_is_refused_while_it_is_read(root, smollm2, write, tmp_path):
    path = tmp_path / "chats.jsonl.gz"
    path.write_bytes(gzip.compress(write(*[GOOD] * 99).read_bytes())[:-20])
    with pytest.raises(TruncatedDataError, match="cannot be unpacked"):
        tokenize(root, smollm2, path)
    assert files_of(root / "tmp") == {}
    kept = tokenize(root, smollm2, path, cut_off="keep")
    assert kept.accounting["rejected"] == {"cut_off": 1}


def test_the_content_of_a_rejected_row_is_told_only_if_it_is_asked_for(root, smollm2, write):
    data = write(GOOD, b'{"messages": "secret"}')
    assert "secret" not in json.dumps(list(tokenize(root, smollm2, data).rejects()))
    [reject] = tokenize(root, smollm2, data, reject_content=True).rejects()
    assert reject["content"] == '{"messages": "secret"}'


@pytest.mark.parametrize("format_", ["parquet", "json", "jsonl.gz", "jsonl.zst"])
def test_every_format_gives_the_same_samples(root, smollm2, write, tmp_path, format_):
    rows = [GOOD, {"messages": [*GOOD["messages"], {"role": "user", "content": "é"}, ANSWER]}] * 5
    lines = write(*rows)
    path = tmp_path / f"rows.{format_}"
    if format_ == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif format_ == "json":
        path.write_text(json.dumps(rows))
    else:
        pack = gzip.compress if format_.endswith("gz") else zstandard.compress
        path.write_bytes(pack(lines.read_bytes()))
    made = tokenize(root, smollm2, path)
    assert made.sample_hashes == tokenize(root, smollm2, lines).sample_hashes
    assert made.rows.tolist() == list(range(10))
