"""Tokenize: chats to token ids and loss masks, with every row accounted for."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prefect import task

from storage.digests import canonical_json, file_digest, sha256_hex
from storage.specs import TokensSpec
from storage.tokens import Tokens, TokensWriter, open_tokens
from tasks.chats import REASONS, Row, RowRejectedError, check_file, parse_chat, read_rows
from tasks.errors import EmptyDataError, TokenizerError
from tasks.policy import STORE_IS_THE_CACHE

if TYPE_CHECKING:
    from tasks.chat_tokenizer import ChatTokenizer, Encoded, Rendered

TooLong = Literal["reject", "truncate"]

# Raised when the same rows would become other ids, masks or reasons.
CODE_VERSION = 1

_BATCH_BYTES = 2 << 20

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
        DataError: a data file is missing, of another format, or cut off.
        TokenizerError: as `tokenizer_spec`.
    """
    for path in data:
        check_file(path)
    tokenizer, chat_template = tokenizer_spec(model)
    options = {
        "max_length": max_length,
        "too_long": too_long,
        "transformers": version("transformers"),
        "tokenizers": version("tokenizers"),
    }
    return TokensSpec(tuple(file_digest(path) for path in data), tokenizer, chat_template, options, CODE_VERSION)


def tokenize_chats(  # noqa: PLR0913 - a step says all that it depends on
    root: Path,
    spec: TokensSpec,
    model: Path,
    data: Sequence[Path],
    *,
    max_length: int,
    too_long: TooLong,
    on_progress: Callable[[int, int], None] | None = None,
    batch_rows: int = 512,
) -> Tokens:
    """Render, encode and mask all rows of `data` and commit the tokens artifact named by `spec` under `root`.

    `on_progress(rows, num_bytes)` hears how much of all data has been read. Memory is that of one batch, and the
    artifact is the same whatever the batch.

    Raises:
        EmptyDataError: there is no row, or none is usable.
        TokenizerError: the tokenizer cannot be loaded.
        StorageError: `root` cannot be written.
    """
    from tasks.chat_tokenizer import ChatTokenizer  # noqa: PLC0415 - transformers takes seconds to import

    tokenizer = ChatTokenizer(model)
    rejected: Counter[str] = Counter()
    num_rows = num_bytes = 0
    with TokensWriter(root, spec) as writer:
        for batch in _batches(data, batch_rows):
            for row, outcome in zip(batch, _tokenize(tokenizer, batch, max_length, too_long), strict=True):
                if isinstance(outcome, RowRejectedError):
                    rejected[outcome.reason] += 1
                    writer.reject(row.file.name, row.line, num_rows, outcome.reason, outcome.hint)
                else:
                    writer.append(outcome.input_ids, outcome.loss_mask, num_rows)
                num_rows += 1
                num_bytes += row.num_bytes
            if on_progress:
                on_progress(num_rows, num_bytes)
        _refuse_empty(data, num_rows, rejected)
        return writer.commit()


def _batches(data: Sequence[Path], batch_rows: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    num_bytes = 0
    for row in chain.from_iterable(map(read_rows, data)):
        batch.append(row)
        num_bytes += row.num_bytes
        if len(batch) == batch_rows or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _tokenize(
    tokenizer: "ChatTokenizer", batch: Sequence[Row], max_length: int, too_long: TooLong
) -> Iterator["Encoded | RowRejectedError"]:
    """Return, for each row of the batch in order, its ids and mask, or why it has none."""
    rendered = [_render(tokenizer, row) for row in batch]
    encoded = iter(tokenizer.encode([chat for chat in rendered if not isinstance(chat, RowRejectedError)]))
    for chat in rendered:
        yield chat if isinstance(chat, RowRejectedError) else _fit(next(encoded), max_length, too_long)


def _render(tokenizer: "ChatTokenizer", row: Row) -> "Rendered | RowRejectedError":
    try:
        return tokenizer.render(parse_chat(row.content))
    except RowRejectedError as error:
        return error


def _fit(sample: "Encoded", max_length: int, too_long: TooLong) -> "Encoded | RowRejectedError":
    """Cut ids and mask alike, and refuse what leaves nothing to learn."""
    num_tokens = len(sample.input_ids)
    if num_tokens == 0:
        return RowRejectedError("empty")
    if num_tokens > max_length and too_long == "reject":
        return RowRejectedError("too_long", f"it has {num_tokens} tokens, the limit is {max_length}")
    kept = replace(sample, input_ids=sample.input_ids[:max_length], loss_mask=sample.loss_mask[:max_length])
    if not kept.loss_mask.any():
        cut = f"of its {num_tokens} tokens the first {max_length} were kept" if num_tokens > max_length else ""
        return RowRejectedError("nothing_to_supervise", cut)
    return kept


def _refuse_empty(data: Sequence[Path], num_rows: int, rejected: Counter[str]) -> None:
    files = ", ".join(str(path) for path in data)
    if num_rows == 0:
        raise EmptyDataError(f"{files}: no row; give JSON Lines, each line an object with messages")
    if num_rows == rejected.total():
        reasons = ", ".join(f"{reason} {count}" for reason, count in rejected.most_common())
        cure = REASONS[rejected.most_common(1)[0][0]]
        raise EmptyDataError(f"{files}: none of {num_rows} rows can be used ({reasons}); {cure}")


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


def ensure_tokens(root: Path, spec: TokensSpec, **request: Any) -> Tokens:
    """Return the tokens artifact named by `spec`, made with `tokenize_chats(root, spec, **request)` if it is missing."""
    return open_tokens(root, spec.digest()) or tokenize_chats(root, spec, **request)


tokenize = task(name="tokenize", **STORE_IS_THE_CACHE)(ensure_tokens)
