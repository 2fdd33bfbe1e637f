"""What a tokens artifact depends on: its digest changes with all of that, and with nothing else."""

import json
import os
import subprocess
import sys
from dataclasses import fields

import pytest
from tokenized import GOOD, LIMITS, digest

from tasks.errors import DataNotFoundError, TokenizerError, TruncatedDataError
from tasks.inputs.shapes import ShapeRules
from tasks.supervision import Supervision
from tasks.token_options import TokenOptions
from tasks.tokens_specs import make_tokens_spec, tokenizer_spec


def test_missing_and_cut_off_files_are_refused_before_anything_is_read(smollm2, write, tmp_path):
    with pytest.raises(DataNotFoundError):
        make_tokens_spec(smollm2, [tmp_path / "gone.jsonl"], TokenOptions(**LIMITS))
    path = write(GOOD, GOOD)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TruncatedDataError, match="line 2"):
        make_tokens_spec(smollm2, [write(GOOD, name="whole.jsonl"), path], TokenOptions(**LIMITS))


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


def test_the_spec_needs_neither_torch_nor_transformers(smollm2, write):
    code = (
        "import sys; from pathlib import Path; from tasks.tokens_specs import make_tokens_spec as make;"
        "from tasks.token_options import TokenOptions;make(Path(sys.argv[1]), [Path(sys.argv[2])], TokenOptions(9));"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(smollm2), str(write(GOOD))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"


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
