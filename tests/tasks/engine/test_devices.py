import subprocess
import sys

import pytest

from tasks.engine.devices import DeviceGroup, environment, parse_devices, visible_gpus
from tasks.engine.errors import DeviceError

EIGHT = tuple("01234567")


def groups_of(text, visible):
    return [group.indices for group in parse_devices(text, visible)]


@pytest.mark.parametrize(
    ("text", "visible", "expected"),
    [
        ("0", EIGHT, [(0,)]),
        ("0,1", EIGHT, [(0,), (1,)]),
        (" 3 , 1 ", EIGHT, [(3,), (1,)]),
        ("0-3", EIGHT, [(0,), (1,), (2,), (3,)]),
        ("0-1,6-7", EIGHT, [(0,), (1,), (6,), (7,)]),
        ("all", ("0", "1"), [(0,), (1,)]),
        ("auto", ("0", "1"), [(0,), (1,)]),
        ("0-7:tp2", EIGHT, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("0,1:tp2", EIGHT, [(0, 1)]),
        ("all:tp8", EIGHT, [(0, 1, 2, 3, 4, 5, 6, 7)]),
    ],
)
def test_one_group_per_engine(text, visible, expected):
    assert groups_of(text, visible) == expected
    assert {group.kind for group in parse_devices(text, visible)} == {"cuda"}


def test_cpu_is_one_group_without_a_gpu():
    assert parse_devices("cpu") == (DeviceGroup("cpu", "cpu", ()),)
    assert parse_devices("cpu", EIGHT) == (DeviceGroup("cpu", "cpu", ()),)
    assert parse_devices("auto", ()) == (DeviceGroup("cpu", "cpu", ()),)


def test_group_names_are_distinct_and_say_which_gpus():
    assert [group.name for group in parse_devices("0-3:tp2", EIGHT)] == ["gpu-0-1", "gpu-2-3"]
    assert [group.name for group in parse_devices("0,5", EIGHT)] == ["gpu-0", "gpu-5"]


@pytest.mark.parametrize(
    ("text", "visible", "words"),
    [
        ("8", EIGHT, ["GPU 8 does not exist", "0..7"]),
        ("0,8", EIGHT, ["GPU 8 does not exist"]),
        ("0", (), ["no GPU", "cpu"]),
        ("all", (), ["no GPU", "cpu"]),
        ("auto:tp2", (), ["no GPU"]),
        ("0,0", EIGHT, ["GPU 0 is given twice"]),
        ("0-3,2", EIGHT, ["GPU 2 is given twice"]),
        ("3-0", EIGHT, ["runs backwards", "0-3"]),
        ("0-2:tp2", EIGHT, ["3 GPUs", "groups of 2"]),
        ("cuda", EIGHT, ["'cuda'", "auto, all, cpu"]),
        ("", EIGHT, ["''"]),
        ("0:tp0", EIGHT, ["'0:tp0'"]),
        ("cpu:tp2", EIGHT, ["'cpu'"]),
        ("cpu,0", EIGHT, ["'cpu'"]),
        ("-1", EIGHT, ["'-1'"]),
    ],
)
def test_a_bad_device_string_is_named_with_its_limit_and_cure(text, visible, words):
    with pytest.raises(DeviceError) as error:
        parse_devices(text, visible)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_an_engine_sees_its_own_gpus_only(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first, second = parse_devices("0-3:tp2", EIGHT)
    assert environment(first, EIGHT) == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert environment(second, EIGHT)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment(DeviceGroup("cpu", "cpu", ()), EIGHT) == {"CUDA_VISIBLE_DEVICES": ""}


def test_indices_count_within_the_gpus_that_the_parent_was_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-a1")
    visible = ("5", "GPU-a1")
    first, second = parse_devices("all", visible)
    assert environment(first, visible) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert environment(second, visible) == {"CUDA_VISIBLE_DEVICES": "GPU-a1"}


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", "99"])
def test_gpus_hidden_from_this_process_do_not_count(monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert visible_gpus() == ()
    assert parse_devices("auto") == (DeviceGroup("cpu", "cpu", ()),)


def test_looking_for_gpus_imports_no_torch():
    code = "import sys; from tasks.engine.devices import parse_devices as p; p('auto'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "False\n"
