"""Names of staging: whose it is, and whether its writer lives."""

import os

from storage.file_system import host_name


def is_foreign(name: str) -> bool:
    """Say whether a process of another host has staged it."""
    writer = _split(name)
    return writer is not None and writer[0] != host_name()


def is_dead(name: str) -> bool:
    """Say whether a process of this host has staged it that is gone."""
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


def _split(name: str) -> tuple[str, int] | None:
    """Return host and process of a staging folder; None if it is not named like one."""
    host, _, process = name.rpartition("-")[0].rpartition("-")
    return (host, int(process)) if host and process.isdecimal() else None
