"""What a tokens artifact depends on: data files, tokenizer, chat template and options, all by content."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from storage.digests import canonical_json, file_digest, sha256_hex
from storage.specs import TokensSpec
from tasks.errors import EmptyDataError, TokenizerError
from tasks.inputs.formats import check_file, detect_format
from tasks.token_options import TokenOptions

# Raised when the same rows would become other ids, masks or reasons.
CODE_VERSION = 2

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


def tokenizer_spec(model: Path, chat_template: Path | None = None) -> tuple[str, str]:
    """Return the digests of the tokenizer and of the chat template of a model folder, by content.

    Args:
        model: the folder.
        chat_template: file of a template in place of the folder's.

    Raises:
        TokenizerError: the folder has no tokenizer or no chat template, or its configuration is not JSON.
    """
    own = _tokenizer_config(model).get("chat_template")
    templates = _chat_templates(model, own) if chat_template is None else {"default": _read_template(chat_template)}
    return tokenizer_digest(model), sha256_hex(canonical_json(templates))


def tokenizer_digest(model: Path) -> str:
    """Return the digest of the tokenizer of a model folder, by content and without its chat template.

    Raises:
        TokenizerError: the folder has no tokenizer, or its configuration is not JSON.
    """
    config = _tokenizer_config(model)
    config.pop("chat_template", None)
    files = {name: file_digest(model / name) for name in _TOKENIZER_FILES if (model / name).is_file()}
    if not files.keys() & set(_VOCABULARIES):
        raise TokenizerError(f"{model} has no tokenizer, such as tokenizer.json; copy it from the model's source")
    return sha256_hex(canonical_json({"files": files, "config": config}))


def make_tokens_spec(model: Path, data: Sequence[Path], options: TokenOptions) -> TokensSpec:
    """Return all that the tokens artifact depends on; nothing heavy is imported.

    Args:
        model: whose tokenizer it is.
        data: the files, as `find_files` gives them.
        options: what is made of them.

    Raises:
        DataError: a data file is missing, of another format, or cut off; or all are empty.
        TokenizerError: as `tokenizer_spec`.
    """
    for path in data:
        check_file(path, options.data_format or detect_format(path), keep_cut_off=options.cut_off == "keep")
    if not any(path.stat().st_size for path in data):
        names = ", ".join(map(str, data))
        raise EmptyDataError(f"{names}: no row; give JSON Lines, each line an object with messages")
    tokenizer, chat_template = tokenizer_spec(model, options.chat_template)
    chosen = options.to_spec() | {"transformers": version("transformers"), "tokenizers": version("tokenizers")}
    return TokensSpec(tuple(file_digest(path) for path in data), tokenizer, chat_template, chosen, CODE_VERSION)


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"chat template {path} cannot be read ({error}); correct chat_template") from error


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
