"""Two engines run a flow and one of them meets every fault there is; the faults are those of tests/faulty_worker.py.

Whatever it is, each row ends in one column, the other engine is not touched, what is stored is right, and nothing is
computed again once it is committed.
"""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs import chat, write_lines
from tokenized import ids_of

from flows import RunReport, Settings, extract_hidden_states
from flows.progress import showing
from storage.checks import check_store
from storage.digests import sample_hash
from storage.store import open_store
from tasks.engine.errors import CanaryError
from tasks.engine_process import EngineProcess

FAULTY, OTHER = "engine-cpu-1", "engine-cpu-0"
ROOM = 200  # tokens, in the engine that runs out of memory
LONG = 28  # the row that is longer; none of the first units has it
# Of about 45 to 80 tokens, so that a unit has five and more, and one of about 260.
ROWS = [
    json.dumps(chat(f"Question {number}: why?", "Because it is so. " * (60 if number == LONG else 1 + number % 7)))
    for number in range(32)
]
# Row, fault, and the reason that the report must give. The leak is apart from `short`, which ends up alone.
BAD = [
    (0, "nan", "non_finite"),
    (1, "inf", "non_finite"),
    (2, "zero", "all_zero"),
    (3, "short", "engine_state"),
    (8, "leak", "parity"),
]
# File times are those of the kernel's last tick.
TICK_SECONDS = 0.05


@dataclass
class Entry:
    """A line of the diary that the engines keep."""

    engine: str
    pid: int
    time: float
    word: str
    hashes: list[str]


@dataclass
class Story:
    """One run of the flow, and what was said in it."""

    folder: Path
    go_after: str
    times: int
    notes: list[tuple[float, str]] = field(default_factory=list)
    report: RunReport | None = None
    error: Exception | None = None

    def start_phase(self, name: str, total: int | None = None, unit: str = "tokens") -> None:
        """Say nothing of it."""

    def advance(self, amount: int, stored_bytes: int = 0) -> None:
        if stored_bytes:
            self.note(f"{amount} tokens stored")

    def note(self, text: str) -> None:
        """Keep it, and let the engine that waits go on once `go_after` was said so many times."""
        self.notes.append((time.time(), text))
        if sum(self.go_after in note for _, note in self.notes) == self.times:
            (self.folder / "go").touch()

    @property
    def diary(self) -> list[Entry]:
        return [Entry(*json.loads(line)) for line in (self.folder / "diary").read_text().splitlines()]

    def noted(self, text: str) -> float:
        """Return when a note with this text was made; there is one."""
        [moment] = [moment for moment, note in self.notes if text in note]
        return moment

    def words(self, engine: str, word: str) -> list[Entry]:
        return [entry for entry in self.diary if (entry.engine, entry.word) == (engine, word)]


@pytest.fixture(scope="module")
def hashes(tiny_model: Callable[[str], Path]) -> list[str]:
    """Return the sample hash of each row."""
    return [sample_hash(input_ids) for input_ids in ids_of(tiny_model("llama"), ROWS)]


@pytest.fixture(scope="module")
def tell(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Story]:
    """Return the function that runs the flow with faults in an engine and tells what happened."""

    def run(settings: Settings, story: Story) -> None:
        with showing(story):
            try:
                story.report = extract_hidden_states(settings).report
            except CanaryError as error:
                story.error = error
                [report] = settings.store.glob("runs/*/report.json")
                story.report = RunReport.model_validate_json(report.read_text())

    def tell(faults: dict[str, Any], *, go_after: str = "never", times: int = 1, **changes: Any) -> Story:
        folder = tmp_path_factory.mktemp("matrix")
        story = Story(folder, go_after, times)
        faults = {"engine": FAULTY, "diary": str(folder / "diary")} | faults
        settings = Settings(
            model=tiny_model("llama"),
            data=write_lines(folder / "chats.jsonl", ROWS),
            store=folder / "store",
            max_batch_tokens=300,
            unit_tokens=300,
            compact=False,
            **{"devices": "cpu,cpu", "recheck_fraction": 0.0} | changes,
        )
        with faulty_workers(faults):
            run(settings, story)
        return story

    return tell


@contextmanager
def faulty_workers(faults: dict[str, Any]) -> Iterator[None]:
    root = Path(__file__).parents[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineProcess, "MODULE", "faulty_worker")
        patch.setenv("PYTHONPATH", f"{root / 'tests'}:{root}")
        patch.setenv("FAULTS", json.dumps(faults))
        yield


def check(story: Story, expected: set[str] | None) -> RunReport:
    """Check what holds whatever the fault: `expected` is what is stored, None where that is not known beforehand."""
    report = story.report
    assert report is not None
    rows = {name: sum(value.values()) if isinstance(value, dict) else value for name, value in report.rows.items()}
    assert rows.pop("in") == len(ROWS) == sum(rows.values())
    store = open_store(report.store)
    assert set(store) == expected if expected is not None else len(store) >= rows["done"]
    checked = check_store(report.store, report.spec_digest)
    assert (checked.checked, checked.findings) == (len(store), [])
    assert len(story.words(OTHER, "start")) == 1, "the other engine was started again"
    last_forward: dict[str, float] = {}
    for entry in story.diary:
        if entry.word == "forward":
            last_forward |= dict.fromkeys(entry.hashes, entry.time)
    for folder in report.store.glob("objects/*/*/*"):
        written = max(file.stat().st_mtime for file in folder.rglob("*") if file.is_file())
        assert last_forward[folder.name] <= written + TICK_SECONDS, "computed again after it was committed"
    return report


@pytest.fixture(scope="module")
def samples(tell: Callable[..., Story], hashes: list[str]) -> Story:
    """Return a run with a bad sample of each kind, in batches with good ones."""
    return tell({fault: [hashes[row]] for row, fault, _ in BAD}, recheck_fraction=1.0, max_quarantined=len(BAD))


class TestSamples:
    def test_the_run_completes_and_all_others_are_stored(self, samples: Story, hashes: list[str]) -> None:
        report = check(samples, set(hashes) - {hashes[row] for row, *_ in BAD})
        assert report.status == "completed"
        assert report.rows["quarantined"] == Counter(reason for *_, reason in BAD)
        assert [engine.restarts for engine in report.engines] == [0, 0]
        assert sum(engine.samples for engine in report.engines) == len(hashes) - len(BAD)

    @pytest.mark.parametrize(("row", "fault", "reason"), BAD)
    def test_it_is_set_aside_with_its_reason(
        self, samples: Story, hashes: list[str], row: int, fault: str, reason: str
    ) -> None:
        assert samples.report is not None
        [aside] = [each for each in samples.report.quarantined if each["sample_hash"] == hashes[row]]
        print(f"{fault}: {aside['reason']}: {aside['detail']}")
        assert aside["reason"] == reason


def test_an_engine_without_room_halves_its_batches_and_sets_aside_what_fits_nowhere(
    tell: Callable[..., Story], hashes: list[str]
) -> None:
    story = tell({"oom_above": ROOM, "wait": True}, max_quarantined=1)
    report = check(story, set(hashes) - {hashes[LONG]})
    assert report.status == "completed"
    assert report.rows["quarantined"] == {"out_of_memory": 1}
    assert len(story.words(FAULTY, "oom_above")) > 1
    assert not story.words(OTHER, "oom_above")
    assert [engine.restarts for engine in report.engines] == [0, 0]


# What happens to an engine, one after the other, and how it is said.
LOSSES = {
    "an exit": "engine process on cpu-1 ended with exit code 3",
    "a SIGKILL from outside": "engine process on cpu-1 was killed by SIGKILL",
    "a hang": "engine process on cpu-1 said nothing for 30 s and was ended",
}


def kill_when_it_hangs(file: Path) -> None:
    while not file.exists() or not file.read_text():
        time.sleep(0.01)
    os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture(scope="module")
def losses(tell: Callable[..., Story], tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Return a run that lost an engine three times, with the patience that every run has."""
    folder = tmp_path_factory.mktemp("losses")
    threading.Thread(target=kill_when_it_hangs, args=(folder / "1",), daemon=True).start()
    # After two batches an engine's patience has learnt how long one takes. Three losses in one unit would end the run.
    stops = [["exit", str(folder / "0"), 2], ["hang", str(folder / "1"), 0], ["hang", str(folder / "2"), 2]]
    return tell({"stops": stops, "wait": True}, go_after="starts again", times=len(LOSSES))


class TestALostEngine:
    def test_the_run_completes_and_nothing_is_lost(self, losses: Story, hashes: list[str]) -> None:
        report = check(losses, set(hashes))
        assert report.status == "completed"
        assert [engine.restarts for engine in report.engines] == [0, len(LOSSES)]
        untold = 8 * len(LOSSES)  # committed just before and not told of: one an encoder thread
        assert sum(engine.samples for engine in report.engines) >= len(hashes) - untold

    @pytest.mark.parametrize(("number", "fault"), list(enumerate(LOSSES)))
    def test_it_is_found_out_and_started_again(self, losses: Story, number: int, fault: str) -> None:
        stopped = [entry for entry in losses.diary if entry.word in {"exit", "hang"}][number]
        found = losses.noted(LOSSES[fault])
        start = losses.words(FAULTY, "start")[number + 1]
        assert start.pid != stopped.pid
        print(f"{fault}: found after {found - stopped.time:.1f} s, loaded again {start.time - found:.1f} s later")


def test_an_engine_whose_ranks_lose_one_is_started_again_whole(
    tell: Callable[..., Story], hashes: list[str], tmp_path: Path
) -> None:
    """Each engine has two ranks; the faulty one kills its second between two forwards."""
    story = tell(
        {"stops": [["lose", str(tmp_path / "lost"), 2]], "wait": True}, go_after="starts again", devices="cpu,cpu:tp2"
    )
    report = check(story, set(hashes))
    assert report.status == "completed"
    assert [engine.restarts for engine in report.engines] == [0, 1]
    [stopped], [_, start] = story.words(FAULTY, "lose"), story.words(FAULTY, "start")
    found = story.noted("rank 1 of 2 was killed by SIGKILL, and the engine with it")
    print(f"a lost rank: found after {found - stopped.time:.1f} s, loaded again {start.time - found:.1f} s later")
    firsts = {str(entry.pid) for entry in story.diary}
    commands = [process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if "tasks.engine.tensor_parallel" in command and command[-1] in firsts]


def test_an_engine_that_leaks_memory_is_replaced_between_two_units(
    tell: Callable[..., Story], hashes: list[str]
) -> None:
    story = tell({"grow": 64 << 20, "wait": True}, go_after="starts again", max_growth_bytes=150 << 20)
    report = check(story, set(hashes))
    assert report.status == "completed"
    assert report.engines[0].restarts == 0
    assert report.engines[1].restarts >= 1
    assert report.engines[1].peak_memory_bytes > 150 << 20
    [first, *_] = [note for _, note in story.notes if "memory grew by" in note]
    assert first.startswith("engine cpu-1: ended, for the next unit a fresh one starts (memory grew by ")
    assert sum(engine.samples for engine in report.engines) == len(hashes)


def test_an_engine_that_fails_its_canary_ends_the_run_and_has_stored_nothing(tell: Callable[..., Story]) -> None:
    """The other has stored some samples by then, and they stay."""
    story = tell({"canary": True}, go_after="tokens stored")
    report = check(story, None)
    assert report.status == "failed"
    assert str(story.error) == report.error
    assert "canary: layer " in str(story.error)
    assert not story.words(FAULTY, "forward")
    assert report.engines[0].samples > report.engines[1].samples == 0
