"""Machines of one network, on this one: each a network namespace of its own with its own name and address.

They share files, as machines with a network file system do. It takes root, and Linux's `ip`.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from s3_server import die_with_parent

# Of the range that is kept for measuring networks, so it is nobody's; another one for each process.
NETWORK = f"198.18.{os.getpid() % 256}"
IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Host:
    """One machine."""

    name: str
    address: str
    link: str
    space: str

    def start(self, command: list[Any], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process on it, which ends with this one."""
        named = ["sh", "-c", 'hostname "$0"; exec "$@"', self.name]
        with log.open("ab") as stream:
            return subprocess.Popen(
                [str(IP), "netns", "exec", self.space, "unshare", "--uts", *named, *map(str, command)],
                env=environment | {"NO_PROXY": f"127.0.0.1,localhost,{NETWORK}.0/24,{NETWORK}.1"},
                stdout=stream,
                stderr=stream,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of C, loaded already
                cwd=log.parent,
            )

    def processes(self, argument: str = "") -> list[psutil.Process]:
        """Return its processes, or those with this argument."""
        pids = subprocess.run([str(IP), "netns", "pids", self.space], capture_output=True, text=True, check=True).stdout
        found = []
        for pid in map(int, pids.split()):
            try:
                process = psutil.Process(pid)
                if not argument or argument in process.cmdline():
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def lose_power(self) -> None:
        """Have all of its processes gone at once, and the network."""
        self.lose_network()
        while processes := self.processes():
            for process in processes:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue

    def lose_network(self) -> None:
        """Pull its plug."""
        _ip("link", "set", self.link, "down")


@contextmanager
def network(*names: str) -> Iterator[list[Host]]:
    """Have machines of these names in one network, the first at `NETWORK`.1; this process has a place in it, too."""
    mark = f"ae{os.getpid()}"
    with ExitStack() as undo:
        _ip("link", "add", mark, "type", "bridge")
        undo.callback(_ip, "link", "del", mark)
        _ip("addr", "add", f"{NETWORK}.254/24", "dev", mark)
        _ip("link", "set", mark, "up")
        hosts = [_add_host(undo, mark, number, name) for number, name in enumerate(names, start=1)]
        yield hosts


def why_not() -> str | None:
    """Say why there can be no such network here, if so."""
    if sys.platform != "linux" or IP is None or shutil.which("unshare") is None:
        return "needs Linux with ip (iproute2) and unshare"
    try:
        with network("probe"):
            return None
    except subprocess.CalledProcessError as error:
        return f"needs the right to make network namespaces: {error.stderr.decode().strip()}"


def _add_host(undo: ExitStack, bridge: str, number: int, name: str) -> Host:
    link = space = f"{bridge}-{number}"
    _ip("netns", "add", space)
    undo.callback(_ip, "netns", "del", space)
    _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
    _ip("link", "set", link, "master", bridge, "up")
    host = Host(name, f"{NETWORK}.{number}", link, space)
    for command in (("addr", "add", f"{host.address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
        _ip("-n", space, *command)
    _ip("-n", space, "link", "set", "lo", "up")
    undo.callback(host.lose_power)
    return host


def _ip(*arguments: str) -> None:
    subprocess.run([str(IP), *arguments], check=True, capture_output=True)
