"""No child outlives its parent. Three real processes: the test, a parent, and its child."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

CHILD = """
import sys, time, tasks.lifeline as lifeline
getattr(lifeline, sys.argv[1])(int(sys.argv[2]))
print("tied", flush=True)
time.sleep(600)
"""
# Starts the child from a thread, says its pid once it is tied, and goes on.
PARENT = f"""
import os, subprocess, sys, threading, time
tie, keeps_thread = sys.argv[1], sys.argv[2] == "keep"
ended = threading.Event()

def spawn():
    global child
    command = [sys.executable, "-c", {CHILD!r}, tie, str(os.getpid())]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout.readline() == b"tied\\n"
    print(child.pid, flush=True)
    while keeps_thread:
        time.sleep(1)

thread = threading.Thread(target=spawn, daemon=True)
thread.start()
time.sleep(600)
"""


def start(tie: str, thread: str) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tie, thread], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    return parent, psutil.Process(int(parent.stdout.readline()))


def ends_within(child: psutil.Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not child.is_running() or child.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("tie", "thread"), [("tie_to_parent", "keep"), ("watch_parent", "keep"), ("watch_parent", "end")]
)
def test_a_child_in_its_own_session_dies_with_a_parent_that_is_killed(tie: str, thread: str) -> None:
    parent, child = start(tie, thread)
    assert not ends_within(child, 1.5)
    parent.kill()
    parent.wait()
    assert ends_within(child, 60.0)


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal of a thread is Linux's")
def test_the_death_signal_follows_the_thread_that_spawned() -> None:
    """Why `EngineProcess` spawns from a thread that lives as long as the child."""
    parent, child = start("tie_to_parent", "end")
    assert ends_within(child, 60.0)
    assert parent.poll() is None
    parent.kill()
    parent.wait()


@pytest.mark.parametrize("tie", ["tie_to_parent", "watch_parent"])
def test_a_child_whose_parent_is_gone_already_ends_at_once(tie: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        # Not the pid of its parent: as if that had died and another taken the child over.
        child = subprocess.Popen([sys.executable, "-c", CHILD, tie, str(os.getppid())], stdout=file)
    assert child.wait(timeout=60) == 1
    assert output.read_bytes() == b""
