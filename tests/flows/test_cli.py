"""Bad input is refused by a real `aerie` in one line that says what is wrong, and nothing is left behind."""

import json
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from jobs import Job, chat, refusal, snapshot
from published_quantizations import FP8_BLOCK

Spoil = Callable[[Job], None]


def flags(**changes: Any) -> Spoil:
    return lambda job: job.flags.update({name.replace("_", "-"): value for name, value in changes.items()})


def env(**variables: str) -> Spoil:
    return lambda job: job.env.update(variables)


def model(**files: str | None) -> Spoil:
    """Change files of a copy of the model; None removes one."""

    def spoil(job: Job) -> None:
        copy = shutil.copytree(job.flags["model"], job.folder / "model", copy_function=os.link)
        for name, text in files.items():
            path = copy / name.replace("__", ".")
            path.unlink()
            if text is not None:
                path.write_text(text)
        job.flags["model"] = copy

    return spoil


def config(**fields: Any) -> Spoil:
    def spoil(job: Job) -> None:
        text = (job.flags["model"] / "config.json").read_text()
        model(config__json=json.dumps(json.loads(text) | fields))(job)

    return spoil


def data(content: str) -> Spoil:
    def spoil(job: Job) -> None:
        job.flags["data"].write_text(content)

    return spoil


def file(path: str, content: str) -> Spoil:
    def spoil(job: Job) -> None:
        (job.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (job.folder / path).write_text(content)

    return spoil


def both(*spoils: Spoil) -> Spoil:
    def spoil(job: Job) -> None:
        for one in spoils:
            one(job)

    return spoil


ROW = json.dumps(chat("Why?", "Because."))
BAD: dict[str, tuple[Spoil, list[str]]] = {
    "no model folder": (flags(model="nowhere"), ["nowhere does not exist"]),
    "a folder that is no model": (lambda job: job.flags.update(model=job.folder), ["no config.json"]),
    "a file as the model": (lambda job: job.flags.update(model=job.flags["data"]), ["jsonl does not exist, or is no"]),
    "a config that is no JSON": (model(config__json="{"), ["config.json is not valid JSON"]),
    "a config that is a list": (model(config__json="[]"), ["config.json holds a list"]),
    "a config without layers": (model(config__json="{}"), ["architectures"]),
    "no weights": (model(model__safetensors=None), ["no weights", "*.safetensors"]),
    "no tokenizer": (model(tokenizer__json=None), ["no tokenizer"]),
    "no chat template": (model(chat_template__jinja=None), ["no chat template"]),
    "an architecture that is not supported": (
        config(architectures=["GPT2LMHeadModel"]),
        ["GPT2LMHeadModel", "LlamaForCausalLM"],
    ),
    "a quantized model on a CPU": (
        config(quantization_config=FP8_BLOCK),
        ["SGLang cannot run fp8", "128x128 on a CPU", "choose a GPU"],
    ),
    "quantization on a CPU": (flags(quantization="fp8"), ["SGLang cannot run online fp8 on a CPU", "choose a GPU"]),
    "no data file": (flags(data="nowhere.jsonl"), ["nowhere.jsonl cannot be read", "No such file"]),
    "a folder without data": (
        both(lambda job: (job.folder / "none").mkdir(), flags(data="none")),
        ["none is a folder"],
    ),
    "an empty data file": (data(""), ["chats.jsonl: no row"]),
    "a data file cut off": (data(f"{ROW}\n{ROW[:-9]}"), ["chats.jsonl: cut off in line 2", "copy the file again"]),
    "gzip that is cut off": (lambda job: job.flags["data"].write_bytes(b"\x1f\x8b\x08\x00"), ["cut off", "unpacked"]),
    "a layer out of range": (flags(layers="2,9"), ["layer 9 is outside 0..8"]),
    "a layer twice": (flags(layers="4,L//2"), ["'4' and 'L//2' are both layer 4"]),
    "an unknown layer": (flags(layers="last"), ["layer 'last' is not"]),
    "an unknown device": (flags(devices="tpu"), ["'tpu'", "auto, all, cpu"]),
    "more ranks than heads can be dealt out to": (
        both(flags(devices="cpu:tp3"), config(architectures=["MiniMaxM2ForCausalLM"])),
        ["3 ranks cannot share 8 attention heads, 4 of them with", "choose :tp2, :tp4, :tp8 or"],
    ),
    "a GPU where there is none": (both(flags(devices="0"), env(CUDA_VISIBLE_DEVICES="")), ["no GPU", "cpu"]),
    "a value out of bounds": (flags(unit_tokens="0"), ["unit_tokens = '0' (flag)"]),
    "an unknown choice": (flags(dtype="fp8"), ["dtype = 'fp8' (flag)", "float32"]),
    "an unknown variable": (env(AERIE_LAYER="2"), ["AERIE_LAYER (environment)", "AERIE_LAYERS?"]),
    "an unknown key in .env": (file(".env", "AERIE_LAYER=2"), ["AERIE_LAYER (.env)", "AERIE_LAYERS?"]),
    "an unknown key in TOML": (file("aerie.toml", "layer = 2"), ["layer (aerie.toml)", "layers?"]),
    "a broken TOML file": (file("aerie.toml", "layers = "), ["aerie.toml is not TOML"]),
    "no such TOML file": (flags(config="no.toml"), ["no.toml is missing"]),
    "no model at all": (lambda job: job.flags.pop("model"), ["settings without a value: model", "--model"]),
    "another sglang": (
        both(file("sglang-0.4.0.dist-info/METADATA", "Name: sglang\nVersion: 0.4.0\n"), env(PYTHONPATH=".")),
        ["sglang 0.4.0 is installed, 0.5.17 is needed", "pip install sglang==0.5.17"],
    ),
    "a store of another version": (
        file("store/aerie.json", '{"format":"aerie","format_version":2}'),
        ["format version 2", "reads 1"],
    ),
    "a store of another program": (file("store/aerie.json", '{"format":"x"}'), ["format 'x'"]),
    "a header that is no JSON": (file("store/aerie.json", "{"), ["aerie.json is not readable"]),
    "a folder of something else": (file("store/thesis.tex", ""), ["store has no aerie.json"]),
    "a file as the store": (file("store", "text"), ["store is not a folder"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(job: Job, name: str) -> None:
    spoil, words = BAD[name]
    spoil(job)
    before = snapshot(job.folder)
    done = job.run("extract")
    line = refusal(done)
    assert done.stderr.splitlines() == [line]
    assert done.stdout == ""
    for word in words:
        assert word in line
    assert snapshot(job.folder) == before
    assert (job.folder / "store").exists() == any(job.folder / "store" in (path, *path.parents) for path in before)
