"""Keys of groups in a bucket: each attempt to write a group has a folder of its own below the group's place. Pure."""

import re
import uuid
from collections.abc import Iterable
from itertools import groupby

DOCUMENT = "zarr.json"
_DIGEST = "[0-9a-f]{64}"
_ATTEMPT = "[0-9a-f]{32}"
# What comes below a folder of groups: the group's name and the document with which it counts.
GROUP = re.compile(rf"({_DIGEST}(?:/{_ATTEMPT})?)/{DOCUMENT}")
LOOSE = re.compile(rf"[0-9a-f]{{2}}/({_DIGEST})(?:/{_ATTEMPT})?/{DOCUMENT}")
# The same, from the store's folder on.
PLACES = re.compile(rf"(?:objects/{_DIGEST}/[0-9a-f]{{2}}|packs/{_DIGEST}|tokens|draft_vocabularies)/{GROUP.pattern}")
_ATTEMPTS = re.compile(rf"((?:.*/)?{_ATTEMPT})/.*")


def new_attempt() -> str:
    """Return a name for an attempt that no other has."""
    return uuid.uuid4().hex


def is_attempt(name: str) -> bool:
    """Say whether a folder is named as one of an attempt."""
    return re.fullmatch(_ATTEMPT, name) is not None


def attempt_of(key: str) -> str | None:
    """Return the folder of the attempt that a key belongs to, if to any."""
    found = _ATTEMPTS.fullmatch(key)
    return found[1] if found else None


def unfinished(keys: Iterable[str]) -> list[str]:
    """Return the folders of attempts that have keys, but not the document with which a group counts.

    Args:
        keys: ascending.
    """
    by_attempt = groupby((key for key in keys if attempt_of(key)), attempt_of)
    return [folder for folder, own in by_attempt if folder and f"{folder}/{DOCUMENT}" not in set(own)]
