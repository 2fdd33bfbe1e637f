"""What mypy makes of the public API; `make check` looks at this file, and tests/test_public_types.py runs it."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch

from flows import RunReport, RunResult, Settings, compact_store, export_store, extract_hidden_states, validate_store
from storage import Sample, StateSpec, Store, Tokens, open_store, open_tokens
from storage.dataset import HiddenStateDataset, HiddenStateLoader
from storage.draft_vocabularies import DraftVocabulary
from storage.epochs import BatchRules
from storage.findings import CheckReport
from storage.packs import PackInfo
from storage.samplers import TokenBatchSampler
from storage.samples import RoundingError
from tasks.trainer_files.exporter import ExportInfo


def read(path: Path) -> None:
    """Read a store of any place: samples are numpy arrays."""
    store = assert_type(open_store(path), Store)
    open_store(str(path), store.spec_digest[:8])
    assert_type(store.spec, StateSpec)
    assert_type(store.spec_digest, str)
    assert_type(store.num_tokens(), int)
    assert_type(store.rounding_error(), RoundingError | None)
    assert_type(len(store), int)
    for name, sample in store.items():
        assert_type(name, str)
        assert_type(sample, Sample)
        assert_type(sample.num_tokens, int)
        assert_type(sample.input_ids, npt.NDArray[np.int32])
        assert_type(sample.hidden_states(), npt.NDArray[Any])
        assert_type(sample.hidden_states(["final"], slice(0, 4)), npt.NDArray[Any])
        assert_type(sample.hidden_states([2], rows=slice(4)), npt.NDArray[Any])
    assert_type(store.read_hidden_states(list(store), threads=1), list[npt.NDArray[Any]])
    assert_type(store.missing(list(store)), list[str])


def read_tokens(path: Path, digest: str) -> None:
    """Read a tokens artifact: None where there is none."""
    tokens = assert_type(open_tokens(path, digest), Tokens | None)
    assert tokens is not None
    assert_type(tokens.input_ids(0), npt.NDArray[np.int32])
    assert_type(tokens.loss_mask(0), npt.NDArray[np.uint8])
    assert_type(tokens.sample_hashes, list[str])


def train(path: Path, digest: str) -> None:
    """Train from a store: items and batches are dicts of tensors, and the dataset is torch's."""
    dataset = HiddenStateDataset(path, digest, missing="skip")
    assert_type(dataset, HiddenStateDataset)
    torch.utils.data.DataLoader(dataset, batch_size=1)
    assert_type(dataset[0], dict[str, torch.Tensor])
    assert_type(len(dataset), int)
    sampler = TokenBatchSampler(dataset.hashes, dataset.lengths, BatchRules(max_tokens=4096))
    loader = HiddenStateLoader(dataset, sampler)
    assert_type(loader.state_dict(), dict[str, Any])


def extract(model: Path, data: Path, store: Path) -> RunResult:
    """Run the flow: what it returns is known, though a decorator of Prefect's is around it."""
    settings = Settings(model=str(model), data=[data], store=store, devices="cpu")  # text and lists, as people write
    assert_type(settings.model, Path)
    assert_type(settings.data, tuple[Path, ...])
    result = assert_type(extract_hidden_states(settings), RunResult)
    assert_type(result.report, RunReport)
    assert_type(result.store, Store)
    assert_type(result.tokens, Tokens)
    return result


def maintain(store: Path, folder: Path) -> None:
    """Run the flows over a store that is there."""
    assert_type(validate_store(store), CheckReport)
    assert_type(compact_store(store), PackInfo | None)
    assert_type(export_store(store, "safetensors", folder), ExportInfo)


def choose(vocabulary: DraftVocabulary) -> None:
    """Look at a draft vocabulary."""
    assert_type(vocabulary.d2t, npt.NDArray[np.int64])
