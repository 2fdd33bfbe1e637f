"""Each export read back by its trainer's own package, in an environment of its own: tensors, masks, and logits.

The store is of SmolLM2. The LM head over the state that the trainer takes for the last, after the trainer's own
handling of the final norm, gives the same next token as over the target's own final state, at every position; where the
trainer applies the norm, up to what bfloat16 leaves of two logits that are nearly equal.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from consumers import read_by
from jobs import chat, write_lines

from flows import RunResult, Settings, extract_hidden_states
from storage.dataset import HiddenStateDataset, to_tensor
from tasks.draft_vocabularies import ensure_draft_vocabulary, make_spec
from tasks.smollm2 import user_cache
from tasks.tokens_specs import tokenizer_digest
from tasks.trainer_files.exporter import ExportInfo, export_rows
from tasks.trainer_files.import_specs import ImportRequest
from tasks.trainer_files.importer import import_files
from tasks.trainer_files.manifest import ROWS
from tasks.trainer_files.plan import ExportPlan
from tasks.trainer_files.requests import ExportRequest, make_export_plan

CHATS = [
    chat("What is the capital of France?", "The capital of France is Paris, a city on the river Seine."),
    chat("Why is the sky blue?", "Because air scatters blue light more than red light. " * 6),
    chat("Count to ten.", "One, two, three, four, five, six, seven, eight, nine, ten."),
]
LINES = [json.dumps(CHATS[i]) for i in (0, 1, 2, 0)]  # the last is a copy
DRAFT_SIZE = 64
Found = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A store of SmolLM2, and what the model itself says.

    Attributes:
        rows: of each row ids, loss mask and states, as `HiddenStateDataset` gives them.
        logits: of each row at every position, float32[num_tokens, vocab_size].
        vocabulary: `d2t` and `t2d` of the store.
    """

    model: Path
    result: RunResult
    rows: list[dict[str, torch.Tensor]]
    logits: list[torch.Tensor]
    vocabulary: tuple[np.ndarray, np.ndarray]

    def states(self, row: int, *layers: Any) -> torch.Tensor:
        slots = [self.result.store.spec.layers.index(layer) for layer in layers]
        return self.rows[row]["hidden_states"][:, slots].contiguous()

    def export(self, form: str, folder: Path, **changes: Any) -> ExportInfo:
        return export_rows(make_export_plan(ExportRequest(self.result.report.store, form, folder, **changes)))


@pytest.fixture(scope="module")
def target(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("target")
    data = write_lines(folder / "chats.jsonl", LINES)
    layers = "2,L//2,L-3,L,final"
    result = extract_hidden_states(
        Settings(model=smollm2, data=data, store=folder / "store", layers=layers, devices="cpu")
    )
    dataset = HiddenStateDataset(result.report.store, result.report.tokens_digest)
    rows = [dataset[i] for i in range(len(dataset))]
    spec = make_spec(result.tokens, tokenizer_digest(smollm2), target_size=49_152, draft_size=DRAFT_SIZE)
    made = ensure_draft_vocabulary(result.report.store, result.tokens, spec)
    return Target(smollm2, result, rows, _read_out(smollm2, rows), (made.d2t, made.t2d))


def _read_out(model: Path, rows: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """Return the logits of the final states, once it is clear that they are those of the model, run by transformers."""
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    head = whole.lm_head.weight.float()
    with torch.no_grad():
        logits = [row["hidden_states"][:, -1].float() @ head.T for row in rows]
        for row, ours in zip(rows, logits, strict=True):
            assert_next(whole(row["input_ids"][None]).logits[0].argmax(-1), ours, slack=2**-5)
    return logits


def assert_next(found: torch.Tensor, logits: torch.Tensor, slack: float = 0.0) -> None:
    """Compare next tokens with those of the largest logits, or with any that are less by a share of these."""
    best = logits.max(-1).values
    chosen = logits.gather(-1, found[:, None]).squeeze(-1)
    assert (best - chosen <= slack * best.abs()).all()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


def names(folder: Path) -> list[str]:
    """Return the file of each row."""
    return [json.loads(line)["file"] for line in (folder / ROWS).read_text().splitlines()]


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def read(consumer: str, place: Path, model: Path, *folders: str) -> list[Found]:
    return read_by(
        consumer, user_cache() / "tests", place / f"{consumer}.pt", model, *(place / name for name in folders)
    )


def reimport(target: Target, place: Path, name: str, layers: str | None = None, **changes: Any) -> Path:
    """Return a store of the states of the target, or some layers of them, that was made of its own files."""
    target.export("safetensors", place / f"{name}-files", layers=layers)
    import_files(ImportRequest(place / f"{name}-files", "safetensors", place / name, target.model, **changes))
    return place / name


def export(store: Path, form: str, folder: Path) -> ExportPlan:
    plan = make_export_plan(ExportRequest(store, form, folder))
    export_rows(plan)
    return plan


def test_specforge_reads_what_the_store_has(target: Target, place: Path) -> None:
    folder = place / "specforge"
    info = target.export("specforge", folder)
    [found] = read("specforge", place, _indexed(target.model, place / "indexed"), "specforge")
    by_file = {Path(row["file"].removeprefix("file://")): row for row in found["rows"]}
    assert set(by_file) == {folder / name for name in names(folder)}
    for number, name in enumerate(names(folder)):
        row, ours = by_file[folder / name], target.rows[number]
        assert row["num_tokens"] == len(ours["input_ids"])
        assert set(row["raw"]) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
        assert_same(row["raw"]["input_ids"], ours["input_ids"])
        assert_same(row["raw"]["loss_mask"], ours["loss_mask"])
        assert_same(row["raw"]["hidden_state"], target.states(number, "final").transpose(0, 1))
        assert_same(row["raw"]["aux_hidden_state"], target.states(number, 2, 15, 27).flatten(1)[None])
        # The trainer learns nothing from the last token, which has no next one.
        assert_same(row["batch"]["loss_mask"], torch.cat([ours["loss_mask"][:-1], torch.tensor([0])])[None])
        assert_same(row["batch"]["target"], row["raw"]["hidden_state"])
        assert_next(row["argmax"], target.logits[number])
    assert [item["target"].shape for item in found["dataset"]] == [
        by_file[path]["batch"]["target"].shape for path in sorted(by_file)
    ]
    learnt = torch.cat([row["input_ids"][row["loss_mask"] == 1] for row in target.rows])
    assert found["counts"] == {int(token): int((learnt == token).sum()) for token in learnt.unique()}
    mapping = torch.load(info.vocabularies[0], weights_only=True)
    assert_same(mapping["d2t"], torch.from_numpy(target.vocabulary[0]))
    assert_same(mapping["t2d"], torch.from_numpy(target.vocabulary[1]))
    assert info.owner_ids == [1, 14, 26]


def _indexed(model: Path, folder: Path) -> Path:
    """Return the model with the index of weights that SpecForge's head looks for."""
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    index = {"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def speculators(target: Target, place: Path) -> dict[str, Found]:
    """What speculators reads of a store in bfloat16, and in both ways to float8."""
    target.export("speculators", place / "exact")
    target.export("speculators-fp8", place / "rounded-fp8")
    small = reimport(target, place, "small", storage_dtype="float8_e4m3fn")
    export(small, "speculators-fp8", place / "stored-fp8")
    names = ("exact", "rounded-fp8", "stored-fp8")
    return dict(zip(names, read("speculators", place, target.model, *names), strict=True))


def test_speculators_reads_what_the_store_has(target: Target, speculators: dict[str, Found]) -> None:
    found = speculators["exact"]
    assert found["indices"] == list(range(len(target.rows)))
    assert found["approx_lengths"] == [len(row["input_ids"]) for row in target.rows]
    assert found["errors"] == 0
    for number, (item, ours) in enumerate(zip(found["items"], target.rows, strict=True)):
        assert_same(found["raw"][number]["hidden_states"], target.states(number, 2, 15, 27, 30))
        assert_same(item["hidden_states"], target.states(number, 2, 15, 27).flatten(1))
        assert_same(item["verifier_last_hidden_states"], target.states(number, 30).squeeze(1))
        assert_same(item["input_ids"], ours["input_ids"])
        assert_same(item["loss_mask"], ours["loss_mask"])
        assert_next(found["argmax"][number], target.logits[number], slack=2**-8)
    every = torch.cat([target.states(number, 30).squeeze(1) for number in range(len(target.rows))])
    assert_same(found["batch"]["verifier_last_hidden_states"][0, : len(every)], every)
    d2t, t2d, size = found["vocabularies"][DRAFT_SIZE]
    assert size == DRAFT_SIZE
    assert_same(d2t, torch.from_numpy(target.vocabulary[0]))
    assert_same(t2d, torch.from_numpy(target.vocabulary[1]))


def test_states_are_rounded_to_float8_as_speculators_rounds_them(target: Target, speculators: dict[str, Found]) -> None:
    found = speculators["rounded-fp8"]
    for number, (numbers, scales) in enumerate(speculators["exact"]["as_they_round"]):
        assert_same(found["raw"][number]["hidden_states"].view(torch.uint8), numbers.view(torch.uint8))
        assert_same(found["raw"][number]["hidden_states_scales"], scales)
        _assert_near(found["items"][number]["hidden_states"], target.states(number, 2, 15, 27).flatten(1))


def _assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare states with what is left of them in float8, as the trainer multiplies it out."""
    assert found.dtype == expected.dtype
    error = (found.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    assert 0 < error.mean() < 0.05


def test_speculators_reads_float8_as_the_store_has_it(place: Path, speculators: dict[str, Found]) -> None:
    plan = make_export_plan(ExportRequest(place / "small", "speculators-fp8", place / "stored-fp8"))
    found = speculators["stored-fp8"]
    for number, item in enumerate(found["items"]):
        sample = plan.store[plan.sample_hash(number)]
        stored = sample.float8_states((2, 15, 27, 30))
        raw = found["raw"][number]
        assert raw["hidden_states"].view(torch.uint8).numpy().tobytes() == stored.values.tobytes()
        assert_same(raw["hidden_states_scales"], torch.from_numpy(stored.scales.copy())[..., None])
        states = to_tensor(np.ascontiguousarray(sample.hidden_states((2, 15, 27)))).flatten(1).float()
        near = (item["hidden_states"].float() - states).abs() <= 2**-7 * states.abs()
        assert near.all(), "the trainer rounds scales to bfloat16, and nothing else differs"


def test_modelopt_reads_what_the_store_has_after_the_norm_or_before_it(target: Target, place: Path) -> None:
    folders = {"after": place / "modelopt-after", "before": place / "modelopt-before"}
    info = target.export("modelopt", folders["after"])
    assert (info.norm, info.owner_ids) == ("after", [1, 14, 26])
    export(reimport(target, place, "without-final", layers="2,15,27,30"), "modelopt", folders["before"])
    both = read("modelopt", place, target.model, *(folder.name for folder in folders.values()))
    for norm, found in zip(folders, both, strict=True):
        read_back = zip(found["items"], found["argmax"], strict=True)
        by_name = dict(zip((Path(file).name for file in found["files"]), read_back, strict=True))
        assert set(by_name) == set(names(folders["after"]))  # rows of the other store are in another order
        last = "final" if norm == "after" else 30
        for number, name in enumerate(names(folders["after"])):
            (item, argmax), ours = by_name[name], target.rows[number]
            assert item["base_hidden_prenorm"] is (norm == "before")
            assert_same(item["input_ids"], ours["input_ids"])
            assert_same(item["loss_mask"], ours["loss_mask"])
            assert_same(item["base_model_hidden_states"], target.states(number, last).squeeze(1))
            assert_same(item["aux_hidden_states"], target.states(number, 2, 15, 27).flatten(1))
            assert_next(argmax, target.logits[number], slack=0 if norm == "after" else 2**-8)
        assert found["batch"]["base_model_outputs"]["aux_hidden_states"].shape == (len(target.rows), 512, 3 * 576)
    assert_same(both[0]["vocabularies"][0], torch.from_numpy(target.vocabulary[0]))
