"""Which samples the tokens artifacts of a store name."""

import numpy as np
import numpy.typing as npt

from storage.digests import DIGEST_LENGTH
from storage.errors import TornObjectError
from storage.file_checks import tokens_digests
from storage.files import names
from storage.hashes import Hashes, HashIndex, distinct, hashes_of, order_of
from storage.layout import quarantine_folder
from storage.paths import StorePath
from storage.tokens import open_tokens

TOKENS = "tokens"


class References:
    """The samples that a tokens artifact names; asked again, it looks again where artifacts have come or gone.

    A store that has no tokens artifact was filled by other means: every sample of it counts as named. So does every
    sample while an artifact that was set aside has not been made anew, since nobody knows what it named.

    Args:
        store: the store's folder.
    """

    def __init__(self, store: StorePath) -> None:
        self._store = store
        self._digests: list[str] = []
        self._index = HashIndex(hashes_of([]))

    def lack(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Say of each of `hashes` whether no tokens artifact names it.

        Raises:
            CorruptObjectError: an artifact is damaged.
        """
        digests = tokens_digests(self._store)
        if not digests or lost_tokens(self._store):
            return np.zeros(len(hashes), bool)
        if digests != self._digests:
            self._index, self._digests = self._read(digests), digests
        return self._index.find(hashes) < 0

    def _read(self, digests: list[str]) -> HashIndex:
        named = [hashes_of([])]
        for digest in digests:
            tokens = open_tokens(self._store, digest)
            if tokens is None:
                raise TornObjectError(f"tokens artifact {digest} went away meanwhile; run again")
            named.append(tokens.hashes)
        hashes = np.concatenate(named)
        hashes = hashes[distinct(hashes)]
        return HashIndex(hashes[order_of(hashes)])


def lost_tokens(store: StorePath) -> list[str]:
    """Return the digests of tokens artifacts that were set aside and have not been made anew."""
    set_aside = {name[:DIGEST_LENGTH] for name in names(quarantine_folder(store, TOKENS))}
    return sorted(set_aside - set(tokens_digests(store)))
