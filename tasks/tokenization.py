"""Tokenize: chats to token ids and loss masks, with every row accounted for."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import task

from storage.specs import TokensSpec
from storage.tokens import Tokens, TokensWriter, open_tokens
from tasks.chats import REASONS, Row, RowRejectedError, parse_chat, read_rows
from tasks.errors import EmptyDataError
from tasks.policy import STORE_IS_THE_CACHE
from tasks.tokens_specs import TooLong

if TYPE_CHECKING:
    from tasks.chat_tokenizer import ChatTokenizer, Encoded, Rendered

_BATCH_BYTES = 2 << 20


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
                    writer.append(outcome.input_ids, outcome.loss_mask, num_rows, truncated=outcome.truncated)
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
    limit = max_length if too_long == "reject" else None
    rendered = [_render(tokenizer, row, limit) for row in batch]
    encoded = iter(tokenizer.encode([chat for chat in rendered if not isinstance(chat, RowRejectedError)]))
    for chat in rendered:
        yield chat if isinstance(chat, RowRejectedError) else _fit(next(encoded), max_length, too_long)


def _render(tokenizer: "ChatTokenizer", row: Row, limit: int | None) -> "Rendered | RowRejectedError":
    try:
        rendered = tokenizer.render(parse_chat(row.content))
    except RowRejectedError as error:
        return error
    if limit is not None and tokenizer.is_surely_longer(rendered.text, limit):
        # Encoding 50 MB of text took 12 GB of memory.
        return RowRejectedError("too_long", f"it has {len(rendered.text)} characters, the limit is {limit} tokens")
    return rendered


def _fit(sample: "Encoded", max_length: int, too_long: TooLong) -> "Encoded | RowRejectedError":
    """Cut ids and mask alike, and refuse what leaves nothing to learn."""
    num_tokens = len(sample.input_ids)
    if num_tokens == 0:
        return RowRejectedError("empty")
    if num_tokens > max_length and too_long == "reject":
        return RowRejectedError("too_long", f"it has {num_tokens} tokens, the limit is {max_length}")
    kept = replace(
        sample,
        input_ids=sample.input_ids[:max_length],
        loss_mask=sample.loss_mask[:max_length],
        truncated=num_tokens > max_length,
    )
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


def ensure_tokens(root: Path, spec: TokensSpec, **request: Any) -> Tokens:
    """Return the tokens artifact named by `spec`; made by `tokenize_chats(root, spec, **request)` if missing."""
    return open_tokens(root, spec.digest()) or tokenize_chats(root, spec, **request)


tokenize = task(name="tokenize", **STORE_IS_THE_CACHE)(ensure_tokens)
