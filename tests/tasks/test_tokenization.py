import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.store import init_store
from tasks.chats import REASONS
from tasks.errors import DataNotFoundError, EmptyDataError, TokenizerError, TruncatedDataError
from tasks.tokenization import tokenize_chats
from tasks.tokens_specs import make_tokens_spec, tokenizer_spec

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, you."}]}
LIMITS = {"max_length": 8192, "too_long": "reject"}


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


def tokenize(root, model, *data, batch_rows=512, on_progress=None, **limits):
    chosen = LIMITS | limits
    spec = make_tokens_spec(model, data, **chosen)
    return tokenize_chats(root, spec, model, data, batch_rows=batch_rows, on_progress=on_progress, **chosen)


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


REJECTED = {
    "invalid_unicode": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "invalid_json": b"{oops}",
    "not_an_object": b"[]",
    "no_messages": b'{"text": "a"}',
    "bad_message": b'{"messages": [1]}',
    "template_error": b'{"messages": [{"role": "user", "content": "a"}], "tools": 7}',
    "unstable_template": b'{"messages": [{"role": "assistant", "content": "a"}]}',
    "nothing_to_supervise": b'{"messages": [{"role": "user", "content": "a"}]}',
    "too_long": json.dumps({"messages": [GOOD["messages"][0], {"role": "assistant", "content": "a b " * 99}]}).encode(),
}


@pytest.mark.parametrize("reason", REJECTED)
def test_a_rejected_row_is_named_with_file_line_reason_and_cure(root, smollm2, write, reason):
    tokens = tokenize(root, smollm2, write(GOOD, b"", REJECTED[reason], GOOD, name="rows.jsonl"), max_length=64)
    [reject] = tokens.rejects()
    assert reject == {"file": "rows.jsonl", "line": 3, "row": 1, "reason": reason, "hint": reject["hint"]}
    assert reject["hint"].endswith(REASONS[reason])
    assert tokens.accounting == {"in": 3, "rejected": {reason: 1}, "truncated": 0}
    assert tokens.rows.tolist() == [0, 2]


def test_an_unpaired_surrogate_is_rejected(root, smollm2, write):
    chat = b'{"messages": [{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "a"}]}'
    assert tokenize(root, smollm2, write(GOOD, chat)).accounting["rejected"] == {"invalid_unicode": 1}


def test_a_template_that_renders_nothing_is_rejected(root, model_copy, write):
    (model_copy / "chat_template.jinja").write_text(
        "{% if messages[1].content != '' %}{{ messages[1].content }}{% endif %}"
    )
    empty = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": ""}]}
    with pytest.raises(EmptyDataError, match="empty 1"):
        tokenize(root, model_copy, write(empty))


def test_every_reason_but_empty_has_a_row_in_these_tests():
    assert set(REASONS) == set(REJECTED) | {"empty"}


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
@given(st.lists(row, max_size=40), st.sampled_from(["reject", "truncate"]))
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
    huge = {"messages": [{"role": "user", "content": "a b " * 5_000_000}, {"role": "assistant", "content": "No."}]}
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


def test_the_artifact_is_the_same_whatever_the_batch(tmp_path, smollm2, write):
    data = [write(GOOD, *REJECTED.values(), GOOD), write(*REJECTED.values(), GOOD, name="more.jsonl")]
    stores = {}
    for batch_rows in (1, 3, 512):
        init_store(tmp_path / f"store-{batch_rows}")
        tokens = tokenize(tmp_path / f"store-{batch_rows}", smollm2, *data, batch_rows=batch_rows, max_length=64)
        stores[batch_rows] = files_of(tmp_path / f"store-{batch_rows}" / "tokens" / tokens.digest)
    assert stores[1] == stores[3] == stores[512]
    assert stores[1]


def test_progress_counts_rows_and_bytes_over_all_files(root, smollm2, write):
    heard = []
    first, second = write(GOOD, GOOD), write(GOOD, name="more.jsonl")
    tokenize(root, smollm2, first, second, batch_rows=2, on_progress=lambda *counts: heard.append(counts))
    total = first.stat().st_size + second.stat().st_size
    assert heard == [(2, first.stat().st_size), (3, total)]


@pytest.mark.parametrize("rows", [[], [b"", b"  "], [b"{oops}"], list(REJECTED.values())])
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
        make_tokens_spec(smollm2, [tmp_path / "gone.jsonl"], **LIMITS)
    path = write(GOOD, GOOD)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TruncatedDataError, match="line 2"):
        make_tokens_spec(smollm2, [write(GOOD, name="whole.jsonl"), path], **LIMITS)


def digest(model, *data, **limits):
    return make_tokens_spec(model, data, **(LIMITS | limits)).digest()


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
        "make(Path(sys.argv[1]), [Path(sys.argv[2])], max_length=9, too_long='reject');"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(smollm2), str(write(GOOD))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"


def test_the_real_chats_are_all_kept(root, smollm2):
    data = Path(__file__).parents[2] / "flows" / "data" / "mt_bench_smollm2.jsonl"
    tokens = tokenize(root, smollm2, data)
    assert tokens.accounting == {"in": 70, "rejected": {}, "truncated": 0}
