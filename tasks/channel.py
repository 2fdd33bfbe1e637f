"""The worker's end of the pipe to its parent."""

import threading
from multiprocessing.connection import Connection

from tasks import messages


class Channel:
    """Sends and receives messages; encoder threads send too, so sending holds a lock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: messages.Message) -> None:
        """Tell the parent something."""
        with self._lock:
            self._connection.send_bytes(messages.encode(message))

    def receive(self) -> messages.Message:
        """Wait for the parent's next message; EOFError when it is gone."""
        return messages.decode(self._connection.recv_bytes())
