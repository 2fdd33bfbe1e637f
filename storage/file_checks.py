"""Checks of what a store has beside states: its header, the files of its specs, its tokens artifacts."""

from collections.abc import Callable, Iterator

import numpy as np

from storage.digests import is_digest, sample_hash
from storage.errors import CorruptObjectError, HashMismatchError, NotAStoreError, StoreVersionError, TornObjectError
from storage.files import backend_of, exists, missing_is_torn, names, read_document
from storage.findings import Finding
from storage.layout import FORMAT_VERSION, check_version, digest_in, spec_path, tokens_folder
from storage.paths import StorePath
from storage.store import read_spec, spec_digests
from storage.tokens import Tokens


def check_header(store: StorePath) -> list[Finding]:
    """Check the header of what, by all that lies beside it, is a store of this version.

    Raises:
        StoreNotFoundError, NotAStoreError, StoreVersionError: it is none.
    """
    try:
        check_version(store)
    except (NotAStoreError, StoreVersionError) as error:
        if set(_versions(store)) != {FORMAT_VERSION}:
            raise
        return [Finding(None, "header", "metadata", str(error))]
    return []


def check_files(store: StorePath, on_progress: Callable[[int, int], None] | None = None) -> list[Finding]:
    """Check the files of all specs, and all tokens artifacts in full.

    Args:
        store: the store's folder.
        on_progress: called with the number of files and artifacts done and in all.

    Raises:
        StoreNotFoundError, NotAStoreError, StoreVersionError: it is no store of this version.
    """
    check_version(store)
    checks = [(_check_spec, digest) for digest in sorted({*spec_digests(store), *digests_of_states(store)})]
    checks += [(_check_tokens, digest) for digest in tokens_digests(store)]
    findings = []
    for done, (check, digest) in enumerate(checks, start=1):
        finding = check(store, digest)
        findings += [] if finding is None else [finding]
        if on_progress is not None:
            on_progress(done, len(checks))
    return findings


def digests_of_states(store: StorePath) -> set[str]:
    """Return the digests of the specs of which there are states, or folders for them."""
    return {name for kind in ("objects", "packs") for name in names(store / kind) if is_digest(name)}


def tokens_digests(store: StorePath) -> list[str]:
    """Return the digests of the tokens artifacts."""
    return sorted({digest_in(name) for name in backend_of(store).group_names(store / "tokens")})


def _check_spec(store: StorePath, digest: str) -> Finding | None:
    try:
        if not exists(spec_path(store, digest)):
            raise TornObjectError(f"{spec_path(store, digest)} is missing; run the job that made the states again")
        read_spec(store, digest)
    except CorruptObjectError as error:
        return Finding(None, "spec", error.reason, str(error), digest=digest)
    return None


def _check_tokens(store: StorePath, digest: str) -> Finding | None:
    try:
        with missing_is_torn(f"tokens artifact {digest}"):
            verify_tokens(Tokens(tokens_folder(store, digest), digest))
    except CorruptObjectError as error:
        return Finding(None, "tokens", error.reason, str(error), digest=digest)
    return None


def verify_tokens(tokens: Tokens) -> None:
    """Read a tokens artifact in full.

    Raises:
        CorruptObjectError: a file is missing or damaged, or a row's token ids do not have its sample hash.
    """
    for _ in tokens.rejects():
        pass
    for i, name in enumerate(tokens.sample_hashes):
        if sample_hash(tokens.input_ids(i)) != name:
            raise HashMismatchError(f"row {i} of tokens artifact {tokens.digest} has other token ids than its hash")
        if np.any(tokens.loss_mask(i) > 1):
            raise CorruptObjectError(
                f"row {i} of tokens artifact {tokens.digest} has a loss mask of other than 0 and 1"
            )
        if tokens.is_weighted and not np.array_equal(tokens.loss_weight(i) > 0, tokens.loss_mask(i) == 1):
            raise CorruptObjectError(f"row {i} of tokens artifact {tokens.digest} has weights that do not fit its mask")


def _versions(store: StorePath) -> Iterator[object]:
    """Return the format versions that groups of the store say they have; nothing for what is no group of ours."""
    for document in backend_of(store).group_documents(store):
        try:
            yield read_document(document)["attributes"]["format_version"]
        except (CorruptObjectError, KeyError, TypeError):
            continue  # damaged, or not ours: no evidence either way
