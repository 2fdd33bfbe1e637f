"""A whole job whose store is in a bucket: planned, killed, taken up again, looked at, damaged, repaired, cleaned up."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import DUPLICATES, GOOD, LINES, REJECTED, Job, run_aerie, user_environment
from s3_server import KEY_ID, SECRET
from stored_files import damage_file, list_files, read_file

from storage import open_store, open_tokens
from storage.checks import check_store
from storage.paths import ObjectPath

ROOT = Path(__file__).parents[2]
FIRST = 3


@pytest.fixture
def job(job: Job, s3_place: ObjectPath, with_server: dict[str, str]) -> Job:
    job.flags |= {"store": s3_place, "recheck-fraction": 0, "max-batch-tokens": 64}
    job.env |= with_server
    return job


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert KEY_ID not in done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def num_objects(place: ObjectPath) -> int:
    return sum(name.startswith("objects/") and name.count("/") == 5 for name in list_files(place))


def kill_after(job: Job, place: ObjectPath, samples: int) -> None:
    """Run the job with an engine that stands still after some samples, and kill all of it then."""
    faults = {"FAULTS": json.dumps({"diary": str(job.folder / "diary"), "pause": samples})}
    env = user_environment() | job.env | faults | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
    command = [sys.executable, "-m", "faulty_aerie", *job.command("extract")[1:]]
    with (job.folder / "said").open("wb") as said:
        run = subprocess.Popen(command, cwd=job.folder, env=env, stderr=said, start_new_session=True)
    while num_objects(place) < samples:
        assert run.poll() is None, (job.folder / "said").read_text()
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(timeout=60)


def test_a_job_in_a_bucket(job: Job, s3_place: ObjectPath) -> None:
    planned = document(job.run("plan", "--json"))
    assert (planned["samples_to_compute"], planned["free_bytes"]) == (len(GOOD), None)
    assert job.run("plan").returncode == 0, "a person's table, too"
    assert not list_files(s3_place)

    kill_after(job, s3_place, FIRST)
    report = document(job.run("extract", "--json", "--compact", "false"))
    assert report["store"] == str(s3_place)
    rows = report["rows"]
    assert (rows["in"], rows["reused"], rows["done"]) == (len(LINES), FIRST, len(GOOD) - FIRST)
    assert (rows["duplicate"], rows["rejected"], rows["unfinished"]) == (DUPLICATES, REJECTED, 0)
    assert num_objects(s3_place) == len(GOOD)
    names = list_files(s3_place)
    runs = {name.rpartition("/")[2] for name in names if name.startswith(f"runs/{report['run_id']}/")}
    assert runs == {"report.html", "report.json", "engine-cpu.log"}
    assert not [name for name in names if name.startswith("tmp/")]
    for name in names:
        data = read_file(s3_place / name)
        assert SECRET.encode() not in data
        assert KEY_ID.encode() not in data

    spec_digest = report["spec_digest"]
    bad = next(name for name in names if name.endswith("hidden_states/c/0/0/0"))
    damage_file(s3_place / bad, 40)
    assert document(run_aerie("validate", s3_place, "--repair", "--json", cwd=job.folder, env=job.env))["bad"] == 1
    again = document(job.run("extract", "--json"))
    assert (again["rows"]["reused"], again["rows"]["done"]) == (len(GOOD) - 1, 1)
    assert num_objects(s3_place) == 0, "compacted"
    assert not check_store(s3_place, spec_digest).findings

    shown = document(run_aerie("show", s3_place, "--json", cwd=job.folder, env=job.env))
    assert [spec["samples"] for spec in shown["specs"]] == [len(GOOD)]
    garbage = document(run_aerie("gc", s3_place, "--yes", "--json", cwd=job.folder, env=job.env))
    assert list(garbage["kinds"]) == ["quarantine"]

    del job.flags["store"]
    job.env["AERIE_STORE"] = str(s3_place)
    settings = document(job.run("settings", "--json"))
    assert settings["store"] == {"value": str(s3_place), "source": "environment AERIE_STORE"}
    last = document(job.run("extract", "--json"))
    assert (last["rows"]["reused"], last["rows"]["done"]) == (len(GOOD), 0)
    tokens = open_tokens(s3_place, last["tokens_digest"])
    assert tokens is not None
    assert set(tokens.sample_hashes) == set(open_store(s3_place))


def test_another_scheme_is_refused(job: Job) -> None:
    job.flags["store"] = "gs://bucket/store"
    done = job.run("extract")
    assert done.returncode == 1
    assert done.stderr.startswith("aerie: store = 'gs://bucket/store' (flag)")
    done = run_aerie("show", "gs://bucket/store", cwd=job.folder)
    assert done.returncode == 2
    assert "gs://bucket/store is no place for a store; give a folder or s3://BUCKET/PREFIX" in done.stderr
