"""One job that is stopped by Ctrl-C, then killed, then loses its engine on a terminal, and is whole at the end."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs import Job, chat, snapshot, user_environment, write_lines
from terminals import Terminal

from storage.checks import check_store
from storage.file_checks import check_files, check_header
from storage.findings import CheckReport
from storage.store import init_store, open_store

NUM_ROWS = 200
# Samples that an engine may commit just before it is killed and not tell of: one an encoder thread.
UNTOLD = 8
COLUMNS = 110

Files = dict[Path, tuple[int, int, int]]
Process = subprocess.Popen[bytes]


@dataclass
class Step:
    """What one `aerie extract` did, and what it left."""

    returncode: int
    seconds_to_end: float
    survivors: list[psutil.Process]
    before: Files
    after: Files
    check: CheckReport
    report: dict[str, Any] | None


@dataclass
class Story:
    """The job and its store."""

    job: Job

    @property
    def store(self) -> Path:
        return Path(self.job.flags["store"])

    def run(self, before: Files, end: Callable[[Process], None], **output: Any) -> Step:
        """Run the job, do `end` to it once it has committed some samples, and look at what is left."""
        runs = set(self.store.glob("runs/*"))
        command, env = self.job.command("extract"), user_environment() | {"TERM": "xterm-256color"}
        # A session, as a shell gives its jobs a process group.
        aerie = subprocess.Popen(command, cwd=self.job.folder, env=env, start_new_session=True, **output)
        children = self._wait_for_commits(aerie)
        end(aerie)
        ended = time.monotonic()
        returncode = aerie.wait(timeout=300)
        _, survivors = psutil.wait_procs(children, timeout=60)
        seconds = time.monotonic() - ended
        after = snapshot(self.store / "objects")
        check = check_store(self.store, open_store(self.store).spec_digest)
        [folder] = set(self.store.glob("runs/*")) - runs
        report = json.loads(text) if (text := read(folder / "report.json")) else None
        return Step(returncode, seconds, survivors, before, after, check, report)

    def _wait_for_commits(self, aerie: Process) -> list[psutil.Process]:
        there = num_samples(self.store)
        while aerie.poll() is None:
            if num_samples(self.store) >= there + 5:
                return psutil.Process(aerie.pid).children(recursive=True)
            time.sleep(0.002)
        pytest.fail(f"it ended with {aerie.returncode} before it had committed 5 samples")


def num_samples(store: Path) -> int:
    return sum(1 for _ in store.glob("objects/*/*/*"))


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def samples_in(files: Files) -> set[str]:
    return {path.parts[path.parts.index("objects") + 3] for path in files}


def press_ctrl_c(aerie: Process) -> None:
    """As a terminal does: to the whole process group."""
    os.killpg(aerie.pid, signal.SIGINT)


def kill_engine(aerie: Process) -> None:
    [engine] = [child for child in psutil.Process(aerie.pid).children() if "tasks.worker" in child.cmdline()]
    engine.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("story")


@pytest.fixture(scope="module")
def story(folder: Path, tiny_model: Callable[[str], Path]) -> Story:
    rows = [chat(f"Question {i}: why?", f"Answer {i}: because. " * (1 + i % 5)) for i in range(NUM_ROWS)]
    data = write_lines(folder / "chats.jsonl", map(json.dumps, rows))
    flags = {"model": tiny_model("llama"), "data": data, "store": folder / "store", "devices": "cpu"}
    return Story(Job(folder, flags | {"max-batch-tokens": 64, "compact": "false"}))


@pytest.fixture(scope="module")
def stopped(story: Story, folder: Path) -> Step:
    with (folder / "stopped.out").open("wb") as out, (folder / "stopped.err").open("wb") as err:
        return story.run({}, press_ctrl_c, stdout=out, stderr=err)


@pytest.fixture(scope="module")
def killed(story: Story, folder: Path, stopped: Step) -> Step:
    with (folder / "killed.out").open("wb") as out:
        return story.run(stopped.after, lambda aerie: aerie.kill(), stdout=out, stderr=out)


@pytest.fixture(scope="module")
def terminal() -> Terminal:
    return Terminal(COLUMNS)


@pytest.fixture(scope="module")
def completed(story: Story, terminal: Terminal, killed: Step) -> Step:
    with terminal:
        return story.run(killed.after, kill_engine, stdin=terminal.fd, stdout=terminal.fd, stderr=terminal.fd)


class TestCtrlC:
    def test_it_ends_soon_with_130_and_one_line(self, stopped: Step, folder: Path) -> None:
        assert stopped.returncode == 130
        assert stopped.seconds_to_end < 60
        *progress, last = read(folder / "stopped.err").splitlines()
        assert last == "aerie: interrupted; what was computed is kept, the same command continues"
        assert not [line for line in progress if "aerie:" in line or "Error" in line or "Traceback" in line]
        assert read(folder / "stopped.out") == ""

    def test_no_process_is_left(self, stopped: Step) -> None:
        assert stopped.survivors == []

    def test_it_leaves_whole_samples_and_an_exact_report(self, stopped: Step) -> None:
        there = len(samples_in(stopped.after))
        assert 5 <= there < NUM_ROWS, "it was not interrupted half-way"
        assert (stopped.check.checked, stopped.check.findings) == (there, [])
        assert stopped.report is not None
        assert (stopped.report["status"], stopped.report["error"]) == ("interrupted", "KeyboardInterrupt")
        rows = stopped.report["rows"]
        assert rows["in"] == NUM_ROWS == rows["done"] + rows["unfinished"]
        assert 0 < rows["done"] <= there

    @pytest.mark.usefixtures("stopped")
    def test_progress_is_plain_lines_where_there_is_no_terminal(self, folder: Path) -> None:
        text = read(folder / "stopped.err")
        assert "\x1b" not in text
        assert "\r" not in text
        for part in (
            "tokenize: ",
            f"{NUM_ROWS} rows: {NUM_ROWS} samples to compute",
            "extract: ",
            "engine: load model",
        ):
            assert part in text


class TestKill:
    def test_its_children_end_with_it(self, killed: Step) -> None:
        assert killed.returncode == -signal.SIGKILL
        assert killed.survivors == []

    def test_no_half_written_sample_is_visible(self, killed: Step) -> None:
        there = samples_in(killed.after)
        assert samples_in(killed.before) < there
        assert len(there) < NUM_ROWS, "it was not killed half-way"
        assert (killed.check.checked, killed.check.findings) == (len(there), [])
        assert killed.before.items() <= killed.after.items(), "what was committed is not touched again"


class TestTheLastRun:
    def test_a_run_whose_engine_was_killed_completes(self, completed: Step) -> None:
        assert completed.returncode == 0
        assert completed.report is not None
        assert completed.report["status"] == "completed"
        assert completed.survivors == []

    def test_it_does_exactly_the_rest(self, killed: Step, completed: Step) -> None:
        assert completed.report is not None
        there = len(samples_in(killed.after))
        rows = completed.report["rows"]
        assert rows["done"] + rows["reused"] == rows["in"] == NUM_ROWS
        assert (rows["duplicate"], rows["rejected"], rows["quarantined"], rows["unfinished"]) == (0, {}, {}, 0)
        assert there <= rows["reused"] <= there + UNTOLD
        assert completed.before.items() <= completed.after.items(), "what was committed is not computed again"
        assert len(samples_in(completed.after)) == NUM_ROWS
        assert completed.check.findings == []

    def test_the_store_is_clean(self, story: Story, completed: Step) -> None:
        init_store(story.store)
        assert list((story.store / "tmp").iterdir()) == [], "what the killed left is swept when the next run starts"
        assert (completed.check.checked, completed.check.findings) == (NUM_ROWS, [])
        assert check_header(story.store) + check_files(story.store) == []

    @pytest.mark.usefixtures("completed")
    def test_its_terminal_shows_bars_and_the_summary(self, terminal: Terminal) -> None:
        lines = terminal.lines()
        [last] = [line for line in reversed(lines) if line.startswith("extract") and "tokens" in line][:1]
        assert re.search(r"[\d,]+/[\d,]+ tokens  [\d,]+/s  [\d.]+ [kM]B", last)
        for start in ("extract ", "validate ", "engine: load model", "engine: ready", "Run"):
            assert any(line.startswith(start) for line in lines), start
        assert any(line.startswith(" rows ") and f"{NUM_ROWS} = " in line for line in lines)

    @pytest.mark.usefixtures("completed")
    def test_its_terminal_shows_no_garbage(self, terminal: Terminal) -> None:
        lines = terminal.lines()
        assert not [line for line in lines if not line.isprintable()]
        assert not [line for line in lines if "Traceback" in line or "Error" in line or "prefect" in line.lower()]
        drawn = [line for line in lines if "━" in line]
        assert drawn
        assert max(map(len, drawn)) <= COLUMNS
