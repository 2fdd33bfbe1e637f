"""Errors that cross the pipe between an engine process and its parent, by their stable `kind`."""

from collections.abc import Iterator

from storage.errors import StorageError
from tasks import messages
from tasks.engine.errors import EngineError
from tasks.errors import TaskError

KnownError = EngineError | StorageError | TaskError
KNOWN_ERRORS = (EngineError, StorageError, TaskError)


def to_message(error: KnownError) -> messages.Failed:
    """Describe an error to the other process."""
    return messages.Failed(error.kind, " ".join(str(error).split()))


def from_message(failed: messages.Failed) -> KnownError:
    """Rebuild the error that the other process described; an unknown kind becomes a plain `TaskError`."""
    found = next((kind for base in KNOWN_ERRORS for kind in _family(base) if kind.kind == failed.kind), TaskError)
    error = found.__new__(found)
    error.args = (failed.message,)
    return error


def _family(base: type[KnownError]) -> Iterator[type[KnownError]]:
    yield base
    for child in base.__subclasses__():
        yield from _family(child)
