"""What keeps the files of a store, a file system or object storage: one protocol for both."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

P = TypeVar("P")
T = TypeVar("T")
R = TypeVar("R")


class Reader(Protocol):
    """An open file, for reads at any place of it; threads may share it.

    Attributes:
        piece_bytes: as many bytes are worth reading in one call.
        gap_bytes: reading so many bytes that nobody wants costs less than one more call.
    """

    piece_bytes: ClassVar[int]
    gap_bytes: ClassVar[int]

    def read(self, offset: int, num_bytes: int, out: memoryview | None = None) -> memoryview:
        """Return bytes from `offset` on, fewer where the file ends before; in `out` if that is given and of use."""

    def read_tail(self, num_bytes: int) -> tuple[memoryview, int]:
        """Return the last bytes, fewer where the file is shorter; and the bytes of the whole file."""

    def spool(self, offset: int, num_bytes: int) -> tuple[int, int]:
        """Return a local file's descriptor, open until the reader is closed, and where a range of bytes is in it."""

    def close(self) -> None:
        """Let go of the file."""


class Backend(Protocol[P]):
    """What a store needs of the place where it lies.

    A *group* is a folder that is committed as one: a loose object, a pack, a tokens artifact. Its *place* is named
    after what it holds; `find_group` says where its files are.

    Attributes:
        min_threads: reads that are worth having on their way at a time, however few cores there are.
    """

    min_threads: int

    def check_place(self, root: P) -> None:
        """Refuse a place where no store can be written, as far as that can be seen without writing.

        Raises:
            StoreReadOnlyError: it cannot be written.
        """

    def make_root(self, root: P) -> None:
        """Make the folder of a store, if there is none.

        Raises:
            NotAStoreError: something else is in its place.
        """

    def prove_writable(self, root: P) -> None:
        """Write something into a store, and remove it.

        Raises:
            StoreReadOnlyError, StoreFullError: as their names say.
        """

    def free_bytes(self, root: P) -> int | None:
        """Return the room for a store that is there, or is to be; None if there is no end of it."""

    def staging_bytes(self, root: P) -> int:
        """Return the room for what is staged."""

    def staging(self, root: P, needed_bytes: Callable[[], int] | None = None) -> AbstractContextManager[Path]:
        """Give a fresh folder of a file system; whatever was not committed is removed at the end.

        Args:
            root: the store, or any folder.
            needed_bytes: asked for the room that the whole step takes at most, once there is none left.

        Raises:
            StoreNotFoundError: `root` is not a folder.
            StoreFullError, StoreReadOnlyError: it cannot be written.
        """

    def commit(self, staged: Path, place: P, root: P, *, read_back: bool) -> P | None:
        """Put a staged folder into its place as a whole, on disk when this returns.

        Args:
            staged: the folder.
            place: of the group.
            root: the store.
            read_back: compare what is in its place with what was staged, if other bytes may have come there.

        Returns:
            The folder of the group if this call committed; None if somebody else had, and `staged` is left for
            `staging` to remove.
        """

    def replace_file(self, path: P, data: bytes) -> None:
        """Put `data` at `path` in one step, replacing what is there."""

    def mark(self, path: P) -> None:
        """Create an empty file; one that is there already is fine."""

    def remove(self, root: P, places: Iterable[P]) -> None:
        """Remove groups, folders or files, each in one step, after which its files go; one that is gone is no error."""

    def set_aside(self, place: P, quarantine: P, root: P) -> bool:
        """Move a group or file to the first free name in the quarantine; False if it is gone already."""

    def find_group(self, place: P) -> P:
        """Return the folder of a committed group.

        Raises:
            FileNotFoundError: there is none; where it takes nothing to know the folder, the first read may say so.
        """

    def has_group(self, place: P) -> bool:
        """Say whether a committed group is there."""

    def group_names(self, folder: P) -> list[str]:
        """List the committed groups right below a folder, by what is to be joined to it for their place."""

    def loose_hashes(self, folder: P) -> Iterator[str]:
        """List the sample hashes of the loose objects below the folder of a spec."""

    def group_documents(self, root: P) -> Iterator[P]:
        """List the zarr.json of all groups of a store, and of what else is in their places."""

    def leftovers(self, root: P) -> list[P]:
        """List what interrupted writes left that nobody has listed in `tmp`; what is being written is not among it."""

    def last_change(self, staged: P) -> float:
        """Return when something in an entry of `tmp` was made or changed last, in seconds since 1970.

        Raises:
            FileNotFoundError: it is gone, or just going.
        """

    def names(self, folder: P) -> list[str]:
        """List a folder; one that is missing is empty."""

    def exists(self, path: P) -> bool:
        """Say whether there is such a file or folder."""

    def is_folder(self, path: P) -> bool:
        """Say whether there is such a folder."""

    def num_bytes(self, place: P) -> int:
        """Return the sum of the sizes of all files below a folder, or that of a file; what is missing has none."""

    def read_bytes(self, path: P, most: int | None = None) -> bytes:
        """Read a file.

        Args:
            path: the file.
            most: bytes that it may have; one with more is not read.

        Raises:
            FileNotFoundError: there is none.
            CorruptObjectError: it has more bytes than it may have.
        """

    def each(self, read: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call something that reads a little for each item, at the same time where that gains anything."""

    def open(self, path: str) -> Reader:
        """Open a file, by its path as text.

        Raises:
            FileNotFoundError: there is none; here or at the first read.
        """

    def local_folder(self, folder: P) -> Path:
        """Return a folder of a file system for logs that belong into `folder`."""

    def publish(self, local: Path, folder: P) -> None:
        """Bring the files of a `local_folder` into `folder`."""
