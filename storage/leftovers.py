"""Staging that its process will not come back to."""

import os
import time

from storage.files import STAGING, backend_of, host_name, names, remove_folders
from storage.paths import StorePath


def sweep(root: StorePath) -> int:
    """Remove staging folders whose process of this host is dead; give their number."""
    stale = stale_staging(root)
    if stale:
        remove_folders(root, stale)
    return len(stale)


def stale_staging(root: StorePath, older_than_seconds: float | None = None) -> list[StorePath]:
    """List staging folders whose process of this host is dead.

    Args:
        root: the store, or any folder.
        older_than_seconds: list also those of other hosts in which nothing has been made or changed for so long. Only
            who runs these hosts can know that no writer of theirs is that slow.
    """
    folders = [root / STAGING / name for name in names(root / STAGING)]
    return [folder for folder in folders if _is_dead(folder.name) or _is_older(folder, older_than_seconds)]


def foreign_staging(root: StorePath) -> list[StorePath]:
    """List staging folders of other hosts: whether their processes live cannot be seen from here."""
    return [root / STAGING / name for name in names(root / STAGING) if _is_foreign(name)]


def _split(name: str) -> tuple[str, int] | None:
    """Return host and process of a staging folder; None if it is not named like one."""
    host, _, process = name.rpartition("-")[0].rpartition("-")
    return (host, int(process)) if host and process.isdecimal() else None


def _is_foreign(name: str) -> bool:
    writer = _split(name)
    return writer is not None and writer[0] != host_name()


def _is_dead(name: str) -> bool:
    writer = _split(name)
    if writer is None or writer[0] != host_name():
        return False
    try:
        os.kill(writer[1], 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # alive, another user's
        return False
    return False


def _is_older(folder: StorePath, seconds: float | None) -> bool:
    if seconds is None or not _is_foreign(folder.name):
        return False
    try:
        latest = backend_of(folder).last_change(folder)
    except FileNotFoundError:  # its writer is at work, or has just ended
        return False
    return time.time() - latest > seconds
