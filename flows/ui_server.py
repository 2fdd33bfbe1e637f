"""A Prefect server for people: on this machine alone unless told otherwise, and its pages ask nobody else.

Prefect's pages load the settings of an analytics service from the outside, whatever analytics are set to (seen in
Prefect 3.9.1). The browser is told to let them talk to their own server only.
"""

import errno
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flows import prefect_defaults
from flows.errors import SettingsError

LOOPBACK = "127.0.0.1"
PORT = 4200
_POLICY = b"connect-src 'self'; img-src 'self' data:"
_SETTINGS = {
    # The pages ask the server that they come from, by whatever name a browser knows it.
    "PREFECT_UI_API_URL": "/api",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Kept in memory, the leases of slots would be gone when the server starts again, and the slots taken for ever.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class KeptIn:
    """An ASGI application whose pages may connect to nothing but their own server."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, with the policy in its headers."""

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"content-security-policy", _POLICY)]
            await send(message)

        await self._app(scope, receive, send_with_policy)


def run_server(host: str = LOOPBACK, port: int = PORT) -> None:
    """Serve Prefect's API and pages until interrupted; the database is what Prefect's settings say, or SQLite."""
    prefect_defaults.apply()
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import uvicorn  # noqa: PLC0415 - only the server needs these two
    from prefect.server.api.server import create_app  # noqa: PLC0415 - reads the settings

    uvicorn.run(KeptIn(create_app(final=True)), host=host, port=port, log_level="warning")


def require_address(host: str, port: int) -> None:
    """Refuse an address at which nobody can listen, or somebody does.

    Raises:
        SettingsError: with the address and the cure.
    """
    try:
        with socket.create_server((host, port)):  # ends at once: the server is to listen there
            pass
    except OSError as error:
        cure = "give another --port, or end what listens there" if error.errno == errno.EADDRINUSE else "correct --host"
        problem = os.strerror(error.errno or 0)
        raise SettingsError(f"cannot listen at {host}:{port}: {problem}; {cure}") from error
