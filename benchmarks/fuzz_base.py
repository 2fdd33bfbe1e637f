"""What a fuzzed reader is: valid inputs, hostile ones made of them, and reading one."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, ClassVar


class Target:
    """One reader.

    Args:
        folder: where its files are; a folder of its own.

    Attributes:
        errors: those that it may raise for an input that it does not like.
    """

    errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def valid(self) -> list[Any]:
        """Return inputs that must be read without an error."""
        raise NotImplementedError

    def make(self, dice: Random) -> Any:
        """Return a hostile input."""
        raise NotImplementedError

    def read(self, made: Any) -> None:
        """Read an input as the program does.

        Raises:
            Exception: one of `errors`.
        """
        raise NotImplementedError

    def show(self, made: Any) -> str:
        """Return a short text by which a person may know the input."""
        return repr(made)[:300]


class FileTarget(Target):
    """A reader of one file; an input is its bytes."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / self.name

    def read(self, made: bytes) -> None:
        """Write the file and read it."""
        self.path.write_bytes(made)
        self.read_file(self.path)

    def read_file(self, path: Path) -> None:
        """Read the file."""
        raise NotImplementedError


Change = dict[str, bytes | None]


class FolderTarget(Target):
    """A reader of a folder that is made once; an input is what some of its files become, by their paths."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder / "store"
        self.fill(self.root)
        self.files = {path.relative_to(self.root).as_posix(): path.read_bytes() for path in _files(self.root)}

    def fill(self, root: Path) -> None:
        """Make what is valid."""
        raise NotImplementedError

    def valid(self) -> list[Change]:
        """Return no change."""
        return [{}]

    def read(self, made: Change) -> None:
        """Change files, read, and change them back."""
        try:
            self._put_all(made)
            self.read_folder(self.root)
        finally:
            self._put_all({name: self.files.get(name) for name in made})

    def _put_all(self, files: Change) -> None:
        for name, data in files.items():
            path = self.root / name
            if data is None:
                _remove(path, self.root)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def read_folder(self, root: Path) -> None:
        """Read the folder."""
        raise NotImplementedError

    def show(self, made: Change) -> str:
        """Show which files differ."""
        return "; ".join(f"{name}: {data!r}"[-600:] for name, data in made.items())[:1500]


def _files(root: Path) -> Iterator[Path]:
    yield from sorted(path for path in root.rglob("*") if path.is_file())


def _remove(path: Path, root: Path) -> None:
    """Remove a file, and the folders above it that are empty then: an empty one is a damaged group."""
    path.unlink(missing_ok=True)
    for folder in path.relative_to(root).parents:
        with suppress(OSError):
            (root / folder).rmdir()
