import os
import subprocess
import sys

import pytest

from tasks.engine.devices import DeviceGroup, environment, layout_of, num_cores, parse_devices
from tasks.engine.errors import DeviceError
from tasks.engine.gpus import Gpu, choose_gpus, visible_gpus

UUIDS = [f"GPU-{number}a1b2" for number in range(8)]
EIGHT = choose_gpus("0,1,2,3,4,5,6,7", UUIDS)
TWO = EIGHT[:2]


def groups_of(text, visible):
    return [tuple(int(gpu.entry) for gpu in group.gpus) for group in parse_devices(text, visible)]


@pytest.mark.parametrize(
    ("text", "visible", "expected"),
    [
        ("0", EIGHT, [(0,)]),
        ("0,1", EIGHT, [(0,), (1,)]),
        (" 3 , 1 ", EIGHT, [(3,), (1,)]),
        ("0-3", EIGHT, [(0,), (1,), (2,), (3,)]),
        ("0-1,6-7", EIGHT, [(0,), (1,), (6,), (7,)]),
        ("all", TWO, [(0,), (1,)]),
        ("auto", TWO, [(0,), (1,)]),
        ("0-7:tp2", EIGHT, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("0,1:tp2", EIGHT, [(0, 1)]),
        ("all:tp8", EIGHT, [(0, 1, 2, 3, 4, 5, 6, 7)]),
        ("0-7:tp4:ep2", EIGHT, [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ],
)
def test_one_group_per_engine(text, visible, expected):
    assert groups_of(text, visible) == expected
    assert {group.kind for group in parse_devices(text, visible)} == {"cuda"}


def test_a_layout_says_how_many_ranks_share_the_model_and_how_many_parts_the_experts():
    assert {(group.tp_size, group.ep_size) for group in parse_devices("0-7:tp4:ep2", EIGHT)} == {(4, 2)}
    assert {(group.tp_size, group.ep_size) for group in parse_devices("0-7:tp8:ep8", EIGHT)} == {(8, 8)}
    assert {(group.tp_size, group.ep_size) for group in parse_devices("0-7", EIGHT)} == {(1, 1)}


@pytest.mark.parametrize(("text", "visible"), [("cpu", None), ("cpu", EIGHT), ("auto", ())])
def test_cpu_is_one_group_without_a_gpu_and_with_all_threads(text, visible):
    assert parse_devices(text, visible) == (DeviceGroup("cpu", "cpu"),)


@pytest.mark.parametrize(
    ("text", "names", "tp_size"),
    [("cpu,cpu", ["cpu-0", "cpu-1"], 1), ("cpu, cpu ,cpu", ["cpu-0", "cpu-1", "cpu-2"], 1), ("cpu:tp2", ["cpu"], 2)],
)
def test_several_engines_or_ranks_share_the_cores_of_a_cpu(text, names, tp_size):
    groups = parse_devices(text)
    assert [group.name for group in groups] == names
    assert {group.tp_size for group in groups} == {tp_size}
    ranks = len(groups) * tp_size
    assert {group.num_threads for group in groups} == {max(1, num_cores() // ranks)}


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
        ("0\n1", EIGHT, ["'0\\n1'"]),
        ("cpu,0", EIGHT, ["'cpu'"]),
        ("cpu,", EIGHT, ["'cpu'"]),
        ("-1", EIGHT, ["'-1'"]),
        ("0-7:tp8:ep3", EIGHT, ["ep3 does not divide tp8"]),
        ("0:ep2", EIGHT, ["ep2 does not divide tp1"]),
        ("0-7:ep2:tp2", EIGHT, ["'0-7:ep2'"]),
        ("cpu:tp2:ep2", EIGHT, ["experts", "on a CPU", ":ep2"]),
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
    assert environment(first) == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert environment(second)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment(DeviceGroup("cpu", "cpu")) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_share_of_the_cores_gives_way_to_what_the_user_says(monkeypatch):
    group = DeviceGroup("cpu-0", "cpu", num_threads=3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(group) == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "3"}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in environment(group)


def test_numbers_count_within_the_gpus_that_the_parent_was_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-1a1")
    first, second = parse_devices("all", choose_gpus(os.environ["CUDA_VISIBLE_DEVICES"], UUIDS))
    assert environment(first) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert environment(second) == {"CUDA_VISIBLE_DEVICES": "GPU-1a1"}
    assert [gpu.uuid for group in (first, second) for gpu in group.gpus] == ["GPU-5a1b2", "GPU-1a1b2"]


@pytest.mark.parametrize(
    ("chosen", "entries"),
    [
        ("1,0", ["1", "0"]),
        (" 2 , 3", ["2", "3"]),
        ("0,99,1", ["0"]),
        ("0,-1,1", ["0"]),
        ("GPU-", []),  # of several
        ("GPU-7a,1", ["GPU-7a", "1"]),
        ("MIG-8-b,MIG-8-c", ["MIG-8-b", "MIG-8-c"]),
    ],
)
def test_gpus_are_chosen_as_cuda_does(chosen, entries):
    assert [gpu.entry for gpu in choose_gpus(chosen, UUIDS)] == entries


def test_a_gpu_has_one_uuid_however_it_is_named():
    assert choose_gpus("3", UUIDS)[0].uuid == choose_gpus("GPU-3", UUIDS)[0].uuid == choose_gpus("1,3", UUIDS)[1].uuid
    assert choose_gpus("MIG-8-b", UUIDS) == (Gpu("MIG-8-b", "MIG-8-b"),)
    assert choose_gpus("0", []) == choose_gpus("MIG-8-b", []) == ()


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", "99"])
def test_gpus_hidden_from_this_process_do_not_count(monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert visible_gpus() == ()
    assert parse_devices("auto") == (DeviceGroup("cpu", "cpu"),)


def test_looking_for_gpus_imports_no_torch():
    code = "import sys; from tasks.engine.devices import parse_devices as p; p('auto'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("text", "kind", "tp_size", "ep_size"),
    [("auto", "cuda", 1, 1), ("0-7:tp4:ep2", "cuda", 4, 2), ("cpu,cpu", "cpu", 1, 1), ("cpu:tp2", "cpu", 2, 1)],
)
def test_the_layout_of_another_host_needs_none_of_its_gpus(text: str, kind: str, tp_size: int, ep_size: int) -> None:
    group = layout_of(text)
    assert (group.kind, group.tp_size, group.ep_size, group.gpus) == (kind, tp_size, ep_size, ())
