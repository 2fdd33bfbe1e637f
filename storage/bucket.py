"""A bucket of object storage, over HTTP; what goes wrong is said in one line, with its cure."""

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from storage.bucket_errors import OutOfRangeError, endpoint_url, explain
from storage.errors import StoreUnreachableError
from storage.paths import ObjectPath
from storage.staged_files import require_size

T = TypeVar("T")

# A part of an upload, or of a file that is read: it has to come within the time limit of a request on a slow line.
PART_BYTES = 16 << 20
REQUEST_SECONDS = 300
# Parts on their way at a time, of one file.
PARTS = 4
PAGE = 1000
# An endpoint that has answered once is asked patiently; a wrong address should not take minutes to be called wrong.
FIRST_RETRIES = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
RETRIES = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}


class ObjectInfo(NamedTuple):
    """An object as a listing has it.

    Attributes:
        key: its key.
        size: in bytes.
        changed: when it was written, in seconds since 1970.
    """

    key: str
    size: int
    changed: float


class Bucket:
    """Objects by key.

    Endpoint, region and credentials come from the environment variables of AWS; none of them is ever printed but the
    endpoint's host.

    Raises:
        StoreUnreachableError: there are no credentials, they are refused, or nobody answers. So for all methods.
        StoreNotFoundError: there is no such bucket. So for all methods.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pid = os.getpid()
        self._first, self._patient = _client(name, FIRST_RETRIES), _client(name, RETRIES)
        self._has_answered = False

    def get(self, key: str, most: int | None = None) -> memoryview:
        """Return an object's bytes, if it has no more than `most`.

        Raises:
            FileNotFoundError: there is none.
            CorruptObjectError: it has more.
        """

        def read(store: S3Store) -> memoryview:
            found = obstore.get(store, key)
            require_size(ObjectPath(self.name, key), found.meta["size"], most)
            return memoryview(found.bytes())

        return self._ask(key, read)

    def get_range(self, key: str, start: int, stop: int) -> memoryview:
        """Return bytes of an object, fewer where it ends before.

        Raises:
            FileNotFoundError: there is none.
        """
        if stop <= start:
            return memoryview(b"")
        try:
            return self._ask(key, lambda store: memoryview(obstore.get_range(store, key, start=start, end=stop)))
        except OutOfRangeError:
            return memoryview(b"")

    def get_tail(self, key: str, num_bytes: int) -> tuple[memoryview, int]:
        """Return the last bytes of an object, fewer where it is shorter, and the bytes of all of it.

        Raises:
            FileNotFoundError: there is none.
        """
        options: Any = {"range": {"suffix": num_bytes}}

        def read(store: S3Store) -> tuple[memoryview, int]:
            found = obstore.get(store, key, options=options)
            return memoryview(found.bytes()), found.meta["size"]

        try:
            return self._ask(key, read)
        except OutOfRangeError:  # said of an empty object
            return memoryview(b""), 0

    def info(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object; None if there is none."""
        try:
            return _info(self._ask(key, lambda store: obstore.head(store, key)))
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes | Path) -> None:
        """Write an object, whole or not at all, over what is there.

        Raises:
            StoreReadOnlyError, StoreFullError: it cannot be written.
        """
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        options: Any = {"use_multipart": size > PART_BYTES, "chunk_size": PART_BYTES, "max_concurrency": PARTS}
        self._ask(key, lambda store: obstore.put(store, key, data, **options), is_write=True)

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the bucket, without its bytes coming by.

        Raises:
            FileNotFoundError: there is no such object.
            StoreReadOnlyError, StoreFullError: it cannot be written.
        """
        self._ask(source, lambda store: obstore.copy(store, source, target), is_write=True)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is gone is no error.

        Raises:
            StoreReadOnlyError: they cannot be removed.
        """
        if keys:
            self._ask(keys[0], lambda store: obstore.delete(store, list(keys)), is_write=True)

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """List all objects below a prefix, page by page."""
        pages = self._ask(prefix, lambda store: iter(obstore.list(store, prefix or None, chunk_size=PAGE)))
        while page := self._ask(prefix, lambda _: next(pages, None)):
            yield [_info(found) for found in page]

    def children(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """List the names of the folders right below a prefix, and the objects there."""
        found = self._ask(prefix, lambda store: obstore.list_with_delimiter(store, prefix or None))
        return [path.rpartition("/")[2] for path in found["common_prefixes"]], [_info(one) for one in found["objects"]]

    def _ask(self, key: str, request: Callable[[S3Store], T], *, is_write: bool = False) -> T:
        if os.getpid() != self._pid:  # the client's threads stayed behind: it would wait for ever
            raise StoreUnreachableError(
                f"s3://{self.name} was opened before this process was forked; start processes with spawn "
                "(multiprocessing_context='spawn' for a DataLoader)"
            )
        try:
            answer = request(self._patient if self._has_answered else self._first)
        except FileNotFoundError as error:
            self._has_answered = True
            raise explain(str(error), ObjectPath(self.name, key), is_write=is_write) from error
        except BaseError as error:
            raise explain(str(error), ObjectPath(self.name, key), is_write=is_write) from error
        self._has_answered = True
        return answer


def _client(bucket: str, retries: Any) -> S3Store:
    options: Any = {"timeout": timedelta(seconds=REQUEST_SECONDS)}
    endpoint = urlsplit(endpoint_url())
    if endpoint_url() and not (endpoint.scheme in {"http", "https"} and endpoint.netloc):  # obstore would panic
        raise StoreUnreachableError("AWS_ENDPOINT_URL is no address; give http://HOST:PORT or https://HOST")
    if endpoint.scheme == "http":
        options["allow_http"] = True
    return S3Store(bucket, client_options=options, retry_config=retries)


def _info(found: Any) -> ObjectInfo:
    return ObjectInfo(found["path"], found["size"], found["last_modified"].timestamp())
