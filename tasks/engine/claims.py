"""One owner at a time for each GPU of a host.

A claim is an abstract Unix socket (Linux, unix(7)) named by the GPU's UUID: the kernel lets one process at a time have
the name, tells whoever asks which process that is, and frees it when the process ends, however it ends. Processes in
another network namespace, as containers may be, do not see it.
"""

import errno
import socket
import struct
import threading
from collections.abc import Sequence

from tasks.engine.errors import DeviceTakenError

_PREFIX = "\0aerie/device/"
_UCRED = struct.Struct("3i")  # pid, uid, gid


def claim_devices(uuids: Sequence[str]) -> None:
    """Take GPUs for this process until it ends: all of them or none.

    Raises:
        DeviceTakenError: another process has one; it is named.
    """
    taken: list[socket.socket] = []
    for uuid in uuids:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        taken.append(listener)
        try:
            listener.bind(_PREFIX + uuid)
        except OSError as error:
            for each in taken:
                each.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise DeviceTakenError(describe_holder(uuid, find_holder(uuid))) from error
        listener.listen()
    for listener in taken:
        threading.Thread(target=_answer, args=(listener,), name="claim", daemon=True).start()


def find_holder(uuid: str) -> int | None:
    """Return the id of the process that has a GPU, 0 if the kernel does not say which, None if none has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_PREFIX + uuid)
        except ConnectionRefusedError:
            return None
        except BlockingIOError:  # too many ask at once
            return 0
        pid, _, _ = _UCRED.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return int(pid)


def describe_holder(uuid: str, pid: int | None) -> str:
    """Say in one line which process has a GPU."""
    return f"{uuid} is taken by process {pid or '(unknown)'}, an engine of another run"


def _answer(listener: socket.socket) -> None:
    """Let those who ask go at once, so that there is always room for the next."""
    while True:
        listener.accept()[0].close()
