"""The plots of what a store holds, as files."""

from itertools import islice
from pathlib import Path

from flows.plots import Form, draw_store_plots
from storage.store import Store
from storage.tokens import Tokens
from tasks.state_summaries import NUM_SAMPLES, summarize_states
from tasks.token_summaries import summarize_tokens


def write_plots(store: Store, tokens: Tokens | None, folder: Path, form: Form) -> list[Path]:
    """Draw a store: of states by some samples, of tokens by all; files that are there already are replaced.

    Args:
        store: the states.
        tokens: whose lengths are drawn; None: none are.
        folder: made if it is not there.
        form: of the images.

    Returns:
        The files, in the order of the report's plots.

    Raises:
        CorruptObjectError: something that is looked at is damaged.
        OSError: the folder cannot be written.
    """
    states = summarize_states(store, list(islice(store, NUM_SAMPLES)))
    images = draw_store_plots(summarize_tokens(tokens) if tokens is not None and len(tokens) else None, states, form)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for title, image in images.items():
        file = folder / f"{title.lower().replace(' ', '-')}.{form}"
        file.write_bytes(image)
        files.append(file)
    return files
