"""Which files `data` names: files, globs, folders of files, and folders that `datasets` saved."""

import os
from collections.abc import Iterator, Sequence
from glob import has_magic, iglob
from pathlib import Path
from typing import Any

from storage.layout import HEADER
from tasks.errors import DataError, DataNotFoundError
from tasks.inputs.json_rows import parse_text

# What is taken from a folder.
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
PACKED = ("", ".gz", ".zst")
_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"


def find_files(data: Sequence[Path]) -> list[Path]:
    """Return the data files in the order given; those of a folder or glob by name.

    Raises:
        DataNotFoundError: a file or folder does not exist, or a glob or folder has no data file.
        DataError: a folder holds several splits of a dataset, or one that has been saved in part.
    """
    return [file for path in data for file in _find(path)]


def name_files(files: Sequence[Path]) -> list[str]:
    """Return a short name for each file: its own, or where files share one, the path below their common folder."""
    names = [file.name for file in files]
    paths = [file.absolute() for file in files]
    if len(set(names)) == len(set(paths)):
        return names
    folder = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(folder).as_posix() for path in paths]


def _find(path: Path) -> list[Path]:
    if path.is_dir():
        return _find_in_folder(path)
    if path.exists() or not has_magic(str(path)):
        return [path]
    found = sorted(Path(name) for name in iglob(str(path), recursive=True))  # noqa: PTH207 - an absolute pattern, too
    files = [file for entry in found for file in (_find_in_folder(entry) if _is_saved(entry) else [entry])]
    files = [file for file in files if file.is_file()]
    if not files:
        raise DataNotFoundError(f"{path} matches no file; correct the pattern, and quote it for the shell")
    return files


def _find_in_folder(folder: Path) -> list[Path]:
    if (folder / _SPLITS).is_file():
        splits = ", ".join(map(str, _read_json(folder / _SPLITS, "splits")))
        raise DataError(f"{folder} holds several splits ({splits}); name the folder of one, as {folder}/train")
    if _is_saved(folder):
        return _find_saved(folder)
    files = sorted(_walk(folder))
    if not files:
        raise DataNotFoundError(f"{folder} is a folder without a data file ({', '.join(SUFFIXES)}); name the files")
    return files


def _is_saved(path: Path) -> bool:
    return (path / _STATE).is_file() and (path / _INFO).is_file()


def _find_saved(folder: Path) -> list[Path]:
    """List the files of a dataset that `save_to_disk` of `datasets` wrote, in their order."""
    if _read_json(folder / _STATE, "_indices_data_files", []):
        raise DataError(
            f"{folder} has rows chosen by index; save it with flatten_indices() of this or a later datasets"
        )
    names = [entry.get("filename") for entry in _read_json(folder / _STATE, "_data_files") if isinstance(entry, dict)]
    # A folder of somebody else's must not name files elsewhere.
    if wrong := [name for name in names if not _is_bare(name)]:
        raise DataError(f"{folder / _STATE} names {wrong[0]!r:.200}, no file of the folder; save the dataset again")
    return [folder / str(name) for name in names]


def _is_bare(name: object) -> bool:
    return isinstance(name, str) and name not in {"", ".", ".."} and not {"/", "\0"} & set(name)


def _read_json(file: Path, key: str, default: list[Any] | None = None) -> list[Any]:
    """Return the list that a file of `datasets` has under a key."""
    try:
        document = parse_text(file.read_text("utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is not that of a saved dataset ({error}); save the dataset again") from error
    found = document.get(key) if isinstance(document, dict) else None
    if found is None:
        found = default
    if not isinstance(found, list):
        raise DataError(f"{file} is not that of a saved dataset (no list {key}); save the dataset again")
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Find data files; hidden ones and those of a store of ours are not data."""
    endings = tuple(suffix + packed for suffix in SUFFIXES for packed in PACKED)
    for parent, folders, names in os.walk(folder):
        if HEADER in names:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        found = [name for name in names if name.endswith(endings) and not name.startswith(".")]
        yield from (Path(parent, name) for name in found)
