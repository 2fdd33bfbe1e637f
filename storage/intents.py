"""What a process is about to write or to remove in a bucket: others can finish it if it is killed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from storage.attempts import DOCUMENT, is_attempt
from storage.bucket import Bucket, ObjectInfo
from storage.errors import StorageError
from storage.file_system import STAGING, staging_name
from storage.paths import ObjectPath


@contextmanager
def intent(bucket: Bucket, root: ObjectPath, folders: Sequence[ObjectPath]) -> Iterator[None]:
    """Name folders of groups that are written or removed inside of this; if it fails, those without zarr.json go.

    No other folders may be named: they could be filled again before somebody finishes this.
    """
    note = root / STAGING / staging_name()
    bucket.put(note.key, json.dumps([folder.key.removeprefix(f"{root.key}/") for folder in folders]).encode())
    try:
        yield
    except BaseException:
        with suppress(StorageError):  # that of the body tells more; a sweep comes later
            finish(bucket, root, note)
        raise
    bucket.delete([note.key])


def finish(bucket: Bucket, root: ObjectPath, note: ObjectPath) -> None:
    """Remove what an intent names and what is not committed, then the intent."""
    for folder in named_folders(bucket, root, note):
        bucket.delete([found.key for found in uncommitted(bucket, folder)])
    bucket.delete([note.key])


def named_folders(bucket: Bucket, root: ObjectPath, note: ObjectPath) -> list[ObjectPath]:
    """Return the folders that an intent names; none if it is gone."""
    try:
        return [root / name for name in json.loads(bytes(bucket.get(note.key)))]
    except FileNotFoundError:
        return []


def uncommitted(bucket: Bucket, folder: ObjectPath) -> list[ObjectInfo]:
    """List the objects of a folder that has no zarr.json; none if it has one."""
    found = own_objects(bucket, folder)
    return [] if any(one.key == f"{folder.key}/{DOCUMENT}" for one in found) else found


def own_objects(bucket: Bucket, folder: ObjectPath) -> list[ObjectInfo]:
    """List the objects below a folder, but those of attempts that lie in it."""
    found = [one for page in bucket.pages(folder.key) for one in page]
    return [one for one in found if not is_attempt(one.key.removeprefix(f"{folder.key}/").partition("/")[0])]
