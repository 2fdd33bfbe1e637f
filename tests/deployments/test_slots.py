"""Slots of devices on Prefect's server: one run waits for another's, and for no server that has gone."""

import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jobs import user_environment
from prefect_servers import PrefectServer, running_server, until

HOLD = """
import sys, uuid
from tasks.device_slots import DeviceSlots
with DeviceSlots(uuid.uuid4()) as slots:
    slots.hold("cpu", lambda line: print(line, flush=True))
    print("goes on, holding", list(slots._held), flush=True)
    sys.stdin.readline()
print("is over", flush=True)
"""


@contextmanager
def run_that_holds(server: PrefectServer) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that takes the slot, and keeps it until it is sent a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=user_environment() | server.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # else a line that was read ahead would look like silence
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def read(process: subprocess.Popen[bytes]) -> str:
    return output(process).readline().decode().strip()


def in_order(*processes: subprocess.Popen[bytes]) -> tuple[subprocess.Popen[bytes], ...]:
    """Return first the one that speaks first."""
    [spoke, *_] = select.select([output(process) for process in processes], [], [])[0]
    return tuple(sorted(processes, key=lambda process: process.stdout is not spoke))


def is_silent(process: subprocess.Popen[bytes]) -> bool:
    return not select.select([output(process)], [], [], 2)[0]


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    assert read(process) == "is over"


def taken(server: PrefectServer) -> int:
    [limit] = server.client.post(f"{server.url}/api/v2/concurrency_limits/filter", json={}).json()
    return int(limit["active_slots"])


def test_a_run_waits_for_the_slot_of_another_and_not_for_a_server_that_is_gone(tmp_path: Path) -> None:
    name = f"aerie:{socket.gethostname()}:cpu"
    with running_server(tmp_path) as server:
        made = server.client.post(f"{server.url}/api/v2/concurrency_limits/", json={"name": name, "limit": 1})
        made.raise_for_status()
        with run_that_holds(server) as first, run_that_holds(server) as second:
            assert read(first) == read(second) == f"cpu: takes the slot {name}"
            until(lambda: taken(server) == 1)
            holds, waits = in_order(first, second)
            assert read(holds) == "goes on, holding ['cpu']"
            with run_that_holds(server) as third:
                assert read(third) == f"cpu: takes the slot {name}"
                assert is_silent(waits)
                assert is_silent(third)
                end(holds)
                holds, waits = in_order(waits, third)
                assert read(holds) == "goes on, holding ['cpu']"
                assert is_silent(waits)
                server.stop()
                assert read(waits) == "goes on, holding []"
                end(waits)
                end(holds)
