"""Real processes that claim a device, ask for it and die; no GPU is needed, a claim is a name."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import psutil
import pytest

from tasks.engine.claims import claim_devices, find_holder
from tasks.engine.errors import DeviceTakenError

HOLD = """
import subprocess, sys, time
from tasks.engine.claims import claim_devices
claim_devices(sys.argv[2:])
if sys.argv[1] == "with a child":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("claimed", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return the function that starts a process which claims devices and holds them."""
    with ExitStack() as stack:

        def start(*uuids: str, how: str = "alone") -> subprocess.Popen[bytes]:
            holder = subprocess.Popen([sys.executable, "-c", HOLD, how, *uuids], stdout=subprocess.PIPE)
            stack.callback(end, holder)
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"claimed\n"
            for child in psutil.Process(holder.pid).children():
                stack.callback(child.kill)
            return holder

        yield start


def end(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()


@pytest.fixture
def gpu() -> str:
    return f"GPU-{uuid4()}"


def test_a_second_process_is_refused_and_told_who_has_it(hold: Callable, gpu: str) -> None:
    assert find_holder(gpu) is None
    holder = hold(gpu)
    assert find_holder(gpu) == holder.pid
    with pytest.raises(DeviceTakenError) as error:
        claim_devices([gpu])
    assert str(error.value) == f"{gpu} is taken by process {holder.pid}, an engine of another run"


@pytest.mark.parametrize("how", ["alone", "with a child"])
def test_a_device_is_free_as_soon_as_its_holder_is_killed(hold: Callable, gpu: str, how: str) -> None:
    end(hold(gpu, how=how))
    assert find_holder(gpu) is None
    again = hold(gpu)
    assert find_holder(gpu) == again.pid


def test_all_devices_of_a_group_are_taken_or_none(hold: Callable, gpu: str) -> None:
    first, second, third = gpu, f"{gpu}-b", f"{gpu}-c"
    hold(second)
    with pytest.raises(DeviceTakenError, match=second):
        claim_devices([first, second, third])
    assert find_holder(first) is find_holder(third) is None


def test_however_often_one_asks_the_answer_is_the_same(hold: Callable, gpu: str) -> None:
    holder = hold(gpu)
    assert {find_holder(gpu) for _ in range(10_000)} <= {holder.pid, 0}
    assert find_holder(gpu) is not None


def test_a_process_on_a_cpu_claims_nothing() -> None:
    claim_devices([])
