"""A sample whose states cannot be stored is set aside and named; the others are stored."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jobs import Finished, chat, write_lines
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from tokenized import ids_of

from flows import Settings, extract_hidden_states
from flows.steps import QUARANTINED
from storage.digests import sample_hash
from tasks.errors import TooManyQuarantinedError

LOUD = " Zanzibar"
ROWS = [
    *(json.dumps(chat(f"Question {i}?", "An answer. " * (i + 1))) for i in range(5)),
    json.dumps(chat("Where is it?", f"It is in{LOUD}.")),
]


@pytest.fixture(scope="module")
def loud_model(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose residual stream at one token is beyond float16, as it is in real models now and then."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("loud") / "model"
    shutil.copytree(tiny_model("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    for token in AutoTokenizer.from_pretrained(folder, local_files_only=True).encode(LOUD, add_special_tokens=False):
        weights["model.embed_tokens.weight"][token] *= 1e6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def settings(loud_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("quarantine")
    data = write_lines(folder / "chats.jsonl", ROWS)
    return Settings(model=loud_model, data=data, store=folder / "store", devices="cpu", storage_dtype="float16")


@pytest.fixture(scope="module")
def run(settings: Settings) -> Finished:
    return Finished(settings, extract_hidden_states(settings))


@pytest.fixture(scope="module")
def loud_sample(loud_model: Path) -> str:
    """Return the hash of the sample that has the loud token."""
    [input_ids] = ids_of(loud_model, ROWS[-1:])
    return sample_hash(input_ids)


def test_it_is_counted_and_named_and_the_run_completes(run: Finished, loud_sample: str) -> None:
    report = run.report
    assert report.status == "completed"
    assert report.rows == {
        "in": len(ROWS),
        "split": 0,
        "done": len(ROWS) - 1,
        "reused": 0,
        "duplicate": 0,
        "rejected": {},
        "quarantined": {"non_finite": 1},
        "unfinished": 0,
    }
    [aside] = report.quarantined
    assert (aside["sample_hash"], aside["reason"]) == (loud_sample, "non_finite")
    assert aside["detail"].startswith("NaN or Inf in ")


@pytest.mark.usefixtures("run")
def test_the_state_of_its_run_says_so() -> None:
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)
    states = [(one.state_type, one.state.message) for one in found if one.state_name == QUARANTINED]
    assert (StateType.COMPLETED, "1 sample set aside: non_finite 1; the next run tries again") in states


def test_the_others_are_stored_and_it_is_not(run: Finished, loud_sample: str) -> None:
    store = run.result.store
    assert len(store) == len(ROWS) - 1
    assert loud_sample not in store
    for sample in store.values():
        states = sample.hidden_states()
        assert states.dtype == np.float16
        assert np.isfinite(states).all()


def test_the_next_run_tries_it_again_and_only_it_and_ends_where_none_may_be_set_aside(run: Finished) -> None:
    with pytest.raises(TooManyQuarantinedError, match="1 of 1 samples were set aside, the limit is 0"):
        extract_hidden_states(run.settings_with(max_quarantined=0))
    last = max(run.store.glob("runs/*/report.json"), key=lambda path: path.stat().st_mtime_ns)
    document = json.loads(last.read_text())
    assert document["status"] == "failed"
    assert "1 of 1 samples were set aside" in document["error"]
    rows = document["rows"]
    assert (rows["in"], rows["done"], rows["reused"], rows["quarantined"]) == (6, 0, 5, {"non_finite": 1})
