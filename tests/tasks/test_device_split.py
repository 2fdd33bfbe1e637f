"""What a device splits is what the host would have split, and is stored as the same bytes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from storage.checks import check_store
from storage.codecs import BLOCK_BYTES, TOKENS_PER_CHUNK
from storage.errors import SampleShapeError
from storage.objects import ObjectWriter
from storage.planes import split_planes
from storage.specs import StateSpec
from storage.store import add_spec, init_store, open_store
from tasks.device_split import split_states

LENGTHS = [1, 256, 300, 700]
VIEWS = {"bfloat16": torch.uint16, "float16": torch.float16, "float32": torch.float32}


def make_states(dtype: str, hidden_size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(sum(LENGTHS), 2, hidden_size, generator=generator).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", VIEWS)
@pytest.mark.parametrize("hidden_size", [24, 2880])
def test_the_planes_of_every_chunk_are_those_of_the_host(dtype: str, hidden_size: int) -> None:
    states = make_states(dtype, hidden_size)
    rows = torch.split(states.view(VIEWS[dtype]), LENGTHS)
    for sample, planes in zip(rows, split_states(states, LENGTHS), strict=True):
        for number, chunk in enumerate(planes.numpy()):
            part = sample.numpy()[number * TOKENS_PER_CHUNK : (number + 1) * TOKENS_PER_CHUNK]
            for slot in range(2):
                assert np.array_equal(chunk[slot], split_planes(part[:, slot], TOKENS_PER_CHUNK, BLOCK_BYTES))


@pytest.mark.parametrize("layers", [(0, 4), (4, "final")])
def test_a_split_sample_is_stored_as_the_same_bytes(tmp_path: Path, layers: tuple) -> None:
    spec = StateSpec(
        model_fingerprint="f" * 64, architecture="LlamaForCausalLM", num_layers=8, hidden_size=24, layers=layers,
        compute_dtype="bfloat16", storage_dtype="bfloat16", quantization=None, engine="test", engine_version="1",
    )  # fmt: skip
    states = make_states("bfloat16", 24)
    ids = [np.arange(length, dtype=np.int32) for length in LENGTHS]
    for name in ("split", "whole"):
        init_store(tmp_path / name)
        writer, digest = ObjectWriter(tmp_path / name, spec), add_spec(tmp_path / name, spec)
        if name == "split":
            infos = [
                writer.write_split(*sample)
                for sample in zip(ids, map(np.asarray, split_states(states, LENGTHS)), strict=True)
            ]
        else:
            rows = torch.split(states.view(torch.uint16), LENGTHS)
            assert infos == [writer.write(*sample) for sample in zip(ids, map(np.asarray, rows), strict=True)]
    files = {file.relative_to(tmp_path / "split"): file for file in (tmp_path / "split").rglob("*") if file.is_file()}
    assert len(files) > 5 * len(LENGTHS)
    for name, file in files.items():
        assert file.read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not check_store(tmp_path / "split", digest).findings
    assert len(open_store(tmp_path / "split")) == len(LENGTHS)
    with pytest.raises(SampleShapeError):
        writer.write_split(ids[0], np.zeros((1, 2, 1, 2, 256, 25), np.uint8))
