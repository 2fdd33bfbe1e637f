"""What all commands have in common: examples, colour, exit codes, dry runs that write nothing."""

import argparse
import json
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import AERIE, GOOD, Finished, Job, run, run_aerie, snapshot, user_environment
from terminals import Terminal

from flows.cli import main
from flows.command_examples import EXAMPLES
from flows.parser import make_parser
from flows.printing import make_console

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
NOT_FOUND, WRONG_USAGE, INTERRUPTED = 1, 2, 130


def commands() -> dict[str, argparse.ArgumentParser]:
    [subparsers] = make_parser()._subparsers._group_actions
    return dict(subparsers.choices)


@pytest.mark.parametrize("name", commands())
def test_the_help_of_a_command_ends_with_examples_that_it_takes(name: str) -> None:
    shown = commands()[name].format_help()
    for example in EXAMPLES[name]:
        assert shown.index(f"\n  {example}\n") > shown.index("--no-color")
        words = shlex.split(example.partition(" > ")[0])
        words = words[words.index("aerie") + 1 :]
        assert words[0] == name
        assert make_parser().parse_args(words).command is commands()[name].get_default("command")


def test_there_are_no_examples_of_other_commands() -> None:
    assert list(EXAMPLES) == sorted(EXAMPLES, key=list(commands()).index)
    assert set(EXAMPLES) == set(commands())


class TestColor:
    def on_a_terminal(self, folder: Path, *flags: str, **env: str) -> str:
        with Terminal(100) as terminal:
            subprocess.run(
                [AERIE, "settings", *flags],
                cwd=folder,
                env=user_environment() | {"TERM": "xterm-256color"} | env,
                stdout=terminal.fd,
                check=True,
            )
        return terminal.raw

    def test_it_is_for_terminals(self, tmp_path: Path) -> None:
        assert "\x1b[" in self.on_a_terminal(tmp_path)
        assert "\x1b" not in run_aerie("settings", cwd=tmp_path).stdout

    def test_whoever_does_not_want_it_gets_none(self, tmp_path: Path) -> None:
        assert "\x1b" not in self.on_a_terminal(tmp_path, "--no-color")
        assert "\x1b" not in self.on_a_terminal(tmp_path, NO_COLOR="1")
        assert "\x1b" not in self.on_a_terminal(tmp_path, TERM="dumb")

    def test_the_flag_may_stand_before_the_command(self) -> None:
        assert make_parser().parse_args(["--no-color", "settings"]).no_color
        assert make_parser().parse_args(["settings", "--no-color"]).no_color
        assert "no_color" not in make_parser().parse_args(["settings"])

    def test_texts_are_printed_as_they_are(self, capsys: pytest.CaptureFixture[str]) -> None:
        make_console().print("[bold]data[/bold] :bug: [/]")
        assert capsys.readouterr().out == "[bold]data[/bold] :bug: [/]\n"


class TestExitCodes:
    @pytest.fixture
    def documented(self) -> dict[int, str]:
        [rows] = re.findall(r"^\| exit code \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
        return {int(code): text for code, text in re.findall(r"^\| (\d+) \| (.*) \|$", rows, re.MULTILINE)}

    def test_each_is_what_the_page_says(self, documented: dict[int, str], tmp_path: Path) -> None:
        found = {
            run_aerie("--version", cwd=tmp_path).returncode,
            run_aerie("show", "nowhere", cwd=tmp_path).returncode,
            run_aerie("show", cwd=tmp_path).returncode,
            self.interrupt(tmp_path),
        }
        assert found == set(documented) == {0, NOT_FOUND, WRONG_USAGE, INTERRUPTED}

    def test_whoever_has_stopped_reading_is_no_success(self, tmp_path: Path) -> None:
        done = run(["bash", "-c", f"{AERIE} extract --help | true; echo ${{PIPESTATUS[0]}}"], cwd=tmp_path)
        assert (done.stdout, done.stderr) == ("1\n", "")

    def interrupt(self, folder: Path) -> int:
        """Interrupt a command that waits: for a server that does not say anything."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
            command = [AERIE, "doctor", "--no-write"]
            env = user_environment() | {"PREFECT_API_URL": url}
            with subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.PIPE, text=True) as aerie:
                silent.settimeout(120)
                with silent.accept()[0]:
                    aerie.send_signal(signal.SIGINT)
                    _, said = aerie.communicate(timeout=60)
        assert said.startswith("aerie: interrupted; ")
        return aerie.returncode


class TestDryRun:
    @pytest.fixture
    def run(self, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
        def run(*arguments: object) -> Any:
            code = main([*map(str, arguments), "--json"])
            done = capsys.readouterr()
            assert code == 0, done.err
            [line] = done.out.splitlines()
            return json.loads(line)

        return run

    def test_of_an_extraction_is_its_plan(self, job: Job, run: Callable[..., Any]) -> None:
        before = snapshot(job.folder)
        planned, found = (run(*job.command(name)[1:], *more) for name, *more in (("plan",), ("extract", "--dry-run")))
        del found["free_bytes"], planned["free_bytes"]  # others write, too
        assert found == planned
        assert found["samples_to_compute"] == len(GOOD)
        assert snapshot(job.folder) == before

    def test_of_a_compaction_counts_what_is_loose(self, finished: Finished, run: Callable[..., Any]) -> None:
        before = snapshot(finished.store)
        found = run("compact", finished.store, "--dry-run")
        loose = sum(path.stat().st_size for path in (finished.store / "objects").rglob("*") if path.is_file())
        assert (found["samples_to_pack"], found["loose_bytes"]) == (len(GOOD), loose)
        assert (found["packs_to_merge"], found["merge_bytes"]) == (0, 0)
        assert snapshot(finished.store) == before

    def test_of_an_import_says_what_the_store_lacks(
        self,
        finished: Finished,
        with_server: dict[str, str],  # noqa: ARG002 - the flow of this process uses it
        run: Callable[..., Any],
        tmp_path: Path,
    ) -> None:
        files, store = tmp_path / "files", tmp_path / "again"
        run("export", finished.store, "--format", "specforge", "--to", files)
        given = ("import", files, "--from", "specforge", "--model", finished.settings.model, "--store", store)
        planned = run(*given, "--dry-run")
        assert (planned["files"], planned["samples_to_store"]) == (10, len(GOOD))
        assert list(tmp_path.iterdir()) == [files]
        done = run(*given)
        assert (done["written"], done["spec_digest"]) == (len(GOOD), planned["spec_digest"])
        assert done["tokens_digest"] == planned["tokens_digest"]
        again = run(*given, "--dry-run")
        assert (again["samples_to_store"], again["samples_present"]) == (0, 10)
