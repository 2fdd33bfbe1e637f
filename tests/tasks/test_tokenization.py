import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.store import init_store
from tasks.errors import DataNotFoundError, EmptyDataError, TokenizerError, TruncatedDataError
from tasks.inputs.shapes import ShapeRules
from tasks.rejections import BY_CHOICE, REASONS
from tasks.supervision import Supervision
from tasks.token_options import TokenOptions
from tasks.tokenization import tokenize_chats
from tasks.tokens_specs import make_tokens_spec, tokenizer_spec

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, you."}]}
LIMITS = {"max_length": 8192}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes rows (objects, or bytes as they are) to a file."""

    def write(*rows, name="chats.jsonl"):
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


@pytest.fixture
def root(tmp_path):
    init_store(tmp_path / "store")
    return tmp_path / "store"


def tokenize(root, model, *data, workers=1, on_progress=None, **chosen):
    options = TokenOptions(**LIMITS | chosen)
    spec = make_tokens_spec(model, data, options)
    return tokenize_chats(root, spec, model, data, options=options, workers=workers, on_progress=on_progress)


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def model_copy(smollm2, tmp_path):
    """Return a folder with SmolLM2's tokenizer, free to be changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        shutil.copyfile(smollm2 / name, folder / name)
    return folder


def test_ids_are_those_of_the_model_s_own_template_with_nothing_doubled(root, smollm2, write):
    from transformers import AutoTokenizer

    tokens = tokenize(root, smollm2, write(GOOD))
    expected = AutoTokenizer.from_pretrained(smollm2).apply_chat_template(GOOD["messages"], return_dict=True)
    assert tokens.input_ids(0).tolist() == expected["input_ids"]
    assert tokens.accounting == {"in": 1, "rejected": {}, "truncated": 0}


ANSWER = {"role": "assistant", "content": "a"}
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


def test_missing_and_cut_off_files_are_refused_before_anything_is_read(smollm2, write, tmp_path):
    with pytest.raises(DataNotFoundError):
        make_tokens_spec(smollm2, [tmp_path / "gone.jsonl"], TokenOptions(**LIMITS))
    path = write(GOOD, GOOD)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TruncatedDataError, match="line 2"):
        make_tokens_spec(smollm2, [write(GOOD, name="whole.jsonl"), path], TokenOptions(**LIMITS))


def digest(model, *data, **limits):
    return make_tokens_spec(model, data, TokenOptions(**(LIMITS | limits))).digest()


def test_the_digest_follows_content_not_paths_or_times(model_copy, smollm2, write, tmp_path):
    data = write(GOOD)
    before = digest(model_copy, data)
    os.utime(data, (1, 1))
    os.utime(model_copy / "tokenizer.json", (1, 1))
    moved = data.rename(tmp_path / "renamed.jsonl")
    assert digest(model_copy.rename(tmp_path / "moved"), moved) == before
    assert digest(smollm2, moved) == before


def test_a_template_may_move_between_its_two_places(model_copy, write):
    data = write(GOOD)
    before = digest(model_copy, data)
    config = json.loads((model_copy / "tokenizer_config.json").read_text())
    config["chat_template"] = (model_copy / "chat_template.jinja").read_text("utf-8")
    (model_copy / "tokenizer_config.json").write_text(json.dumps(config))
    (model_copy / "chat_template.jinja").unlink()
    assert digest(model_copy, data) == before


def test_the_digest_changes_with_all_that_tokens_depend_on(model_copy, write):
    data, other = write(GOOD), write(GOOD, GOOD, name="other.jsonl")
    digests = [digest(model_copy, data), digest(model_copy, other)]
    digests += [digest(model_copy, data, other), digest(model_copy, other, data)]
    digests += [digest(model_copy, data, max_length=9), digest(model_copy, data, too_long="truncate")]
    with (model_copy / "chat_template.jinja").open("a") as template:
        template.write(" ")
    digests.append(digest(model_copy, data))
    with (model_copy / "tokenizer.json").open("a") as vocabulary:
        vocabulary.write(" ")
    digests.append(digest(model_copy, data))
    config = json.loads((model_copy / "tokenizer_config.json").read_text())
    (model_copy / "tokenizer_config.json").write_text(json.dumps(config | {"add_prefix_space": True}))
    digests.append(digest(model_copy, data))
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    ("name", "words"), [("chat_template.jinja", "no chat template"), ("tokenizer.json", "no tokenizer")]
)
def test_a_model_without_tokenizer_or_template_is_refused(model_copy, name, words):
    (model_copy / name).unlink()
    with pytest.raises(TokenizerError, match=words):
        tokenizer_spec(model_copy)


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


def test_the_spec_needs_neither_torch_nor_transformers(smollm2, write):
    code = (
        "import sys; from pathlib import Path; from tasks.tokens_specs import make_tokens_spec as make;"
        "from tasks.token_options import TokenOptions;make(Path(sys.argv[1]), [Path(sys.argv[2])], TokenOptions(9));"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(smollm2), str(write(GOOD))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"


def test_the_real_chats_are_all_kept(root, smollm2):
    data = Path(__file__).parents[2] / "flows" / "data" / "mt_bench_smollm2.jsonl"
    tokens = tokenize(root, smollm2, data)
    assert tokens.accounting == {"in": 70, "rejected": {}, "truncated": 0}


CHOICES = {
    "max_length": 9,
    "too_long": "truncate_turns",
    "data_format": "jsonl",
    "shape": ShapeRules("messages"),
    "template_kwargs": {"a": 1},
    "template_date": "2026-11-30",
    "supervision": Supervision(turns="last"),
    "min_supervised_tokens": 2,
    "duplicates": "reject",
    "max_total_tokens": 5,
    "sample_fraction": 0.5,
    "sample_seed": 1,
    "cut_off": "keep",
    "reject_content": True,
}
MORE = [
    {"shape": ShapeRules(columns={"messages": "chat"})},
    {"shape": ShapeRules(role_names={"a": "user"})},
    {"supervision": Supervision(role_weights={"assistant": 1.0, "tool": 0.5})},
    {"supervision": Supervision(end_of_turn=False)},
]


def test_every_choice_is_in_the_digest(smollm2, write):
    data = write(GOOD)
    assert set(CHOICES) | {"chat_template"} == {field.name for field in fields(TokenOptions)}
    digests = [digest(smollm2, data), *(digest(smollm2, data, **{k: v}) for k, v in CHOICES.items())]
    digests += [digest(smollm2, data, **choice) for choice in MORE]
    assert len(set(digests)) == len(digests)


def test_an_edited_file_or_template_is_seen_though_its_size_and_times_are_kept(smollm2, write, tmp_path):
    data, template = write(GOOD), tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}A")
    before = digest(smollm2, data, chat_template=template)
    for path, old, new in ((data, b"Hello", b"Hallo"), (template, b"A", b"B")):
        stat = path.stat()
        path.write_bytes(path.read_bytes().replace(old, new))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
        after = digest(smollm2, data, chat_template=template)
        assert after != before
        before = after


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


def decode(model, ids):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model).decode(ids)


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
