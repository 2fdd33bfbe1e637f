"""What each command of a real `aerie` prints, for people and as JSON, and what it leaves alone."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jobs import (
    AERIE,
    DUPLICATES,
    GOOD,
    LINES,
    REJECTED,
    Finished,
    Job,
    refusal,
    run,
    run_aerie,
    snapshot,
    user_environment,
    write_lines,
)

from storage.store import open_store


def as_json(done: subprocess.CompletedProcess[str], returncode: int = 0) -> Any:
    """Parse the one line that a command with --json prints."""
    assert done.returncode == returncode, done.stderr
    [line] = done.stdout.splitlines()
    return json.loads(line)


@pytest.fixture
def store(finished: Finished, tmp_path: Path) -> Path:
    """Return a copy of a store with loose objects."""
    return Path(shutil.copytree(finished.store, tmp_path / "copy"))


@pytest.fixture
def again(finished: Finished, job: Job, store: Path) -> Job:
    """Return the job that filled the store."""
    job.flags |= {"data": finished.settings.data[0], "store": store}
    return job


class TestPlan:
    def test_it_says_what_a_run_would_do_and_writes_nothing(self, job: Job) -> None:
        before = snapshot(job.folder)
        document = as_json(job.run("plan", "--json", "--layers", "0,final"))
        assert (document["rows"], document["rejected"], document["duplicates"]) == (len(LINES), REJECTED, DUPLICATES)
        assert (document["samples_reused"], document["samples_to_compute"]) == (0, len(GOOD))
        assert document["raw_bytes"] == document["tokens_to_compute"] * 2 * 256 * 2
        assert 0 < document["stored_bytes_expected"] < document["raw_bytes"] < document["free_bytes"]
        assert (document["layers"], document["devices"]) == ([0, "final"], ["cpu"])
        assert snapshot(job.folder) == before
        assert not Path(job.flags["store"]).exists()

    def test_it_counts_what_the_store_has(self, again: Job, finished: Finished) -> None:
        before = snapshot(again.folder)
        document = as_json(again.run("plan", "--json"))
        assert (document["samples_reused"], document["samples_to_compute"]) == (len(GOOD), 0)
        assert document["spec_digest"] == finished.report.spec_digest
        assert document["tokens_digest"] == finished.report.tokens_digest
        assert snapshot(again.folder) == before

    def test_people_get_a_table(self, again: Job) -> None:
        done = again.run("plan")
        assert done.returncode == 0
        assert f"samples reused         {len(GOOD)}" in done.stdout
        assert "\x1b" not in done.stdout


class TestExtract:
    def test_the_last_line_is_the_report(self, again: Job) -> None:
        done = again.run("extract", "--json")
        document = as_json(done)
        assert document["rows"]["reused"] == len(GOOD)
        path = Path(document["store"], "runs", document["run_id"], "report.json")
        assert json.loads(path.read_text()) == document
        assert "Traceback" not in done.stderr
        assert [line for line in done.stderr.splitlines() if "0 samples to compute" in line]

    def test_rows_that_are_all_unusable_are_one_line_and_a_failed_report(
        self, job: Job, with_server: dict[str, str]
    ) -> None:
        job.env = with_server
        job.flags["data"] = write_lines(job.folder / "bad.jsonl", ["nonsense", '{"messages": []}', "{}"])
        line = refusal(job.run("extract"))
        assert "none of 3 rows can be used (no_messages 2, invalid_json 1)" in line
        store = Path(job.flags["store"])
        assert list((store / "tmp").iterdir()) == []
        assert not (store / "specs").exists()
        assert not (store / "tokens").exists()
        [report] = [json.loads(path.read_text()) for path in store.glob("runs/*/report.json")]
        assert (report["status"], f"aerie: {report['error']}") == ("failed", line)

    def test_a_disk_without_room_is_refused_before_an_engine_starts(
        self, job: Job, with_server: dict[str, str]
    ) -> None:
        folder = job.folder / "disk"
        folder.mkdir()
        job.flags["store"] = folder / "store"
        done = run(on_small_disk("size=4m", folder, job.command("extract")), cwd=job.folder, env=with_server)
        line = refusal(done)
        for part in (f"{folder}/store has ", " bytes free, the run needs about ", "free some space"):
            assert part in line
        assert "engine" not in done.stderr

    def test_a_read_only_store_is_refused_at_once(self, job: Job) -> None:
        folder = job.folder / "disk"
        folder.mkdir()
        job.flags["store"] = folder / "store"
        done = run(on_small_disk("ro", folder, job.command("extract")), cwd=job.folder)
        line = refusal(done)
        assert done.stderr.splitlines() == [line]
        assert f"{folder} cannot be written; choose a writable store" in line


def on_small_disk(options: str, folder: Path, command: list[str]) -> list[str]:
    """Return the command, run where `folder` is a file system of its own that nobody else sees."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system in a namespace of its own is not permitted here")
    mount = f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, str(folder), *command]


class TestSettings:
    @pytest.fixture
    def spread(self, job: Job) -> Job:
        """Settings from every source."""
        (job.folder / "aerie.toml").write_text('layers = "0,final"\nunit_tokens = 3\n')
        (job.folder / ".env").write_text("AERIE_UNIT_TOKENS=4\nAERIE_DTYPE=float16\n")
        job.env = {"AERIE_DTYPE": "bfloat16"}
        return job

    def test_every_value_is_shown_with_its_source(self, spread: Job) -> None:
        document = as_json(spread.run("settings", "--json"))
        assert document["model"] == {"value": str(spread.flags["model"]), "source": "flag"}
        assert document["layers"] == {"value": "0,final", "source": "aerie.toml"}
        assert document["unit_tokens"] == {"value": 4, "source": ".env"}
        assert document["dtype"] == {"value": "bfloat16", "source": "environment AERIE_DTYPE"}
        assert document["compact"] == {"value": True, "source": "default"}

    def test_people_get_a_table(self, spread: Job) -> None:
        lines = spread.run("settings").stdout.splitlines()
        [line] = [line for line in lines if line.startswith(" dtype ")]
        assert line.split() == ["dtype", "bfloat16", "environment", "AERIE_DTYPE"]
        assert str(spread.flags["model"]) in "\n".join(lines), "a path is not wrapped where no person looks"


class TestShow:
    def test_it_says_what_the_store_holds(self, finished: Finished, tmp_path: Path) -> None:
        before = snapshot(finished.store)
        document = as_json(run_aerie("show", finished.store, "--json", cwd=tmp_path))
        [states] = document["specs"]
        report = finished.report
        assert document["store"] == str(finished.store)
        assert states["spec_digest"] == report.spec_digest
        assert (states["samples"], states["tokens"]) == (len(GOOD), report.tokens)
        assert (states["raw_bytes"], states["stored_bytes"]) == (report.bytes.raw, report.bytes.stored)
        assert states.items() >= report.spec.items()
        text = run_aerie("show", finished.store, "--spec", report.spec_digest[:8], cwd=tmp_path).stdout
        assert report.spec_digest in text
        assert snapshot(finished.store) == before

    def test_a_store_without_states_is_said_to_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "aerie.json").write_text('{"format":"aerie","format_version":1}')
        done = run_aerie("show", "store", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "store is a store without states\n")


class TestMaintenance:
    def test_validate_names_what_is_damaged_and_repair_has_the_next_run_redo_it(
        self, again: Job, store: Path, with_server: dict[str, str]
    ) -> None:
        shards = sorted(store.glob("objects/*/*/*/hidden_states/c/0/0/0"))
        content = bytearray(shards[0].read_bytes())
        content[100] ^= 1
        shards[0].write_bytes(content)
        name = shards[0].parts[-6]
        done = run_aerie("validate", store, "--repair", "--json", cwd=again.folder, env=with_server)
        document = as_json(done)
        assert (document["checked"], document["bad"]) == (len(GOOD), 1)
        assert [(finding["sample_hash"], finding["reason"]) for finding in document["findings"]] == [(name, "checksum")]
        assert f"{name}: checksum: " in done.stderr
        assert as_json(again.run("plan", "--json"))["samples_to_compute"] == 1

    def test_validate_ends_with_1_until_what_is_bad_was_set_aside(
        self, store: Path, with_server: dict[str, str], tmp_path: Path
    ) -> None:
        """Damage in every part of a store, and a share of the samples."""
        (store / "aerie.json").unlink()
        next(store.glob("tokens/*/row/zarr.json")).unlink()
        shard = min(store.glob("objects/*/*/*/hidden_states/c/0/0/0"), key=lambda path: path.parts[-6])
        shard.write_bytes(b"")
        command = ("validate", store, "--fraction", "0.9999", "--threads", "1")
        found = [run_aerie(*command, *more, cwd=tmp_path, env=with_server) for more in ([], ["--repair"], [])]
        assert [done.returncode for done in found] == [1, 0, 0]
        assert "--repair sets aside" in found[0].stdout
        for words in ("header: metadata: ", "tokens ", f"{shard.parts[-6]}: torn: "):
            assert words in found[1].stderr
        assert found[2].stdout.startswith(f"{len(GOOD) - 1} samples checked, 0 bad")

    @pytest.mark.parametrize("fraction", ["0", "-1", "1.5", "all"])
    def test_a_fraction_is_a_share(self, tmp_path: Path, fraction: str) -> None:
        done = run_aerie("validate", "store", "--fraction", fraction, cwd=tmp_path)
        assert done.returncode == 2
        assert "--fraction" in done.stderr

    def test_compact_leaves_one_pack_and_the_same_states(
        self, store: Path, finished: Finished, with_server: dict[str, str], tmp_path: Path
    ) -> None:
        done = run_aerie("compact", store, cwd=tmp_path, env=with_server)
        assert done.returncode == 0
        assert done.stdout.startswith(f"{len(GOOD)} samples packed, ")
        assert not list(store.glob("objects/*/*/*"))
        packed, loose = open_store(store), finished.result.store
        assert set(packed) == set(loose)
        for name in loose:
            assert packed[name].hidden_states().tobytes() == loose[name].hidden_states().tobytes()

    def test_gc_says_what_would_be_freed_and_frees_it_when_told(
        self, store: Path, with_server: dict[str, str], tmp_path: Path
    ) -> None:
        (tokens,) = (store / "tokens").iterdir()
        tokens.rename(store / "tokens" / "not-ours")
        before = snapshot(store)
        without_server = with_server | {"PREFECT_API_URL": "http://127.0.0.1:9/api"}  # to look needs none
        document = as_json(run_aerie("gc", store, "--json", cwd=tmp_path, env=without_server))
        assert (document["is_freed"], document["kinds"]) == (False, {})
        assert snapshot(store) == before
        (store / "tokens" / "not-ours").rename(tokens)
        (next(store.glob("objects/*/*/*/zarr.json"))).unlink()
        as_json(run_aerie("validate", store, "--repair", "--json", cwd=tmp_path, env=with_server))
        done = run_aerie("gc", store, cwd=tmp_path, env=with_server)
        assert done.returncode == 0
        assert "quarantine 1, " in " ".join(done.stdout.split())
        assert done.stdout.endswith("nothing was changed; --yes frees it\n")
        document = as_json(run_aerie("gc", store, "--yes", "--json", cwd=tmp_path, env=with_server))
        assert document["is_freed"]
        assert document["kinds"]["quarantine"]["count"] == 1
        assert document["bytes"] == document["kinds"]["quarantine"]["bytes"] > 0
        assert len(open_store(store)) == len(GOOD) - 1

    @pytest.mark.parametrize(
        ("command", "place", "words"),
        [
            ("show", "nowhere", "nowhere is not a folder"),
            ("show", "folder", "folder has no aerie.json"),
            ("show", "future", "future has format version 2, this aerie reads 1"),
            ("validate", "folder", "folder has no aerie.json"),
            ("compact", "nowhere", "nowhere is not a folder"),
            ("gc", "future", "future has format version 2, this aerie reads 1"),
        ],
    )
    def test_what_is_no_store_is_refused(self, tmp_path: Path, command: str, place: str, words: str) -> None:
        for name in ("folder", "future"):
            (tmp_path / name).mkdir()
        (tmp_path / "folder" / "thesis.tex").write_text("")
        (tmp_path / "future" / "aerie.json").write_text('{"format":"aerie","format_version":2}')
        before = snapshot(tmp_path)
        line = refusal(run_aerie(command, place, cwd=tmp_path))
        assert words in line
        assert snapshot(tmp_path) == before

    def test_a_prefect_server_that_does_not_answer_is_named_in_one_line(self, store: Path, tmp_path: Path) -> None:
        server = {"PREFECT_API_URL": "http://somebody:secret@127.0.0.1:9/api"}
        for command in (["validate"], ["compact"], ["gc", "--yes"]):
            line = refusal(run_aerie(*command, store, cwd=tmp_path, env=server))
            assert "Prefect's server at 127.0.0.1 (PREFECT_API_URL) does not answer: " in line
            assert "secret" not in line

    def test_a_spec_that_is_not_there_is_refused_with_those_that_are(self, finished: Finished, tmp_path: Path) -> None:
        for command in ("show", "validate", "compact"):
            line = refusal(run_aerie(command, finished.store, "--spec", "beef", cwd=tmp_path))
            assert finished.report.spec_digest in line


class TestUsage:
    @pytest.mark.parametrize("arguments", [[], ["extrct"], ["extract", "--layer", "2"], ["show"], ["plan", "--data"]])
    def test_wrong_usage_is_2_with_how_it_is_used(self, tmp_path: Path, arguments: list[str]) -> None:
        done = run_aerie(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("usage: aerie")
        assert "Traceback" not in done.stderr

    def test_every_command_and_every_setting_is_explained(self, tmp_path: Path) -> None:
        from flows import Settings

        text = run_aerie("--help", cwd=tmp_path).stdout
        for command in ("demo", "extract", "plan", "show", "validate", "compact", "gc", "settings"):
            assert f"    {command} " in text
        flags = run_aerie("extract", "--help", cwd=tmp_path).stdout
        for name in Settings.model_fields:
            assert f"--{name.replace('_', '-')} " in flags

    @pytest.mark.parametrize("arguments", [["settings", "--json"], ["settings"], ["--help"], ["extract", "--help"]])
    def test_a_reader_that_has_gone_is_no_error_message(self, job: Job, arguments: list[str]) -> None:
        more = job.command("")[2:] if arguments[0] == "settings" else []
        ours, theirs = os.pipe()
        os.close(ours)
        done = subprocess.run(
            [str(AERIE), *arguments, *more],
            cwd=job.folder,
            env=user_environment(),
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(theirs)
        assert (done.returncode, done.stderr) == (1, "")
