"""The one tokens artifact of a store that is meant, where only a prefix of its digest is given, or nothing."""

from storage.errors import SpecError
from storage.file_checks import tokens_digests
from storage.paths import StorePath
from storage.tokens import Tokens, open_tokens


def find_tokens(store: StorePath, prefix: str | None = None) -> Tokens:
    """Open the tokens artifact whose digest begins with `prefix`; the only one, if that is left out.

    Raises:
        SpecError: none fits, or more than one.
        CorruptObjectError: it is damaged.
    """
    known = tokens_digests(store)
    fitting = [digest for digest in known if digest.startswith(prefix or "")]
    tokens = open_tokens(store, fitting[0]) if len(fitting) == 1 else None
    if tokens is None:
        wanted = "are there" if prefix is None else f"begin with {prefix!r}"
        raise SpecError(
            f"{len(fitting)} tokens artifacts {wanted}, exactly one must be meant; {store} has "
            f"{', '.join(digest[:12] for digest in known) or 'none'}; give the tokens_digest of a report as --tokens, "
            "a prefix will do"
        )
    return tokens
