"""`aerie doctor` says of each thing whether it will do, and leaves nothing behind."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jobs import Finished, run, run_aerie, snapshot
from packaging.requirements import Requirement

from flows.diagnosis import Check, as_json, at_least
from flows.gpu_checks import DriverFacts, GpuFacts, find_nvcc, judge_driver, judge_gpus, judge_toolkit
from flows.host_checks import judge_python, judge_system
from flows.package_checks import judge_package, torch_cuda
from flows.store_checks import check_store, measure_rate

H200 = GpuFacts("NVIDIA H200", 150_000_000_000, 149_000_000_000, (9, 0))
T4 = GpuFacts("Tesla T4", 16_000_000_000, 15_000_000_000, (7, 5))
V100 = GpuFacts("Tesla V100", 16_000_000_000, 15_000_000_000, (7, 0))


def as_checks(done: subprocess.CompletedProcess[str], returncode: int) -> dict[str, dict[str, str]]:
    assert done.returncode == returncode, done
    [line] = done.stdout.splitlines()
    document = json.loads(line)
    verdicts = [check["verdict"] for check in document["checks"]]
    assert (document["failed"], document["warned"]) == (verdicts.count("fail"), verdicts.count("warn"))
    assert all(bool(check["cure"]) == (check["verdict"] != "pass") for check in document["checks"])
    return {check["name"]: check for check in document["checks"]}


def test_without_a_gpu_it_warns_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = {"CUDA_VISIBLE_DEVICES": "", "PREFECT_HOME": str(home / "prefect"), "TMPDIR": str(tmp_path)}
    checks = as_checks(run_aerie("doctor", "deep/store", "--json", cwd=tmp_path, env=env), 0)
    assert checks["GPU"]["verdict"] == "warn"
    assert {name for name, check in checks.items() if check["verdict"] == "fail"} == set()
    assert checks["store"]["value"] == "deep/store: none yet"
    assert "268.4 MB in" in checks["disk"]["value"]
    assert "made when needed" in checks["Prefect's folder"]["value"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_told_with_its_cure_and_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.tex").write_text("")
    sglang = tmp_path / "sglang-0.4.0.dist-info"
    sglang.mkdir()
    (sglang / "METADATA").write_text("Name: sglang\nVersion: 0.4.0\n")
    (tmp_path / "aerie.toml").write_text("layer = 2")
    env = {"PYTHONPATH": f".:{os.environ.get('PYTHONPATH', '')}", "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    before = snapshot(tmp_path)
    done = run_aerie("doctor", "store", "--json", "--no-write", cwd=tmp_path, env=env)
    checks = as_checks(done, 1)
    assert {name for name, check in checks.items() if check["verdict"] == "fail"} == {
        "sglang",
        "settings",
        "store",
        "Prefect server",
    }
    assert checks["sglang"]["value"] == "0.4.0, ==0.5.17 is needed"
    assert checks["sglang"]["cure"] == "pip install 'sglang==0.5.17'"
    assert "did you mean layers?" in checks["settings"]["value"]
    assert "store has no aerie.json" in checks["store"]["value"]
    assert "does not answer: [Errno 111]" in checks["Prefect server"]["value"]
    assert "disk" not in checks
    assert snapshot(tmp_path) == before


def test_people_get_a_table_of_a_machine_with_a_store_and_a_server(
    finished: Finished, with_server: dict[str, str], tmp_path: Path
) -> None:
    before = snapshot(finished.store)
    done = run_aerie("doctor", "--no-write", cwd=tmp_path, env=with_server | {"AERIE_STORE": str(finished.store)})
    assert done.returncode == 0, done
    assert f"{finished.store}: a store with states of 1 spec" in done.stdout
    assert f"{with_server['PREFECT_API_URL']}, version 3.9.1" in done.stdout
    assert "store (environment AERIE_STORE)" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" warning") or done.stdout.splitlines()[-1].endswith(" warnings")
    assert snapshot(finished.store) == before


def test_a_limit_of_open_files_that_is_too_low_is_seen(tmp_path: Path) -> None:
    command = [
        "bash",
        "-c",
        'ulimit -n 250; exec "$0" doctor --json --no-write',
        str(Path(os.sys.executable).with_name("aerie")),
    ]
    checks = as_checks(run(command, cwd=tmp_path), 1)
    assert checks["open files"]["value"] == "250, at most 250"
    assert checks["open files"]["cure"] == "ulimit -n 1024"


@pytest.mark.parametrize(
    ("check", "verdict", "words"),
    [
        (judge_driver(DriverFacts("580.65", "13.0", (H200,)), "13.0"), "pass", "580.65, for CUDA 13.0"),
        (judge_driver(DriverFacts("590.1", "13.1", (H200,)), "13.0"), "pass", "590.1"),
        (judge_driver(DriverFacts("570.1", "12.8", (H200,)), "13.0"), "fail", "a driver for CUDA 13 or newer"),
        (judge_driver(DriverFacts("580.65", "13.0", (H200,)), None), "fail", "torch is built without CUDA"),
        (judge_gpus((H200, H200), 2), "pass", "2 x NVIDIA H200, 150.0 GB, capability 9.0"),
        (judge_gpus((H200, H200), 1), "pass", "CUDA_VISIBLE_DEVICES shows 1"),
        (judge_gpus((H200,), 0), "warn", "CUDA_VISIBLE_DEVICES shows none"),
        (judge_gpus((T4,), 1), "warn", "--dtype float16"),
        (judge_gpus((H200, V100), 2), "fail", "capability 7.5 or newer"),
        (judge_toolkit(None, "13.0"), "warn", "set CUDA_HOME"),
        (judge_python((3, 9), "3.9.2"), "warn", "use Python 3.11 or 3.12"),
        (judge_system("Darwin", "arm64"), "fail", "use Linux"),
        (judge_system("Linux", "aarch64"), "warn", "not tested"),
        (judge_package(Requirement("torch==2.11.0"), "2.11.0+cu130"), "pass", "2.11.0+cu130"),
        (judge_package(Requirement("torch==2.11.0"), "2.9.1"), "fail", "2.9.1, ==2.11.0 is needed"),
        (judge_package(Requirement("torch==2.11.0"), None), "fail", "missing"),
        (at_least("n", 1, "1", (1, 2), "more"), "warn", "more"),
    ],
)
def test_what_is_found_is_judged(check: Check, verdict: str, words: str) -> None:
    assert check.verdict == verdict
    assert words in f"{check.value} {check.cure}"


def test_the_compiler_is_run_and_its_release_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.8, V12.8.93"\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "sh")
    assert find_nvcc() == nvcc
    assert judge_toolkit(nvcc, "12.6").verdict == "pass"
    assert "install that of CUDA 13.0" in judge_toolkit(nvcc, "13.0").cure
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler" in judge_toolkit(nvcc, "12.6").value
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    assert "does not run" in judge_toolkit(nvcc, "12.6").value


def test_the_cuda_release_of_torch_is_that_which_torch_says() -> None:
    import torch

    assert torch_cuda() == torch.version.cuda


def test_the_disk_is_measured_with_what_is_written_and_no_longer_than_asked(tmp_path: Path) -> None:
    written, seconds = measure_rate(tmp_path, 1 << 30, 0.0)
    assert written == 16 << 20, "the first block, since the time was over"
    assert seconds > 0
    assert measure_rate(tmp_path, 40 << 20, 600.0)[0] == 48 << 20
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_does_not_answer_fails_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from storage.paths import ObjectPath

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "c"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    [check] = check_store(ObjectPath("bucket", "store"), 0)
    assert check.verdict == "fail"
    assert "\n" not in check.value


def test_all_of_it_is_one_object() -> None:
    document: Any = as_json([Check("a", "pass", "1"), Check("b", "fail", "2", "c")])
    assert document == {
        "failed": 1,
        "warned": 0,
        "checks": [
            {"name": "a", "verdict": "pass", "value": "1", "cure": ""},
            {"name": "b", "verdict": "fail", "value": "2", "cure": "c"},
        ],
    }
