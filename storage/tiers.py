"""Which packs are too many of about one size, and so to be merged. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from storage.codecs import TOKENS_PER_CHUNK
from storage.pack_index import Pack

# Packs whose sizes differ by less than a factor of 2**3 are a tier; so many in one tier are merged into one. A byte is
# then copied about once a tier, and a store that gets a pack every night keeps few.
TIER_BITS = 3
PACKS_PER_TIER = 8


def tier_of(num_rows: int) -> int:
    """Return the tier of a pack."""
    return (num_rows // TOKENS_PER_CHUNK).bit_length() // TIER_BITS


def choose_crowd(packs: Iterable[Pack], max_rows: int) -> list[Pack]:
    """Choose packs to merge into one of at most `max_rows` rows: the smallest of the lowest tier that has too many.

    A pack of more than half of `max_rows` stays as it is. Returns nothing if no tier has too many.
    """
    tiers: defaultdict[int, list[Pack]] = defaultdict(list)
    for pack in packs:
        if pack.num_rows <= max_rows // 2:
            tiers[tier_of(pack.num_rows)].append(pack)
    crowded = [tiers[tier] for tier in sorted(tiers) if len(tiers[tier]) >= PACKS_PER_TIER]
    return _take(crowded[0], max_rows) if crowded else []


def _take(crowd: list[Pack], max_rows: int) -> list[Pack]:
    """Take the smallest packs that fit into one; two always do."""
    taken: list[Pack] = []
    num_rows = 0
    for pack in sorted(crowd, key=lambda pack: (pack.num_rows, pack.pack_id)):
        num_rows += pack.num_rows
        if num_rows > max_rows:
            break
        taken.append(pack)
    return taken
