"""Where a store lies: a folder of a file system, or a prefix of a bucket."""

import re
from dataclasses import dataclass
from pathlib import Path

from storage.errors import NotAStoreError

SCHEME = "s3://"
# Of each part of an address: characters that every server and client takes as they are.
_PART = re.compile(r"[A-Za-z0-9_.=@+-]+")


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """A key of a bucket, or a prefix of keys; it does no I/O.

    Attributes:
        bucket: the bucket's name.
        key: without a slash at either end; empty for the bucket itself.
    """

    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(self.bucket, f"{self.key}/{name}" if self.key else name)

    def __lt__(self, other: "ObjectPath") -> bool:
        return (self.bucket, self.key) < (other.bucket, other.key)

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def parent(self) -> "ObjectPath":
        """The path without its last part."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> "ObjectPath":
        """Return the path itself: there is no other folder that it could count from."""
        return self


StorePath = Path | ObjectPath


def store_path(place: "StorePath | str") -> StorePath:
    """Return the path that a text means: `s3://bucket/prefix`, or a folder.

    Raises:
        NotAStoreError: it is an address of another kind, or has characters that keys of a store cannot have.
    """
    if isinstance(place, ObjectPath):
        return place
    text = str(place)
    if isinstance(place, Path) and place.parts[:1] == ("s3:",):  # pathlib takes two slashes for one
        text = SCHEME + "/".join(place.parts[1:])
    if not text.startswith(SCHEME):
        if "://" in text:
            raise NotAStoreError(f"{text} is no place for a store; give a folder or {SCHEME}BUCKET/PREFIX")
        return Path(text)
    bucket, *parts = text.removeprefix(SCHEME).rstrip("/").split("/")
    if not all(_PART.fullmatch(part) and part.strip(".") for part in (bucket, *parts)):
        raise NotAStoreError(
            f"{text} is no place for a store; give {SCHEME}BUCKET/PREFIX of letters, digits and any of _.=@+-"
        )
    return ObjectPath(bucket, "/".join(parts))
