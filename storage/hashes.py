"""Sample hashes in bulk: a row of 32 bytes each, in ascending order, found by binary search."""

from binascii import hexlify
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from storage.digests import DIGEST_LENGTH, is_digest
from storage.errors import SpecError

HASH_BYTES = DIGEST_LENGTH // 2
# What takes memory is done with so many hashes at a time: as a string, one takes 113 bytes.
PIECE = 1 << 16

Hashes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


def hashes_of(names: Iterable[str]) -> Hashes:
    """Return names as uint8[n, 32], in their order.

    Raises:
        SpecError: one is not a sample hash.
    """
    rest, pieces = iter(names), [np.empty((0, HASH_BYTES), "u1")]
    while piece := list(islice(rest, PIECE)):
        pieces.append(_hashes_of_piece(piece))
    return np.concatenate(pieces)


def _hashes_of_piece(names: list[str]) -> Hashes:
    text = "".join(names)
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if raw.hex() != text or set(map(len, names)) - {DIGEST_LENGTH}:  # fromhex takes capitals and spaces, too
        wrong = next(name for name in names if not is_digest(name))
        raise SpecError(f"{wrong!r} is no sample hash; give 64 lowercase hex digits")
    return np.frombuffer(raw, "u1").reshape(-1, HASH_BYTES)


def names_of(hashes: Hashes) -> list[str]:
    """Return the names of uint8[n, 32], in their order."""
    text = hashes.tobytes().hex()
    return [text[start : start + DIGEST_LENGTH] for start in range(0, len(text), DIGEST_LENGTH)]


def json_pieces(hashes: Hashes) -> Iterator[bytes]:
    """Return the names of some hashes as a JSON list without spaces, piece by piece: of a million it has 67 MB."""
    yield b"["
    for start in range(0, len(hashes), PIECE):
        piece = hashes[start : start + PIECE]
        text = np.empty((len(piece), DIGEST_LENGTH + 3), "u1")
        text[:] = np.frombuffer(b'"' + bytes(DIGEST_LENGTH) + b'",', "u1")
        text[:, 1:-2] = np.frombuffer(hexlify(piece.tobytes()), "u1").reshape(len(piece), DIGEST_LENGTH)
        is_last = start + len(piece) == len(hashes)
        yield text.tobytes()[: -1 if is_last else None]
    yield b"]"


def order_of(hashes: Hashes) -> Positions:
    """Return the positions of `hashes` in ascending order; among equal ones, in the order given."""
    keys = _keys_of(hashes)
    order: Positions = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if bool((ordered[1:] == ordered[:-1]).any()):  # rare but for copies of one sample: the other bytes decide
        words = np.ascontiguousarray(hashes).view(">u8").astype("u8")
        order = np.lexsort(words.T[::-1])
    return order


def distinct(hashes: Hashes) -> Positions:
    """Return the position of the first of each set of equal hashes, ascending."""
    order = order_of(hashes)
    return np.sort(order[is_new(hashes[order])])


def is_in_share(hashes: Hashes, fraction: float) -> npt.NDArray[np.bool_]:
    """Say of each hash whether it is among the lowest `fraction` of all there can be: hashes are random."""
    if fraction >= 1:
        return np.ones(len(hashes), bool)
    return _keys_of(hashes) < np.uint64(int(fraction * 2**64))


def is_ascending(hashes: Hashes) -> bool:
    """Say whether each hash is greater than the one before."""
    keys = _keys_of(hashes)
    ties = np.flatnonzero(keys[1:] == keys[:-1])
    return bool((keys[1:] >= keys[:-1]).all()) and all(
        low.tobytes() < high.tobytes() for at in ties for low, high in pairwise(hashes[at : at + 2])
    )


def is_new(ordered: Hashes) -> npt.NDArray[np.bool_]:
    """Say of each of ascending hashes whether it is another than the one before."""
    differs = np.ones(len(ordered), bool)
    np.any(ordered[1:] != ordered[:-1], axis=1, out=differs[1:])
    return differs


def _keys_of(hashes: Hashes) -> npt.NDArray[np.uint64]:
    """Return the first eight bytes of each hash as a number: uint64[n], in the order of the hashes."""
    return np.ascontiguousarray(hashes[:, :8]).view(">u8").astype("u8").reshape(-1)


class HashIndex:
    """Hashes that can be looked up; 40 bytes of memory each.

    Args:
        hashes: uint8[n, 32], ascending.
    """

    def __init__(self, hashes: Hashes) -> None:
        self.hashes = hashes
        self._keys = _keys_of(hashes)

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, wanted: Hashes) -> Positions:
        """Return the position of each of `wanted` uint8[m, 32]; -1 where it is not here."""
        # By pieces: what is compared is copied.
        pieces = [self._find(wanted[i : i + PIECE]) for i in range(0, len(wanted), PIECE)]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def _find(self, wanted: Hashes) -> Positions:
        found = np.full(len(wanted), -1, np.int64)
        keys = _keys_of(wanted)
        open_, at = np.arange(len(wanted)), np.searchsorted(self._keys, keys)
        while len(open_):  # once, and once more for those whose first eight bytes are also those of another
            is_candidate = at < len(self)
            is_candidate[is_candidate] = self._keys[at[is_candidate]] == keys[open_[is_candidate]]
            open_, at = open_[is_candidate], at[is_candidate]
            is_found = (self.hashes[at] == wanted[open_]).all(axis=1)
            found[open_[is_found]] = at[is_found]
            open_, at = open_[~is_found], at[~is_found] + 1
        return found

    def find_one(self, name: str) -> int:
        """Return the position of the one hash of this name; -1 if it is not here."""
        wanted = bytes.fromhex(name)
        key = np.uint64(int.from_bytes(wanted[:8]))
        at = int(np.searchsorted(self._keys, key))
        while at < len(self) and self._keys[at] == key:
            if self.hashes[at].tobytes() == wanted:
                return at
            at += 1
        return -1
