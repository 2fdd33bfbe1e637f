"""What a tokens artifact depends on: data files, tokenizer, chat template and options, all by content."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from storage.digests import canonical_json, file_digest, sha256_hex
from storage.specs import TokensSpec
from tasks.chats import check_file
from tasks.errors import EmptyDataError, TokenizerError

TooLong = Literal["reject", "truncate"]

# Raised when the same rows would become other ids, masks or reasons.
CODE_VERSION = 1

# What transformers and tokenizers read, beside tokenizer_config.json and the templates.
_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "tiktoken.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
)
_TOKENIZER_FILES = (*_VOCABULARIES, "merges.txt", "added_tokens.json", "special_tokens_map.json")


def tokenizer_spec(model: Path) -> tuple[str, str]:
    """Return the digests of the tokenizer and of the chat template of a model folder, by content.

    Raises:
        TokenizerError: the folder has no tokenizer or no chat template, or its configuration is not JSON.
    """
    config = _tokenizer_config(model)
    templates = _chat_templates(model, config.pop("chat_template", None))
    files = {name: file_digest(model / name) for name in _TOKENIZER_FILES if (model / name).is_file()}
    if not files.keys() & set(_VOCABULARIES):
        raise TokenizerError(f"{model} has no tokenizer, such as tokenizer.json; copy it from the model's source")
    return sha256_hex(canonical_json({"files": files, "config": config})), sha256_hex(canonical_json(templates))


def make_tokens_spec(model: Path, data: Sequence[Path], *, max_length: int, too_long: TooLong) -> TokensSpec:
    """Return all that the tokens artifact depends on; nothing heavy is imported.

    Raises:
        DataError: a data file is missing, of another format, or cut off; or all are empty.
        TokenizerError: as `tokenizer_spec`.
    """
    for path in data:
        check_file(path)
    if not any(path.stat().st_size for path in data):
        names = ", ".join(map(str, data))
        raise EmptyDataError(f"{names}: no row; give JSON Lines, each line an object with messages")
    tokenizer, chat_template = tokenizer_spec(model)
    options = {
        "max_length": max_length,
        "too_long": too_long,
        "transformers": version("transformers"),
        "tokenizers": version("tokenizers"),
    }
    return TokensSpec(tuple(file_digest(path) for path in data), tokenizer, chat_template, options, CODE_VERSION)


def _tokenizer_config(model: Path) -> dict[str, Any]:
    if not model.is_dir():
        raise TokenizerError(f"model folder {model} does not exist; correct model")
    config = _read_json(model / "tokenizer_config.json")
    # transformers picks the tokenizer's class by it when tokenizer_config.json names none.
    return {**config, "model_type": _read_json(model / "config.json").get("model_type")}


def _chat_templates(model: Path, configured: Any) -> dict[str, str]:
    """Return the templates by name; those in files win, as in transformers."""
    files = {path.stem: path.read_text("utf-8") for path in (model / "additional_chat_templates").glob("*.jinja")}
    if (model / "chat_template.jinja").is_file():
        files["default"] = (model / "chat_template.jinja").read_text("utf-8")
    if files:
        return files
    if isinstance(configured, str):
        return {"default": configured}
    if isinstance(configured, list):
        return {template["name"]: template["template"] for template in configured}
    raise TokenizerError(
        f"{model} has no chat template; add chat_template.jinja, from the model's source if it has one"
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise TokenizerError(f"{path} is not a JSON object ({error}); copy it from the model's source again") from error
