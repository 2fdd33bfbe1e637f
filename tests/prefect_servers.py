"""Prefect servers, workers and browsers for tests: real ones, on loopback, ended with the test."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from jobs import AERIE, user_environment
from s3_server import die_with_parent

CHROMIUM = shutil.which("chromium")


@dataclass
class PrefectServer:
    """`aerie server` in a folder of its own; may be ended and started again on its port and database.

    Attributes:
        settings: environment of the server alone.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=60.0))

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it; workers ask it every second."""
        return {
            "PREFECT_API_URL": f"{self.url}/api",
            "PREFECT_HOME": str(self.folder / "home"),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }

    def start(self) -> None:
        self.port = self.port or free_port()
        environment = user_environment() | self.environment | self.settings
        del environment["PREFECT_API_URL"]
        with (self.folder / "server.log").open("ab") as log:
            command = [AERIE, "server", "--port", str(self.port)]
            self.process = _start(command, environment, log, self.folder)
        until(self.answers)

    def stop(self) -> None:
        """End it at once, as a machine that loses power would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        try:
            return self.client.get(f"{self.url}/api/health").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, what: str, **body: Any) -> Any:
        """Ask for objects of one kind, such as flow_runs, by Prefect's filters."""
        answer = self.client.post(f"{self.url}/api/{what}/filter", json=body)
        answer.raise_for_status()
        return answer.json()

    def run(self, run_id: str) -> dict[str, Any]:
        """Return a flow run."""
        found: dict[str, Any] = self.client.get(f"{self.url}/api/flow_runs/{run_id}").json()
        return found


@contextmanager
def running_server(folder: Path, **settings: str) -> Iterator[PrefectServer]:
    server = PrefectServer(folder, settings=settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running_worker(server: PrefectServer, *arguments: str, log_name: str = "worker.log") -> Iterator[Path]:
    """Run `aerie worker`; gives its log."""
    worker = start_worker(server, *arguments, log_name=log_name)
    try:
        yield server.folder / log_name
    finally:
        worker.terminate()
        try:
            worker.wait(60)  # one signal is enough
        finally:
            worker.kill()
            worker.wait()


def start_worker(server: PrefectServer, *arguments: str, log_name: str) -> subprocess.Popen[bytes]:
    """Start `aerie worker`, which ends with this process."""
    # As a shell starts what a script runs in the background.
    command = ["env", "--ignore-signal=INT", AERIE, "worker", *arguments]
    with (server.folder / log_name).open("ab") as log:
        return _start(command, user_environment() | server.environment, log, server.folder)


def _start(command: list[Any], environment: dict[str, str], log: Any, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, whatever ends it."""
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder, preexec_fn=die_with_parent)  # noqa: PLW1509 - one call of C, loaded already


@contextmanager
def browser_page() -> Iterator[Any]:
    """Open a page in Debian's Chromium; skips where there is none, but for CI, which has to install it."""
    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("needs Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as CI is, gets no sandbox from Chromium.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(120_000)
        yield page
        browser.close()


def until(holds: Callable[[], Any], pause_seconds: float = 0.2) -> Any:
    """Wait until something holds; pytest's own limit ends a test that waits in vain."""
    while not (value := holds()):
        time.sleep(pause_seconds)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
