"""Staging that its process will not come back to."""

import time

from storage.files import STAGING, backend_of, names, remove_folders
from storage.paths import StorePath
from storage.staging_names import is_dead, is_foreign


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
    return [folder for folder in folders if is_dead(folder.name) or _is_older(folder, older_than_seconds)]


def foreign_staging(root: StorePath) -> list[StorePath]:
    """List staging folders of other hosts: whether their processes live cannot be seen from here."""
    return [root / STAGING / name for name in names(root / STAGING) if is_foreign(name)]


def _is_older(folder: StorePath, seconds: float | None) -> bool:
    if seconds is None or not is_foreign(folder.name):
        return False
    try:
        latest = backend_of(folder).last_change(folder)
    except FileNotFoundError:  # its writer is at work, or has just ended
        return False
    return time.time() - latest > seconds
