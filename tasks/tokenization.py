"""The task tokenize: rows to token ids and loss masks, with every row accounted for."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefect import task

from storage.paths import StorePath
from storage.specs import TokensSpec
from storage.tokens import Tokens, TokensWriter, open_tokens
from tasks.data_reading import read_all
from tasks.engine.devices import num_cores
from tasks.errors import EmptyDataError
from tasks.intake import Intake
from tasks.policy import RETRY_WHAT_MAY_PASS, STORE_IS_THE_CACHE
from tasks.rejections import REASONS
from tasks.token_options import TokenOptions
from tasks.tokenizer_crew import Crew, OneProcess
from tasks.tokenizer_sources import TokenizerSource, load_source

# Below this, starting processes takes longer than they save.
FEW_BYTES = 8 << 20
MAX_WORKERS = 16

OnProgress = Callable[[int, int], None]


def tokenize_chats(
    root: StorePath,
    spec: TokensSpec,
    model: Path,
    data: Sequence[Path],
    *,
    options: TokenOptions,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Tokens:
    """Render, encode and mask all rows of `data` and commit the tokens artifact named by `spec` under `root`.

    Memory is that of a few chunks, and the artifact is the same whatever the number of processes.

    Args:
        root: the store, or any folder.
        spec: names the artifact; made of the same data and options.
        model: whose tokenizer it is.
        data: the files.
        options: what is made of them.
        workers: processes; by default one a core, or none beside this one where there is little to do.
        on_progress: called with the rows, and the bytes of all data, read so far.

    Raises:
        DataError: a file cannot be read, there is no row, or none is usable.
        TokenizerError: the tokenizer cannot be loaded.
        TokenizationError: a process died.
        StorageError: `root` cannot be written.
    """
    source = load_source(model, options.chat_template)
    with TokensWriter(root, spec) as writer, _open_crew(source, options, data, workers) as crew:
        intake = Intake(writer, options)
        for mark, outcomes in crew.map(read_all(data, options)):
            intake.take(mark.file, outcomes)
            if on_progress:
                on_progress(intake.num_rows, mark.position)
        _refuse_empty(data, intake)
        return writer.commit()


def _open_crew(
    source: TokenizerSource, options: TokenOptions, data: Sequence[Path], workers: int | None
) -> Crew | OneProcess:
    if workers is None:
        workers = min(num_cores(), MAX_WORKERS) if sum(path.stat().st_size for path in data) > FEW_BYTES else 1
    alone = OneProcess(source, options)  # also where others work: it finds a mistake in the template first
    return alone if workers == 1 else Crew(source, options, workers)


def _refuse_empty(data: Sequence[Path], intake: Intake) -> None:
    files = ", ".join(str(path) for path in data)
    if intake.num_rows == 0:
        raise EmptyDataError(
            f"{files}: no row; give rows, such as JSON Lines with an object with messages on each line"
        )
    if intake.num_kept == 0:
        reasons = ", ".join(f"{reason} {count}" for reason, count in intake.rejected.most_common())
        cure = REASONS[intake.rejected.most_common(1)[0][0]]
        raise EmptyDataError(f"{files}: none of {intake.num_rows} rows can be used ({reasons}); {cure}")


def ensure_tokens(root: StorePath, spec: TokensSpec, **request: Any) -> Tokens:
    """Return the tokens artifact named by `spec`; made by `tokenize_chats(root, spec, **request)` if missing."""
    return open_tokens(root, spec.digest()) or tokenize_chats(root, spec, **request)


tokenize = task(name="tokenize", **RETRY_WHAT_MAY_PASS, **STORE_IS_THE_CACHE)(ensure_tokens)
