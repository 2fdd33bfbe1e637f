import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_quantizations import PACKED
from tiny_models import TINY_MODELS

from tasks.engine.architectures import ARCHITECTURES
from tasks.engine.errors import ModelNotFoundError, NotAModelError
from tasks.engine.models import read_model, weight_files
from tasks.engine.quantizations import describe_quantization
from tasks.engine.reference_engine import SAME_AS

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    def make(config: Any = CONFIG, weights: tuple[str, ...] = ("model.safetensors",)) -> Path:
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
        for name in weights:
            (tmp_path / name).write_bytes(b"")
        return tmp_path

    return make


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_real_folder_is_described_as_transformers_reads_it(tiny_model: Callable[[str], Path], name: str) -> None:
    from transformers import AutoConfig

    folder = tiny_model(name)
    written = json.loads((folder / "config.json").read_text())
    if written["model_type"] in SAME_AS:
        theirs = AutoConfig.for_model(
            SAME_AS[written["model_type"]], **_without_type(written.get("text_config", written))
        )
    else:
        theirs = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    ours = read_model(folder)
    assert ours.architecture == written["architectures"][0]
    assert ours.architecture in ARCHITECTURES
    assert (ours.num_layers, ours.hidden_size) == (theirs.num_hidden_layers, theirs.hidden_size)
    longest = min(theirs.max_position_embeddings, getattr(theirs, "attention_chunk_size", 1 << 30))
    assert (ours.vocab_size, ours.context_length) == (theirs.vocab_size, longest)
    assert (ours.dtype, ours.quantization) == ("bfloat16", None)
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]


def _without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "model_type"}


def test_every_architecture_of_the_table_has_a_tiny_model(tiny_model: Callable[[str], Path]) -> None:
    assert {read_model(tiny_model(name)).architecture for name in TINY_MODELS} == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "float32", "torch_dtype": "float16"}, "float32"),
    ],
)
def test_the_dtype_has_an_old_name_and_a_new_one(make_model: Callable, fields: dict, expected: str) -> None:
    assert read_model(make_model(CONFIG | fields)).dtype == expected


def test_a_model_of_text_and_more_is_described_by_its_text(make_model: Callable) -> None:
    outer = {"architectures": ["Qwen3VLForConditionalGeneration"], "dtype": "float16"}
    text = {key: value for key, value in CONFIG.items() if key != "architectures"}
    model = read_model(make_model(outer | {"text_config": text, "hidden_size": 9}))
    assert (model.architecture, model.hidden_size, model.dtype) == (outer["architectures"][0], 64, "float16")


@pytest.mark.parametrize(("chunk", "expected"), [({}, 8192), ({"attention_chunk_size": 4096}, 4096)])
def test_a_sample_is_no_longer_than_what_is_computed_right(make_model: Callable, chunk: dict, expected: int) -> None:
    """Llama-4 attends in chunks, which SGLang's triton attention does not."""
    config = CONFIG | chunk | {"architectures": ["Llama4ForCausalLM"], "max_position_embeddings": 1 << 20}
    assert read_model(make_model(config)).context_length == expected


@pytest.mark.parametrize("chunk", [None, 1 << 20])
def test_without_chunks_it_is_the_context_length(make_model: Callable, chunk: int | None) -> None:
    config = CONFIG | {"architectures": ["Llama4ForCausalLM"], "attention_chunk_size": chunk}
    assert read_model(make_model(config)).context_length == CONFIG["max_position_embeddings"]


def test_what_a_published_wrapper_leaves_to_the_defaults_of_transformers_is_found_there(make_model: Callable) -> None:
    """As google/gemma-3-4b-it has it."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    model = read_model(make_model(config))
    assert (model.num_layers, model.hidden_size) == (34, 2560)
    assert (model.vocab_size, model.context_length) == (262_208, 131_072)


def test_quantization_may_be_said_of_the_language_model_alone(make_model: Callable) -> None:
    """As moonshotai/Kimi-K2.5 has it."""
    text = CONFIG | {"quantization_config": PACKED}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    assert read_model(make_model(config)).quantization == describe_quantization(PACKED)


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_quantization_is_read_from_the_config(make_model: Callable, key: str) -> None:
    model = read_model(make_model(CONFIG | {key: PACKED}))
    assert model.quantization == describe_quantization(PACKED)
    assert model.compute_dtypes == ("bfloat16", "float16")


def test_quantization_is_read_from_the_file_of_modelopt(make_model: Callable) -> None:
    """As nvidia/Llama-3.1-8B-Instruct-FP8 has it: config.json says nothing."""
    folder = make_model()
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    model = read_model(folder)
    assert model.quantization == "modelopt kv_cache_quant_algo=FP8 quant_algo=FP8"
    assert model.compute_dtypes == ("bfloat16", "float16")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (("b.safetensors", "a.safetensors", "pytorch_model.bin"), ["a.safetensors", "b.safetensors"]),
        (("pytorch_model.bin", "training_args.pt"), ["pytorch_model.bin"]),
        (("model.pt",), ["model.pt"]),
        (("model.gguf",), []),
    ],
)
def test_weights_are_those_that_sglang_prefers(make_model: Callable, weights: tuple, expected: list) -> None:
    assert [file.name for file in weight_files(make_model(weights=weights))] == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", ["config.json is not valid JSON"]),
        (b"\xff".decode("latin-1"), ["config.json is not valid JSON"]),
        ([CONFIG], ["holds a list, not an object"]),
        ({}, ["KeyError 'architectures'"]),
        (CONFIG | {"architectures": []}, ["IndexError"]),
        (CONFIG | {"architectures": None}, ["TypeError"]),
        (CONFIG | {"hidden_size": "wide"}, ["ValueError", "wide"]),
        (
            {key: value for key, value in CONFIG.items() if key != "max_position_embeddings"},
            ["max_position_embeddings"],
        ),
        (CONFIG | {"text_config": [1]}, ["TypeError"]),
        (CONFIG | {"model_type": "nobody_knows", "text_config": {"hidden_size": 64}}, ["KeyError 'num_hidden_layers'"]),
        (CONFIG | {"quantization_config": {}}, ["KeyError 'quant_method'"]),
    ],
    ids=repr,
)
def test_a_config_that_describes_no_model_is_refused_in_one_line(
    make_model: Callable, config: Any, words: list[str]
) -> None:
    with pytest.raises(NotAModelError) as error:
        read_model(make_model(config))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_folder_without_weights_is_refused(make_model: Callable) -> None:
    with pytest.raises(NotAModelError, match=r"no weights \(\*\.safetensors"):
        read_model(make_model(weights=("tokenizer.json",)))


def test_a_model_of_which_a_file_of_weights_is_missing_is_refused(make_model: Callable) -> None:
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    folder = make_model(weights=tuple(names[:2]))
    (folder / names[2]).symlink_to("../../blobs/gone")  # as in a cache of the Hub that was cleaned by hand
    index = {"metadata": {}, "weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NotAModelError, match=f"lacks 1 of its 3 files of weights, first {names[2]}; fetch"):
        read_model(folder)
    (folder / names[2]).unlink()
    (folder / names[2]).write_bytes(b"")
    assert weight_files(read_model(folder).path) == [folder / name for name in names]


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_what_is_no_folder_is_not_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotFoundError, match=f"{name} does not exist, or is no folder"):
        read_model(tmp_path / name)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NotAModelError, match=r"no config\.json"):
        read_model(tmp_path)


def test_reading_a_model_imports_nothing_heavy(tiny_model: Callable[[str], Path]) -> None:
    code = (
        "import sys, pathlib; from tasks.engine.models import read_model; read_model(pathlib.Path(sys.argv[1])); "
        "print({'torch', 'transformers', 'sglang'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tiny_model("llama"))]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "set()\n"
