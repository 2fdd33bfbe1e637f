"""The store in a bucket, where nothing can be renamed: a group counts once its zarr.json is there, written last.

Each attempt to write a group has a folder of its own below the group's place, so that no two writers, and no writer and
none who removes, ever touch the same key. docs/format.md says why that is right.
"""

import errno
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import cache, cached_property
from itertools import count, islice
from pathlib import Path
from typing import TypeVar

from storage import bucket_listing
from storage.attempts import DOCUMENT, PLACES, is_attempt, new_attempt
from storage.bucket import PART_BYTES, Bucket
from storage.bucket_listing import bucket_of
from storage.errors import CorruptObjectError, StoreReadOnlyError
from storage.file_system import STAGING, FileSystem
from storage.intents import finish, intent, named_folders, own_objects, uncommitted
from storage.object_reader import ObjectReader
from storage.paths import SCHEME, ObjectPath
from storage.staging_names import is_dead

T = TypeVar("T")
R = TypeVar("R")

# Requests on their way at a time, of one process.
REQUESTS = 32
# Places that are removed together, between an intent and its end.
REMOVED_TOGETHER = 256


class ObjectStorage:
    """Stores in buckets: a `backends.Backend`. What is staged lies among the temporary files of this machine."""

    min_threads = 16

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(REQUESTS, thread_name_prefix="object-storage")

    def _each(self, request: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Make requests at the same time; once all have ended, the first error is raised."""
        asked = [self._pool.submit(request, item) for item in items]
        try:
            return [one.result() for one in asked]
        finally:
            for one in asked:
                one.cancel()
            wait(asked)

    def check_place(self, root: ObjectPath) -> None:
        """Look at the bucket."""
        bucket_of(root.bucket).children(root.key)

    make_root = check_place

    def prove_writable(self, root: ObjectPath) -> None:
        """Write an intent of nothing, and remove it."""
        with intent(bucket_of(root.bucket), root, []):
            pass

    def free_bytes(self, root: ObjectPath) -> None:
        """There is no end of it."""

    def staging_bytes(self, root: ObjectPath) -> int:  # noqa: ARG002 - the protocol's
        """Return the free space for temporary files."""
        return shutil.disk_usage(_scratch()).free

    def staging(
        self,
        root: ObjectPath,  # noqa: ARG002 - the protocol's
        needed_bytes: Callable[[], int] | None = None,
    ) -> AbstractContextManager[Path]:
        """Give a fresh folder among temporary files."""
        return FileSystem().staging(_scratch(), needed_bytes)

    def commit(self, staged: Path, place: ObjectPath, root: ObjectPath, *, read_back: bool) -> ObjectPath | None:
        """Upload the files of a staged folder, its zarr.json last."""
        if self.has_group(place):
            return None
        folder = place / new_attempt()
        bucket = bucket_of(root.bucket)
        with intent(bucket, root, [folder]):
            files = {file: folder / file.relative_to(staged).as_posix() for file in staged.rglob("*") if file.is_file()}
            document = files.pop(staged / DOCUMENT)
            self._each(lambda file: bucket.put(files[file].key, file), files)
            if read_back:
                for file, path in files.items():
                    self._compare(file, path)
            bucket.put(document.key, staged / DOCUMENT)
        return folder

    def _compare(self, file: Path, path: ObjectPath) -> None:
        """Compare an object with the file that was uploaded."""
        bucket, size = bucket_of(path.bucket), file.stat().st_size

        def is_equal(start: int) -> bool:
            with file.open("rb") as local:
                local.seek(start)
                return local.read(PART_BYTES) == bucket.get_range(path.key, start, start + PART_BYTES)

        if not all(self._each(is_equal, range(0, size + 1, PART_BYTES))):
            raise CorruptObjectError(f"{path} was read back other than written; run again")

    def replace_file(self, path: ObjectPath, data: bytes) -> None:
        """Put an object."""
        bucket_of(path.bucket).put(path.key, data)

    def mark(self, path: ObjectPath) -> None:
        """Put an empty object."""
        bucket_of(path.bucket).put(path.key, b"")

    def remove(self, root: ObjectPath, places: Iterable[ObjectPath]) -> None:
        """Remove first the documents with which groups count, then all else; attempts under way are left alone."""
        bucket = bucket_of(root.bucket)
        rest = iter(places)
        while batch := list(islice(rest, REMOVED_TOGETHER)):
            notes = [place for place in batch if place.parent == root / STAGING]
            self._each(lambda note: finish(bucket, root, note), notes)
            groups = self._each(self._groups_in, [place for place in batch if place not in notes])
            folders = [folder for found in groups for folder in found]
            if folders:
                self._remove_groups(bucket, root, folders)

    def _groups_in(self, place: ObjectPath) -> list[ObjectPath]:
        """Return what there is to be removed at a place: the committed attempts in it, and itself."""
        bucket = bucket_of(place.bucket)
        attempts = [place / name for name in bucket.children(place.key)[0] if is_attempt(name)]
        return [place, *(attempt for attempt in attempts if bucket.info((attempt / DOCUMENT).key))]

    def _remove_groups(self, bucket: Bucket, root: ObjectPath, folders: list[ObjectPath]) -> None:
        own = self._each(lambda folder: [found.key for found in own_objects(bucket, folder)], folders)
        keys = {key for folder, found in zip(folders, own, strict=True) for key in (found or [folder.key])}
        documents = {key for key in keys if PLACES.fullmatch(key.removeprefix(f"{root.key}/"))}
        with intent(bucket, root, [ObjectPath(root.bucket, key).parent for key in sorted(documents)]):
            bucket.delete(sorted(documents))
            bucket.delete(sorted(keys - documents))

    def set_aside(self, place: ObjectPath, quarantine: ObjectPath, root: ObjectPath) -> bool:
        """Copy all objects of a group, then remove it."""
        bucket = bucket_of(root.bucket)
        try:
            folder = place if bucket.info(place.key) else self.find_group(place)
            sources = [found.key for found in own_objects(bucket, folder)] or [folder.key]
            name = place.parent.name if is_attempt(place.name) else place.name
            taken = set(self.names(quarantine))
            target = next(quarantine / f"{name}-{n}" for n in count(1) if f"{name}-{n}" not in taken)
            self._each(lambda key: bucket.copy(key, f"{target.key}{key.removeprefix(folder.key)}"), sources)
        except FileNotFoundError:
            return False
        self.remove(root, [folder])
        return True

    def find_group(self, place: ObjectPath) -> ObjectPath:
        """Look for a committed attempt, or for a group at the place itself: so come those that were copied there."""
        bucket = bucket_of(place.bucket)
        folders, objects = bucket.children(place.key)
        if any(found.key == (place / DOCUMENT).key for found in objects):
            return place
        for name in sorted(folders):
            if is_attempt(name) and bucket.info((place / name / DOCUMENT).key):
                return place / name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))

    def has_group(self, place: ObjectPath) -> bool:
        """Say whether there is a committed attempt."""
        try:
            self.find_group(place)
        except FileNotFoundError:
            return False
        return True

    def group_names(self, folder: ObjectPath) -> list[str]:
        """List all keys below."""
        return bucket_listing.group_names(folder)

    def loose_hashes(self, folder: ObjectPath) -> Iterator[str]:
        """List all keys below; of a large store those of several prefixes at the same time."""
        return iter(bucket_listing.loose_hashes(folder, self._each))

    def group_documents(self, root: ObjectPath) -> Iterator[ObjectPath]:
        """List all keys, and choose."""
        return bucket_listing.group_documents(root)

    def leftovers(self, root: ObjectPath) -> list[ObjectPath]:
        """List attempts without their document that no intent names."""
        return bucket_listing.leftovers(root, self._each)

    def last_change(self, staged: ObjectPath) -> float:
        """Return the latest time at which an intent, or an object that it names, was written."""
        bucket, root = bucket_of(staged.bucket), staged.parent.parent
        note = bucket.info(staged.key)
        if note is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(staged))
        found = [one for folder in named_folders(bucket, root, staged) for one in uncommitted(bucket, folder)]
        return max(one.changed for one in (note, *found))

    def names(self, folder: ObjectPath) -> list[str]:
        """List folders and objects."""
        return bucket_listing.names_in(folder)

    def exists(self, path: ObjectPath) -> bool:
        """Say whether there is such an object, or one below."""
        return bucket_of(path.bucket).info(path.key) is not None or self.is_folder(path)

    def is_folder(self, path: ObjectPath) -> bool:
        """Say whether there is an object below."""
        return any(bucket_of(path.bucket).children(path.key))

    def num_bytes(self, place: ObjectPath) -> int:
        """Add up the sizes of objects; an intent is as large as what it names and what is not committed."""
        bucket, root = bucket_of(place.bucket), place.parent.parent
        if place.parent.name == STAGING:
            folders = named_folders(bucket, root, place)
            return sum(found.size for folder in folders for found in uncommitted(bucket, folder))
        info = bucket.info(place.key)
        return info.size if info else sum(found.size for page in bucket.pages(place.key) for found in page)

    def read_bytes(self, path: ObjectPath, most: int | None = None) -> bytes:
        """Get an object."""
        return bytes(bucket_of(path.bucket).get(path.key, most))

    def each(self, read: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call it on threads of their own, not far ahead: those of requests must not wait for each other."""
        rest, ahead = iter(items), deque[Future[R]]()
        with ThreadPoolExecutor(self.min_threads) as pool:
            ahead.extend(pool.submit(read, item) for item in islice(rest, 2 * self.min_threads))
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(pool.submit(read, item) for item in islice(rest, 1))

    def open(self, path: str) -> ObjectReader:
        """Read an object by ranges."""
        name, _, key = path.removeprefix(SCHEME).partition("/")
        return ObjectReader(bucket_of(name), key)

    def local_folder(self, folder: ObjectPath) -> Path:
        """Return a folder among temporary files, of the same name."""
        return _scratch() / folder.parent.name / folder.name

    def publish(self, local: Path, folder: ObjectPath) -> None:
        """Upload the files."""
        files = [file for file in local.rglob("*") if file.is_file()]
        self._each(
            lambda file: bucket_of(folder.bucket).put((folder / file.relative_to(local).as_posix()).key, file), files
        )


@cache
def _scratch() -> Path:
    """Return this user's folder among temporary files, freed of what dead processes left there."""
    folder = Path(tempfile.gettempdir()) / f"aerie-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise StoreReadOnlyError(f"{folder} belongs to somebody else; name another folder by TMPDIR")
    file_system = FileSystem()
    staged = file_system.names(folder / STAGING)
    file_system.remove(folder, [folder / STAGING / name for name in staged if is_dead(name)])
    return folder
