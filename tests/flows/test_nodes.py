"""A part of a job on one machine: its rows and no others, and nothing but the states that were asked for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from jobs import DUPLICATES, GOOD, Finished, Job, refusal

from flows.errors import SettingsError
from flows.form import form_schema, read_form
from flows.nodes import extract_on_nodes, extract_part
from flows.part import Part, settings_of_nodes
from flows.settings import Settings
from storage.store import init_store
from storage.tokens import open_tokens
from tasks.errors import PlanError


@pytest.fixture
def elsewhere(finished: Finished, tmp_path: Path) -> Settings:
    """Return settings of a store that has the tokens of the finished run, and no states."""
    init_store(tmp_path / "store")
    shutil.copytree(finished.store / "tokens", tmp_path / "store" / "tokens")
    return finished.settings_with(store=tmp_path / "store", data=("/gone/*.jsonl",))


def part_of(finished: Finished, **given: Any) -> Part:
    report = finished.report
    whole = {"run_id": "r/parts/0001-1", "tokens_digest": report.tokens_digest, "spec_digest": report.spec_digest}
    return Part(**{**whole, "first": 0, "stop": len(GOOD) + DUPLICATES, **given})


def test_it_does_its_rows_alone_without_the_data_and_checks_what_an_earlier_try_has_left(
    finished: Finished, elsewhere: Settings
) -> None:
    tokens = open_tokens(elsewhere.store, finished.report.tokens_digest or "")
    assert tokens is not None
    first = extract_part(elsewhere, part_of(finished, first=2, stop=4))
    assert set(first.store) == set(tokens.sample_hashes[2:4])
    assert (first.report.rows["in"], first.report.rows["done"]) == (2, 2)
    assert first.report.folder == elsewhere.store / "runs/r/parts/0001-1"
    assert (first.report.folder / "report.json").is_file()

    damaged = tokens.sample_hashes[3]
    states = next((elsewhere.store / "objects").glob(f"*/*/{damaged}")) / "hidden_states"
    file = next(path for path in states.rglob("*") if path.is_file() and path.name != "zarr.json")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    again = extract_part(elsewhere, part_of(finished, run_id="r/parts/0001-2", is_again=True)).report
    assert (again.rows["in"], again.rows["done"], again.rows["reused"]) == (len(GOOD) + 2, len(GOOD) - 2, 1)
    assert [one["sample_hash"] for one in again.quarantined] == [damaged]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "bfloat16"}, "compute_dtype 'bfloat16', not 'float32'; give all nodes the same model"),
        ({"layers": "final"}, r"layers \['final'\], not \[2, 4, 5, 'final'\]"),
    ],
    ids=str,
)
def test_other_states_than_those_that_were_asked_for_are_refused(
    finished: Finished, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlanError, match=words) as refused:
        extract_part(finished.settings_with(**changes), part_of(finished))
    assert "\n" not in str(refused.value)


def test_a_store_without_the_tokens_is_refused(finished: Finished, tmp_path: Path) -> None:
    init_store(tmp_path / "other")
    with pytest.raises(PlanError, match=r"has no tokens artifact .* all nodes need the same store"):
        extract_part(finished.settings_with(store=tmp_path / "other"), part_of(finished))


def test_what_is_no_part_is_refused_in_one_line(finished: Finished) -> None:
    with pytest.raises(SettingsError, match="part first: Input should be greater") as refused:
        extract_part(finished.settings, part_of(finished).model_dump() | {"first": -1})
    assert "\n" not in str(refused.value)


def test_nodes_get_what_is_computed_and_of_the_machine_what_was_chosen(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.utilities.schema_tools.validation import validate

    settings = finished.settings_with(dtype="auto", encode_threads=None, max_batch_tokens=700)
    sent = settings_of_nodes(settings)
    assert list(validate(sent, form_schema())) == []
    monkeypatch.setenv("AERIE_ENCODE_THREADS", "3")
    monkeypatch.setenv("AERIE_DTYPE", "bfloat16")
    on_a_node = read_form(sent)
    assert (on_a_node.encode_threads, on_a_node.dtype, on_a_node.max_batch_tokens) == (3, "auto", 700)
    assert on_a_node.devices == settings.devices == "cpu"


def test_without_a_server_that_nodes_know_it_is_refused(job: Job, with_server: dict[str, str]) -> None:
    assert "no Prefect server is known; start one" in refusal(job.run("extract", "--on-nodes"))
    job.env = with_server
    assert "has no deployment extract-part/extract-part; run aerie deploy" in refusal(job.run("extract", "--on-nodes"))


def test_a_bad_size_of_parts_is_refused(job: Job) -> None:
    done = job.run("extract", "--on-nodes", "--part-tokens", "0")
    assert done.returncode == 2
    assert "0 is below 1" in done.stderr


def test_the_flow_is_public() -> None:
    import flows

    assert flows.extract_on_nodes is extract_on_nodes
