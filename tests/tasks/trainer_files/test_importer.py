"""Folders of a trainer's files become stores: round trips, whose layers, what is refused, and nothing unpickled."""

import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from safetensors.torch import load_file, save_file

from storage.checks import check_store
from storage.store import open_store, spec_digests
from storage.tokens_listing import find_tokens
from tasks.draft_vocabularies import make_spec
from tasks.engine.models import read_model
from tasks.errors import ImportFilesError
from tasks.tokens_specs import tokenizer_digest
from tasks.trainer_files.exporter import export_rows
from tasks.trainer_files.import_specs import ImportRequest
from tasks.trainer_files.importer import import_files
from tasks.trainer_files.manifest import ROWS
from tasks.trainer_files.requests import ExportRequest, make_export_plan

LENGTHS = (40, 300, 7, 256)
Sample = dict[str, torch.Tensor]


def make_samples(hidden_size: int, num_aux: int = 3) -> list[Sample]:
    """Make what SpecForge's own preparation of hidden states writes, of random states."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for length in LENGTHS:
        aux = torch.randn(1, length, num_aux * hidden_size, generator=generator)
        samples.append(
            {
                "input_ids": torch.randint(0, 40_000, (length,), generator=generator),
                "loss_mask": (torch.arange(length) % 3 > 0).long(),
                "hidden_state": torch.randn(1, length, hidden_size, generator=generator).bfloat16(),
                "aux_hidden_state": aux.bfloat16(),
            }
        )
    return samples


def write_samples(folder: Path, samples: list[Sample]) -> Path:
    """Write them as SpecForge does, in groups of folders; every other one gzipped."""
    for number, sample in enumerate(samples):
        place = folder / f"rows_{number // 2 * 2}-{number // 2 * 2 + 2}" / f"data_{number}.ckpt"
        place.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            buffer = io.BytesIO()
            torch.save(sample, buffer)
            place.with_name(f"{place.name}.gz").write_bytes(gzip.compress(buffer.getvalue()))
        else:
            torch.save(sample, place)
    return folder


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture
def samples(model: Path) -> list[Sample]:
    return make_samples(read_model(model).hidden_size)


@pytest.fixture
def request_of(tmp_path: Path, model: Path, samples: list[Sample]) -> Callable[..., ImportRequest]:
    folder = write_samples(tmp_path / "files", samples)

    def make(**changes: Any) -> ImportRequest:
        given: dict[str, Any] = {"folder": folder, "source": "specforge", "store": tmp_path / "store", "model": model}
        return ImportRequest(**(given | changes))

    return make


def export(store: Path, form: str, folder: Path, **changes: Any) -> list[Path]:
    export_rows(make_export_plan(ExportRequest(store, form, folder, **changes)))
    return [folder / json.loads(line)["file"] for line in (folder / ROWS).read_text().splitlines()]


def test_specforge_to_store_to_specforge_is_the_same_to_the_last_bit(
    request_of: Callable[..., ImportRequest], samples: list[Sample], tmp_path: Path
) -> None:
    request = request_of()
    info = import_files(request)
    assert (info.files, info.written, info.present) == (len(samples), len(samples), 0)
    assert info.tokens == sum(LENGTHS)
    assert not check_store(request.store, info.spec_digest).findings
    for path, sample in zip(export(request.store, "specforge", tmp_path / "again"), samples, strict=True):
        found = torch.load(path, weights_only=True)
        assert set(found) == set(sample)
        for key, tensor in sample.items():
            assert found[key].dtype == tensor.dtype, key
            assert torch.equal(found[key], tensor), key


def test_safetensors_of_an_export_become_the_same_store_again(
    request_of: Callable[..., ImportRequest], tmp_path: Path
) -> None:
    first = request_of()
    import_files(first)
    files = export(first.store, "safetensors", tmp_path / "plain")
    second = request_of(folder=tmp_path / "plain", source="safetensors", store=tmp_path / "second")
    info = import_files(second)
    assert open_store(second.store).spec.layers == open_store(first.store).spec.layers
    assert info.written == len(files)
    assert {path.stem: load_file(path) for path in export(second.store, "safetensors", tmp_path / "again")}.keys() == {
        path.stem for path in files
    }
    for name, sample in open_store(first.store).items():
        assert open_store(second.store)[name].hidden_states().tobytes() == sample.hidden_states().tobytes()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, lambda blocks: (2, blocks // 2, blocks - 3, "final")),
        ({"layers": "1,2,4"}, lambda _: (1, 2, 4, "final")),
        ({"layers": "1,2,4", "convention": "specforge"}, lambda _: (2, 3, 5, "final")),
        ({"layers": "1,2,4", "norm": "before"}, lambda blocks: (1, 2, 4, blocks)),
    ],
)
def test_layers_are_those_that_were_said_in_whose_ids_it_was_said(
    request_of: Callable[..., ImportRequest], model: Path, changes: dict[str, Any], expected: Callable[[int], tuple]
) -> None:
    request = request_of(**changes)
    import_files(request)
    assert open_store(request.store).spec.layers == expected(read_model(model).num_layers)


def test_a_store_can_be_smaller_than_its_files(request_of: Callable[..., ImportRequest], samples: list[Sample]) -> None:
    request = request_of(storage_dtype="float8_e4m3fn")
    import_files(request)
    store = open_store(request.store)
    assert store.spec.is_scaled
    error = store.rounding_error()
    assert error is not None
    assert 0 < error.mean < 0.04
    raw = sum(sample["aux_hidden_state"].nbytes + sample["hidden_state"].nbytes for sample in samples)
    assert store.stored_bytes() < 0.6 * raw


def test_an_import_goes_on_where_it_was(request_of: Callable[..., ImportRequest], samples: list[Sample]) -> None:
    request = request_of()
    bad = request.folder / "rows_2-4" / "data_2.ckpt"
    good = bad.read_bytes()
    samples[2]["hidden_state"][0, 3, 5] = float("nan")
    torch.save(samples[2], bad)
    with pytest.raises(ImportFilesError, match=r"data_2.ckpt has NaN or infinity in 1 of 7 tokens, layer final"):
        import_files(request, threads=1)
    stored = len(open_store(request.store))
    bad.write_bytes(good)
    info = import_files(request)
    assert (info.written, info.present) == (len(LENGTHS) - stored, stored)
    assert import_files(request).written == 0
    assert len(spec_digests(request.store)) == 1


def test_the_tokens_are_those_of_the_model_for_draft_vocabularies(
    request_of: Callable[..., ImportRequest], model: Path
) -> None:
    request = request_of()
    info = import_files(request)
    tokens = find_tokens(request.store)
    assert tokens.digest == info.tokens_digest
    spec = make_spec(tokens, tokenizer_digest(model), target_size=read_model(model).vocab_size, draft_size=100)
    assert spec.tokens_digest == tokens.digest


class Attack:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.target,)


def test_nothing_in_a_file_is_run(request_of: Callable[..., ImportRequest], tmp_path: Path) -> None:
    request = request_of()
    torch.save({"input_ids": Attack(str(tmp_path / "owned"))}, request.folder / "rows_0-2" / "data_0.ckpt")
    with pytest.raises(
        ImportFilesError, match=r"data_0.ckpt cannot be read as tensors .* are not unpickled"
    ) as refused:
        import_files(request)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "owned").exists()
    assert not request.store.exists()


def test_what_unpacks_to_far_more_is_refused_before_it_is_unpacked(request_of: Callable[..., ImportRequest]) -> None:
    request = request_of()
    bomb = request.folder / "rows_0-2" / "data_1.ckpt.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 28), 9))
    tracemalloc.start()
    try:
        with pytest.raises(ImportFilesError, match="more than 100 times as many as it has"):
            import_files(request)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 << 20


def test_a_zip_with_packed_entries_is_refused(request_of: Callable[..., ImportRequest]) -> None:
    request = request_of()
    bomb = request.folder / "rows_0-2" / "data_0.ckpt"
    with ZipFile(bomb, "w", ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(ImportFilesError, match="has compressed entries, which torch"):
        import_files(request)


@pytest.mark.parametrize(
    ("key", "tensor"),
    [
        ("input_ids", torch.zeros(1).long().expand(1 << 40)),
        ("loss_mask", torch.zeros(1).long().expand(1 << 40)),
        ("hidden_state", torch.zeros(1).bfloat16().expand(1, 40, 1 << 40)),
        ("input_ids", torch.arange(40).to_sparse()),
        ("input_ids", torch.arange(40).to(torch.complex64)),
        ("input_ids", torch.arange(40).to(torch.bfloat16)),
    ],
    ids=["ids", "mask", "states", "sparse", "complex", "bfloat16"],
)
def test_a_tensor_that_its_file_has_not_is_refused(
    request_of: Callable[..., ImportRequest], samples: list[Sample], key: str, tensor: torch.Tensor
) -> None:
    """One number can be a tensor of any size, by its strides."""
    request = request_of()
    torch.save(samples[0] | {key: tensor}, request.folder / "rows_0-2" / "data_0.ckpt")
    with pytest.raises(
        ImportFilesError, match=r"give a plain tensor of one of .*, with all of its elements"
    ) as refused:
        import_files(request)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("number", [-1, 1 << 31, 1 << 40])
def test_ids_that_are_none_are_refused(
    request_of: Callable[..., ImportRequest], samples: list[Sample], number: int
) -> None:
    request = request_of()
    samples[0]["input_ids"][3] = number
    torch.save(samples[0], request.folder / "rows_0-2" / "data_0.ckpt")
    with pytest.raises(ImportFilesError, match="input_ids that are no ids of a vocabulary"):
        import_files(request)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sample: sample.pop("loss_mask"), "has no tensor loss_mask"),
        (lambda sample: sample.update(loss_mask=sample["loss_mask"][1:]), "has 7 input_ids and 6 of loss_mask"),
        (lambda sample: sample.update(loss_mask=sample["loss_mask"] * 2), "values other than 0 and 1"),
        (lambda sample: sample.update(hidden_state=sample["hidden_state"][:, 1:]), "hidden_state is bfloat16"),
        (lambda sample: sample.update(hidden_state=sample["hidden_state"].int()), "hidden_state is int32"),
        (
            lambda sample: sample.update(aux_hidden_state=sample["aux_hidden_state"].repeat(1, 1, 2)),
            "has 7 layers of bfloat16, .*data_0.ckpt has 4 of bfloat16; import them from folders of their own",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    request_of: Callable[..., ImportRequest], samples: list[Sample], change: Callable[[Sample], object], words: str
) -> None:
    request = request_of()
    change(samples[2])
    torch.save(samples[2], request.folder / "rows_2-4" / "data_2.ckpt")
    with pytest.raises(ImportFilesError, match=words) as refused:
        import_files(request)
    assert "data_2.ckpt" in str(refused.value)
    assert not spec_digests(request.store)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": "2,4"}, r"has states of 4 layers, --layers names 3 \(2,4,final\)"),
        ({"source": "pickle"}, "'pickle' is no source; give one of specforge, safetensors"),
        ({"source": "safetensors"}, r"has no file \*.safetensors"),
        ({"storage_dtype": "float32"}, "cannot be stored as float32"),
    ],
)
def test_what_was_said_wrong_is_refused_before_anything_is_written(
    request_of: Callable[..., ImportRequest], changes: dict[str, Any], words: str
) -> None:
    request = request_of(**changes)
    with pytest.raises(ImportFilesError, match=words):
        import_files(request)
    assert not request.store.exists()


def test_safetensors_that_do_not_name_their_layers_need_them_said(
    request_of: Callable[..., ImportRequest], samples: list[Sample], tmp_path: Path
) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    width = samples[0]["hidden_state"].shape[-1]
    for number, sample in enumerate(samples):
        states = sample["aux_hidden_state"].reshape(-1, 3, width)
        tensors = {"input_ids": sample["input_ids"], "loss_mask": sample["loss_mask"], "hidden_states": states}
        save_file(tensors, folder / f"{number}.safetensors")
    request = request_of(folder=folder, source="safetensors")
    with pytest.raises(ImportFilesError, match="does not say which layers its states are of; give --layers"):
        import_files(request)
    import_files(request_of(folder=folder, source="safetensors", layers="0,2,final"))
    assert open_store(request.store).spec.layers == (0, 2, "final")
