"""What a worker hears: the parent's messages, and errors of its own threads, in one queue."""

import queue
import threading

from tasks import messages
from tasks.channel import Channel


class Inbox:
    """Receives on a thread of its own, so that an error of another thread is heard while the parent is silent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: queue.SimpleQueue[messages.Message | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="inbox", daemon=True).start()

    def get(self) -> messages.Message:
        """Wait for the parent's next message.

        Raises:
            EOFError: the parent is gone.
            BaseException: what `fail` was told.
        """
        heard = self._queue.get()
        if isinstance(heard, BaseException):
            raise heard
        return heard

    def fail(self, error: BaseException) -> None:
        """Have `get` raise an error."""
        self._queue.put(error)

    def _receive(self) -> None:
        try:
            while True:
                self._queue.put(self._channel.receive())
        except (EOFError, OSError):
            self._queue.put(EOFError("the parent is gone"))
