"""One real run, from chats to a store, and what later runs make of it."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
from jobs import DUPLICATES, GOOD, LINES, REJECTED, Finished, snapshot, write_lines

from flows import extract_hidden_states
from flows.report import summarize
from storage.store import open_store
from storage.tokens import Tokens, open_tokens
from tasks.engine.base import EngineOptions
from tasks.engine.reference_engine import ReferenceEngine

FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "format.md"


@pytest.fixture(scope="module")
def tokens(finished: Finished) -> Tokens:
    found = open_tokens(finished.store, finished.report.tokens_digest or "")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def packed(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same run again on a copy of the store, compacting it."""
    return run_again(finished, tmp_path_factory.mktemp("packed"), compact=True)


def run_again(finished: Finished, folder: Path, **changes: Any) -> Finished:
    """Run with changed settings on a copy of the store."""
    store = shutil.copytree(finished.store, folder / "store")
    settings = finished.settings_with(store=store, **changes)
    return Finished(settings, extract_hidden_states(settings))


def test_the_report_names_the_model_and_its_hub_revision(finished: Finished) -> None:
    report = finished.report
    assert (report.model, report.revision) == (str(finished.settings.model), None)
    assert "revision" not in dict(summarize(report))
    assert dict(summarize(report.model_copy(update={"revision": "0123"})))["revision"] == "0123"


def reference(finished: Finished, output_dtype: str) -> ReferenceEngine:
    options = EngineOptions(
        model=finished.settings.model,
        layers=finished.result.store.spec.layers,
        compute_dtype="float32",
        output_dtype=output_dtype,
        device="cpu",
        max_batch_tokens=4096,
    )
    return ReferenceEngine(options)


def samples(tokens: Tokens) -> Iterator[tuple[str, npt.NDArray[np.int32]]]:
    """Give every distinct sample: its hash and its token ids."""
    for name, index in {name: index for index, name in enumerate(tokens.sample_hashes)}.items():
        yield name, tokens.input_ids(index)


def assert_all_reused(run: Finished) -> None:
    rows = run.report.rows
    assert (rows["done"], rows["reused"], rows["unfinished"]) == (0, len(GOOD), 0)
    assert rows["in"] == sum(rows[key] for key in ("done", "reused", "duplicate", "unfinished")) + sum(
        n for key in ("rejected", "quarantined") for n in rows[key].values()
    )
    assert run.report.tokens_computed == 0
    assert sorted(path.name for path in run.report.folder.iterdir()) == ["report.html", "report.json"], (
        "an engine was started"
    )


class TestReport:
    def test_every_row_ends_in_exactly_one_column(self, finished: Finished) -> None:
        assert finished.report.rows == {
            "in": len(LINES),
            "split": 0,
            "done": len(GOOD),
            "reused": 0,
            "duplicate": DUPLICATES,
            "rejected": REJECTED,
            "quarantined": {},
            "unfinished": 0,
        }
        assert len(LINES) == len(GOOD) + DUPLICATES + sum(REJECTED.values())

    def test_it_lies_in_the_store_and_is_what_the_call_returned(self, finished: Finished) -> None:
        document = json.loads((finished.store / "runs" / finished.report.run_id / "report.json").read_text())
        assert document == json.loads(finished.report.one_line())
        assert {"rows", "tokens", "bytes", "seconds", "spec", "spec_digest", "tokens_digest"} <= set(document)
        assert set(document["bytes"]) == {"raw", "stored", "ratio"}
        assert (document["status"], document["error"]) == ("completed", None)
        assert document["spec"] == json.loads((finished.store / f"specs/{document['spec_digest']}.json").read_text())

    def test_tokens_and_bytes_are_those_of_the_store(self, finished: Finished, tokens: Tokens) -> None:
        report = finished.report
        num_tokens = sum(len(ids) for _, ids in samples(tokens))
        assert report.tokens == report.tokens_computed == num_tokens
        assert report.bytes.raw == num_tokens * 4 * 256 * 2
        assert report.bytes.stored == sum(size for _, size, _ in snapshot(finished.store / "objects").values())
        assert report.bytes.ratio == pytest.approx(report.bytes.raw / report.bytes.stored, abs=1e-3)

    def test_the_seconds_of_every_phase_are_there(self, finished: Finished) -> None:
        seconds = finished.report.seconds
        assert set(seconds) == {"tokenize", "plan", "extract", "forward", "wait", "validate"}
        assert seconds["forward"] + seconds["wait"] <= seconds["extract"]
        whole = (finished.report.finished - finished.report.started).total_seconds()
        assert sum(seconds[phase] for phase in ("tokenize", "plan", "extract", "validate")) <= whole + 0.01


class TestStates:
    def test_they_are_those_of_transformers_rounded_to_bf16(self, finished: Finished, tokens: Tokens) -> None:
        store, engine = finished.result.store, reference(finished, "bfloat16")
        assert store.spec.layers == (2, 4, 5, "final")
        assert set(store) == {name for name, _ in samples(tokens)}
        for name, ids in samples(tokens):
            expected = engine.forward([ids]).float().numpy()
            found = store[name].hidden_states().astype(np.float32)
            assert np.array_equal(store[name].input_ids, ids)
            assert found.shape == expected.shape == (len(ids), 4, 256)
            for slot, layer in enumerate(store.spec.layers):
                # Packed with others, the last bits of fp32 may differ; bf16 shows that once in thousands of values.
                assert np.allclose(found[:, slot], expected[:, slot], rtol=2**-7, atol=0), layer
                assert (found[:, slot] == expected[:, slot]).mean() > 0.995, layer

    @pytest.mark.parametrize("form", ["loose", "packed"])
    def test_zarr_alone_reads_them_as_the_format_page_says(
        self, finished: Finished, packed: Finished, form: str
    ) -> None:
        run = {"loose": finished, "packed": packed}[form]
        [page] = re.findall(r"^```python\n(.*?)^```", FORMAT_PAGE.read_text(), re.MULTILINE | re.DOTALL)
        namespace: dict[str, Any] = {}
        exec(page, namespace)  # noqa: S102 - our own page
        reader = namespace["Reader"](run.store, run.report.spec_digest)
        ours = finished.result.store
        assert set(reader) == set(ours)
        for name in ours:
            ids, states = reader[name]
            assert np.array_equal(ids, ours[name].input_ids)
            assert np.array_equal(states, ours[name].hidden_states().astype(np.float32))

    def test_tensorstore_alone_reads_a_loose_sample(self, finished: Finished) -> None:
        for name, sample in finished.result.store.items():
            folder = finished.store / "objects" / finished.report.spec_digest / name[:2] / name
            assert np.array_equal(read_tensorstore(folder / "input_ids"), sample.input_ids)
            assert np.array_equal(read_tensorstore(folder / "hidden_states"), sample.hidden_states().view(np.uint16))

    def test_tensorstore_alone_reads_a_packed_sample(self, finished: Finished, packed: Finished) -> None:
        [pack] = (packed.store / "packs" / packed.report.spec_digest).iterdir()
        arrays = {path.name: read_tensorstore(path) for path in pack.iterdir() if path.is_dir()}
        ours = finished.result.store
        names = [row.tobytes().hex() for row in arrays["sample_hash"]]
        assert names == sorted(ours)
        for name, start, length in zip(names, arrays["row_start"], arrays["num_tokens"], strict=True):
            rows = slice(start, start + length)
            assert np.array_equal(arrays["input_ids"][rows], ours[name].input_ids)
            assert np.array_equal(arrays["hidden_states"][rows], ours[name].hidden_states().view(np.uint16))


def read_tensorstore(path: Path) -> npt.NDArray[Any]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return tensorstore.open(spec, read=True).result().read().result()


class TestAgain:
    def test_nothing_is_computed_and_nothing_rewritten(self, finished: Finished) -> None:
        held = [finished.store / name for name in ("objects", "specs", "tokens", "aerie.json")]
        before = snapshot(*held)
        assert_all_reused(Finished(finished.settings, extract_hidden_states(finished.settings)))
        assert snapshot(*held) == before

    def test_what_lies_in_packs_is_reused_too(self, packed: Finished, tmp_path: Path) -> None:
        assert_all_reused(packed)
        assert not list(packed.store.glob("objects/*/*/*"))
        again = run_again(packed, tmp_path)
        assert_all_reused(again)
        assert again.report.bytes == packed.report.bytes

    def test_what_changes_no_state_changes_no_name(self, finished: Finished, tmp_path: Path) -> None:
        """Rows in another order, in files of other names, and other resources."""
        files = {"one.jsonl": LINES[:2:-1], "two.jsonl": [f"  {line} " for line in LINES[:3]]}
        again = run_again(
            finished,
            tmp_path,
            data=tuple(write_lines(tmp_path / name, lines) for name, lines in files.items()),
            model=shutil.copytree(finished.settings.model, tmp_path / "elsewhere"),
            max_batch_tokens=64,
            unit_tokens=10**6,
            encode_threads=1,
            dtype="float32",
        )
        assert_all_reused(again)
        assert again.report.spec_digest == finished.report.spec_digest
        assert again.report.tokens_digest != finished.report.tokens_digest

    def test_other_layers_in_float8_are_another_spec_over_the_same_tokens(
        self, finished: Finished, tokens: Tokens, tmp_path: Path
    ) -> None:
        """Inside a running event loop, as a notebook calls it; every sample is a unit of work."""

        async def cell() -> Finished:
            return run_again(finished, tmp_path, layers="0,L,final", storage_dtype="float8_e4m3fn", unit_tokens=1)

        kept_by_prefect = set(Path(os.environ["PREFECT_HOME"]).glob("storage/*"))
        other = asyncio.run(cell())
        assert set(Path(os.environ["PREFECT_HOME"]).glob("storage/*")) == kept_by_prefect, "a result was persisted"
        assert other.report.spec_digest != finished.report.spec_digest
        assert other.report.tokens_digest == finished.report.tokens_digest
        assert other.report.rows["done"] == len(GOOD)
        assert [path.name for path in (other.store / "tokens").iterdir()] == [finished.report.tokens_digest]
        assert len(open_store(other.store, finished.report.spec_digest)) == len(GOOD)
        engine = reference(other, "bfloat16")
        for name, ids in samples(tokens):
            expected, sample = engine.forward([ids]).float().numpy(), other.result.store[name]
            changed = np.linalg.norm(sample.hidden_states().astype(np.float32) - expected, axis=2)
            norms = np.linalg.norm(expected, axis=2)
            errors = changed / np.where(norms == 0, 1, norms)  # the embedding of a padding token is zero
            assert sample.rounding_error == pytest.approx((errors.max(), errors.mean()), rel=0.05)
            assert 0.01 < errors.mean() < errors.max() < 0.05
