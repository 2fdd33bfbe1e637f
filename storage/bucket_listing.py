"""Which keys a bucket has below a folder, and which groups these make."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import TypeVar

from storage.attempts import GROUP, LOOSE, PLACES, unfinished
from storage.bucket import PAGE, Bucket
from storage.file_system import STAGING
from storage.intents import named_folders, uncommitted
from storage.paths import ObjectPath

T = TypeVar("T")
# Makes requests for many folders at the same time.
Each = Callable[[Callable[[ObjectPath], list[str]], Iterable[ObjectPath]], list[list[str]]]


@cache
def bucket_of(name: str) -> Bucket:
    """Return the client of a bucket: one a process."""
    return Bucket(name)


def keys_below(folder: ObjectPath) -> Iterator[str]:
    """List all keys below a folder, relative to it."""
    start = len(folder.key) + 1 if folder.key else 0
    return (found.key[start:] for page in bucket_of(folder.bucket).pages(folder.key) for found in page)


def names_in(folder: ObjectPath) -> list[str]:
    """List the folders and objects right below a folder."""
    folders, objects = bucket_of(folder.bucket).children(folder.key)
    return [*folders, *(ObjectPath(folder.bucket, found.key).name for found in objects)]


def group_names(folder: ObjectPath) -> list[str]:
    """List the committed groups right below a folder, by their names and attempts."""
    return sorted(found[1] for key in keys_below(folder) if (found := GROUP.fullmatch(key)))


def loose_hashes(folder: ObjectPath, each: Each) -> set[str]:
    """List the loose objects of a spec."""

    def choose(prefix: ObjectPath) -> list[str]:
        start = f"{prefix.name}/" if prefix != folder else ""
        return [found[1] for key in keys_below(prefix) if (found := LOOSE.fullmatch(start + key))]

    return {name for names in each(choose, _parts(folder)) for name in names}


def group_documents(root: ObjectPath) -> Iterator[ObjectPath]:
    """List the documents of all groups of a store."""
    return (root / key for key in keys_below(root) if PLACES.fullmatch(key))


def leftovers(root: ObjectPath, each: Each) -> list[ObjectPath]:
    """List attempts without their document that no intent names, such as after one was removed by hand."""
    bucket = bucket_of(root.bucket)
    kinds = [root / kind / name for kind in ("objects", "packs") for name in names_in(root / kind)]
    parts = [part for folder in [*kinds, root / "tokens", root / "draft_vocabularies"] for part in _parts(folder)]
    unfinished_in = each(lambda part: unfinished(sorted(keys_below(part))), parts)
    found = [part / name for part, names in zip(parts, unfinished_in, strict=True) for name in names]
    # In this order: an intent is there before the first object of its attempt, and until its document is.
    notes = [root / STAGING / name for name in names_in(root / STAGING)] if found else []
    named = {folder for note in notes for folder in named_folders(bucket, root, note)}
    return [folder for folder in found if folder not in named and uncommitted(bucket, folder)]


def _parts(folder: ObjectPath) -> list[ObjectPath]:
    """Return what to list for all keys of a folder: itself, or what is right below it if these are many."""
    if len(list(islice(keys_below(folder), PAGE))) < PAGE:
        return [folder]
    return [folder / name for name in bucket_of(folder.bucket).children(folder.key)[0]]
