"""A child process that never outlives its parent, however the parent dies; how a process ended, in words."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tie_to_parent(parent_pid: int) -> None:
    """Die with the parent: at once by the kernel's death signal on Linux, within a second by a thread elsewhere.

    The kernel sends the signal when the *thread* that spawned us ends, so a parent must spawn from a thread that lives
    as long as the child (`EngineProcess` does).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    watch_parent(parent_pid)


def describe_end(exit_code: int) -> str:
    """Say how a process ended, by the exit code that `subprocess` gives it."""
    return f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"


def watch_parent(parent_pid: int) -> None:
    """Die within a second of the parent, by a thread, whichever thread spawned us."""
    _exit_if_orphaned(parent_pid)  # it may have died already
    threading.Thread(target=_watch, args=(parent_pid,), name="lifeline", daemon=True).start()


def _watch(parent_pid: int) -> None:
    while True:
        time.sleep(1)
        _exit_if_orphaned(parent_pid)


def _exit_if_orphaned(parent_pid: int) -> None:
    if os.getppid() != parent_pid:
        os._exit(1)
