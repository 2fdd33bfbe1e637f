"""The plots of what a store holds, as files."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from flows.plots import Form, draw_store_plots
from storage.store import Store
from storage.tokens import Tokens
from tasks.state_summaries import NUM_SAMPLES, summarize_states
from tasks.token_summaries import summarize_tokens

if TYPE_CHECKING:
    from tasks.readouts import Agreement


def write_plots(store: Store, tokens: Tokens | None, model: Path | None, folder: Path, form: Form) -> list[Path]:
    """Draw a store: of states by some samples, of tokens by all; files that are there already are replaced.

    Args:
        store: the states.
        tokens: whose lengths are drawn; None: none are.
        model: that of the states, whose LM head reads the next token out of them; None: it is not drawn.
        folder: made if it is not there.
        form: of the images.

    Returns:
        The files, in the order of the report's plots.

    Raises:
        PlotError: the next token cannot be read out of these states with this model.
        CorruptObjectError: something that is looked at is damaged.
        OSError: the folder cannot be written.
    """
    hashes = list(islice(store, NUM_SAMPLES))
    agreement = None if model is None else _measure(store, hashes, model)
    data = summarize_tokens(tokens) if tokens is not None and len(tokens) else None
    images = draw_store_plots(data, summarize_states(store, hashes), agreement, form)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for title, image in images.items():
        file = folder / f"{title.lower().replace(' ', '-')}.{form}"
        file.write_bytes(image)
        files.append(file)
    return files


def _measure(store: Store, hashes: list[str], model: Path) -> "Agreement":
    from tasks.readouts import measure_agreement  # noqa: PLC0415 - torch takes seconds

    return measure_agreement(store, hashes, model)
