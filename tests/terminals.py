"""A pseudo-terminal of a given width, and what a person would have seen on it."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from types import TracebackType
from typing import Self

# Colours and cursor movements (ECMA-48), and titles.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Terminal:
    """A terminal to give to a process as `stdin`, `stdout` and `stderr`; a context manager.

    Attributes:
        fd: the process's end.
    """

    def __init__(self, columns: int) -> None:
        self._ours, self.fd = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._received = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)
        self._reader.join(10)
        os.close(self._ours)

    @property
    def raw(self) -> str:
        """Everything that was written, escapes included; complete after the context has ended."""
        return self._received.decode()

    def lines(self) -> list[str]:
        """Return every line that was ever drawn, without escapes."""
        return re.split(r"[\r\n]+", _ESCAPES.sub("", self.raw))

    def _read(self) -> None:
        try:
            while chunk := os.read(self._ours, 65536):
                self._received += chunk
        except OSError:  # Linux says EIO when nobody has the other end any more
            return
