"""`aerie compare`: two runs beside each other, and what it says of runs that are not there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import GOOD, REJECTED, Finished, run_aerie, snapshot

from flows.cli import main
from flows.comparison import compare_reports
from flows.report import RunReport


@pytest.fixture
def store(finished: Finished, tmp_path: Path) -> Path:
    """Return a copy of a store whose run has been told as another one, which came to something else."""
    copy = Path(shutil.copytree(finished.store, tmp_path / "copy"))
    folder = copy / "runs" / finished.report.run_id
    for more in set((copy / "runs").iterdir()) - {folder}:  # other tests run again over this store
        shutil.rmtree(more)
    other = json.loads((folder / "report.json").read_text()) | {"run_id": "20990101T000000Z-abcdef", "truncated": 3}
    other["settings"] |= {"recheck_fraction": 0.5}
    other["spec"] |= {"mantissa_bits": 3}
    other["bytes"]["stored"] *= 2
    other["engines"][0]["tokens"] *= 3
    other["states"]["layers"] = other["states"]["layers"][:-1]
    other["rows"]["quarantined"] = {"parity": 1}
    other["quarantined"] = [{"sample_hash": "ab" * 32, "reason": "parity", "detail": "at layer 3"}]
    (copy / "runs" / other["run_id"]).mkdir()
    (copy / "runs" / other["run_id"] / "report.json").write_text(json.dumps(other))
    return copy


@pytest.fixture
def ids(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "runs").iterdir())


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def compare(*arguments: object) -> Any:
        code = main(["compare", *map(str, arguments), "--json"])
        done = capsys.readouterr()
        assert code == 0, done.err
        [line] = done.out.splitlines()
        return json.loads(line)

    return compare


def test_it_says_what_differs_and_what_each_run_came_to(
    store: Path, finished: Finished, compare: Callable[..., Any]
) -> None:
    before = snapshot(store)
    found = compare(store)
    report = finished.report
    assert found["settings"] == {"recheck_fraction": [0.01, 0.5]}
    assert found["spec"] == {"mantissa_bits": [None, 3]}
    assert found["tokens"] == {"rows cut": [0, 3]}
    assert found["rows"]["done"] == [len(GOOD), len(GOOD)]
    assert found["rows"]["rejected: invalid_json"] == [REJECTED["invalid_json"]] * 2
    assert found["rows"]["quarantined: parity"] == [None, 1]
    first, second = found["engines"]["cpu"]
    assert first == round(report.engines[0].tokens / report.engines[0].busy_seconds, 1)
    assert second == pytest.approx(3 * first, abs=0.2)
    assert found["bytes"]["stored"] == [report.bytes.stored, 2 * report.bytes.stored]
    assert found["time"]["extract"] == [round(report.seconds["extract"], 1)] * 2
    assert report.states is not None
    assert found["layers"]["layer 2"] == [round(report.states.layers[0].ratio, 4)] * 2
    assert found["layers"]["layer final"][1] is None
    assert found["quarantined"] == {"parity": [0, 1], "samples": [0, 1], "not in the other run": [0, 1]}
    assert snapshot(store) == before


def test_runs_are_named_by_the_beginning_of_their_ids_or_of_their_letters(
    store: Path, ids: list[str], compare: Callable[..., Any]
) -> None:
    assert compare(store, "2099", ids[0][:12])["runs"]["run"] == [ids[1], ids[0]]
    assert compare(store, "abc", ids[0][-6:])["runs"]["run"] == [ids[1], ids[0]]
    assert compare(store, ids[0])["runs"]["run"] == ids, "with the last"
    folders = [store / "runs" / name for name in reversed(ids)]
    assert compare(*folders)["runs"]["run"] == ids[::-1]
    assert compare(folders[0], folders[1] / "report.json")["runs"]["run"] == ids[::-1]


def test_people_get_a_table(store: Path, ids: list[str], tmp_path: Path) -> None:
    done = run_aerie("compare", store, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0].split() == [*ids, "change"]
    assert "\x1b" not in done.stdout
    [stored] = [line for line in lines if line.split()[:1] == ["stored"]]
    assert stored.endswith("+100.0 %")
    assert [line.split() for line in lines if "recheck_fraction" in line] == [["recheck_fraction", "0.01", "0.5"]]


def test_a_run_beside_itself_differs_in_nothing(finished: Finished) -> None:
    compared = compare_reports(finished.report, finished.report)
    assert set(compared.asked) == {"settings", "spec", "tokens"}
    assert not any(compared.asked.values())
    pairs = [pair for pairs in compared.figures.values() for pair in pairs]
    assert pairs
    assert not any(pair.differs for pair in pairs)


def test_a_report_from_before_has_no_settings_to_compare(finished: Finished) -> None:
    document = finished.report.model_dump(mode="json")
    del document["settings"]
    compared = compare_reports(RunReport.model_validate(document), finished.report)
    assert compared.asked["settings"] is None
    assert compared.as_json()["settings"] is None


def spoil(store: Path, run_id: str, text: str | None) -> None:
    file = store / "runs" / run_id / "report.json"
    file.unlink() if text is None else file.write_text(text)


@pytest.mark.parametrize(
    ("arguments", "report", "words"),
    [
        (["20"], "{}", "2 runs begin with '20', exactly one must be meant; "),
        (["1999"], "{}", "0 runs begin with '1999'"),
        (["2099", "2099", "2099"], "{}", "3 runs were given; give two"),
        (["2099"], None, "there is no "),
        ([], None, "has 1 runs with a report, 2 are needed"),
        (["2099"], "{", "report.json is damaged"),
        (["2099"], "{}", "report.json is no report of this version: run_id: Field required; compare runs of one"),
    ],
)
def test_a_run_that_is_not_there_is_one_line(
    store: Path, arguments: list[str], report: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(store, "20990101T000000Z-abcdef", report)
    assert words in refused(capsys, store, *arguments)


def test_a_place_that_is_no_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere is not a folder" in refused(capsys, tmp_path / "nowhere")
    assert "nowhere/report.json; give a run that has ended" in refused(capsys, tmp_path / "nowhere", "neither")


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one line on stderr of a comparison that is refused."""
    assert main(["compare", *map(str, arguments)]) == 1
    done = capsys.readouterr()
    assert done.out == ""
    [line] = done.err.splitlines()
    assert line.startswith("aerie: ")
    return line
