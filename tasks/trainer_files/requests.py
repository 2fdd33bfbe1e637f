"""What a user asks of an export, checked against a store: the plan, or one line that says why there is none."""

from dataclasses import dataclass
from pathlib import Path

from storage.paths import StorePath
from storage.store import open_store
from storage.tokens_listing import find_tokens
from tasks.errors import ExportError
from tasks.trainer_files.formats import FORMATS
from tasks.trainer_files.layer_choice import choose_layers, require_exact
from tasks.trainer_files.plan import ExportPlan, Missing, choose_rows


@dataclass(frozen=True)
class ExportRequest:
    """What a user asks for.

    Attributes:
        store: the store's folder.
        form: name of a format in `FORMATS`.
        folder: where files go.
        spec_digest: which states, a unique prefix will do; None: the only ones.
        tokens_digest: which tokens artifact, likewise.
        layers: an expression in our ids; None: those that the format takes of all that the store has.
        rows: `START:STOP` of the rows that the tokens artifact keeps; None: all.
        missing: what to do about rows that have no states: refuse them all, or leave those out.
        allow_lossy: whether states may be other than the forward gave.
    """

    store: StorePath
    form: str
    folder: Path
    spec_digest: str | None = None
    tokens_digest: str | None = None
    layers: str | None = None
    rows: str | None = None
    missing: Missing = "error"
    allow_lossy: bool = False


def make_export_plan(request: ExportRequest) -> ExportPlan:
    """Return what an export writes; only metadata of the store is read, and nothing is written.

    Raises:
        StorageError: there is no such store, states or tokens artifact; or rows without states.
        ExportError, LayerError: the store does not have what the format needs.
    """
    form = FORMATS.get(request.form)
    if form is None:
        raise ExportError(f"{request.form!r} is no format; give one of {', '.join(FORMATS)}")
    store = open_store(request.store, request.spec_digest)
    choice = choose_layers(form, store.spec, request.layers)
    require_exact(form, store.spec, allow_lossy=request.allow_lossy)
    tokens = find_tokens(store.path, request.tokens_digest)
    kept, num_missing = choose_rows(store, tokens, _parse_rows(request.rows), request.missing)
    return ExportPlan(store, tokens, form, choice, request.folder.expanduser(), kept, num_missing)


def _parse_rows(text: str | None) -> slice:
    start, colon, stop = (text or ":").partition(":")
    try:
        bounds = [int(part) if part.strip() else None for part in (start, stop)]
    except ValueError:
        bounds = [-1]
    if not colon or any(bound is not None and bound < 0 for bound in bounds):
        raise ExportError(f"rows are {text!r}; give START:STOP, such as 0:1000, :1000 or 1000:")
    return slice(*bounds)
