"""Exports: what is written, what is kept, what is refused, and what is left by a process that was killed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_worlds import ORDER, World, make_world
from safetensors.torch import load_file

from storage.dataset import to_tensor
from storage.draft_vocabularies import DraftVocabularySpec, write_draft_vocabulary
from storage.errors import SampleNotFoundError
from storage.paths import ObjectPath
from tasks.draft_vocabularies import choose_tokens
from tasks.errors import ExportError, NotEnoughSpaceError
from tasks.trainer_files.exporter import ExportInfo, export_rows
from tasks.trainer_files.formats import FORMATS
from tasks.trainer_files.manifest import HEADER, ROWS, STAGING, Manifest
from tasks.trainer_files.plan import require_room

FOLDER_FILES = (HEADER, ROWS)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world") / "store")


def export(world: World, form: str, folder: Path, threads: int = 2, **changes: Any) -> ExportInfo:
    return export_rows(world.plan(form, folder, **changes), threads=threads)


def row_files(folder: Path) -> list[Path]:
    """Return the files of rows in the order of the rows, as the manifest has them."""
    return [folder / json.loads(line)["file"] for line in (folder / ROWS).read_text().splitlines()]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in row_files(folder)}


def expected(world: World, row: int, layers: tuple[Any, ...]) -> torch.Tensor:
    slots = [world.spec.layers.index(layer) for layer in layers]
    return to_tensor(np.ascontiguousarray(world.rows[row][2][:, slots]))


def test_specforge_gets_the_state_after_the_norm_and_three_layers_side_by_side(world: World, tmp_path: Path) -> None:
    info = export(world, "specforge", tmp_path)
    assert (info.rows, info.written, info.layers, info.owner_ids) == (len(ORDER), len(ORDER), (2, 4, 5), [1, 3, 4])
    for row, path in enumerate(row_files(tmp_path)):
        found = torch.load(path, weights_only=True)
        assert torch.equal(found["hidden_state"], expected(world, row, ("final",)).squeeze(1)[None])
        assert torch.equal(found["aux_hidden_state"], expected(world, row, (2, 4, 5)).flatten(1)[None])
        assert found["input_ids"].tolist() == world.rows[row][0].tolist()
        assert found["loss_mask"].tolist() == world.rows[row][1].tolist()


def test_speculators_gets_the_state_before_the_norm_in_files_numbered_as_its_dataset(
    world: World, tmp_path: Path
) -> None:
    from datasets import load_from_disk

    export(world, "speculators", tmp_path, rows="1:6")
    dataset = load_from_disk(tmp_path)
    assert [row["seq_len"].item() for row in dataset] == [len(world.rows[row][0]) for row in range(1, 6)]
    for number, row in enumerate(range(1, 6)):
        found = load_file(tmp_path / "hidden_states" / f"hs_{number}.safetensors")
        assert torch.equal(found["hidden_states"], expected(world, row, (2, 4, 5, 8)))
        assert torch.equal(found["token_ids"], dataset[number]["input_ids"])
        assert dataset[number]["loss_mask"].tolist() == world.rows[row][1].tolist()


def test_modelopt_takes_the_state_before_the_norm_where_there_is_no_other_and_says_so(tmp_path: Path) -> None:
    world = make_world(tmp_path / "store", layers=(2, 8))
    info = export(world, "modelopt", tmp_path / "files")
    assert (info.norm, info.owner_ids) == ("before", [1])
    found = torch.load(row_files(tmp_path / "files")[0], weights_only=True)
    assert found["hidden_states_prenorm"] is True
    assert torch.equal(found["hidden_states"], expected(world, 0, (8,)).squeeze(1))
    assert found["conversation_id"] == row_files(tmp_path / "files")[0].stem


def test_safetensors_have_any_layers_in_the_dtype_of_the_store(tmp_path: Path) -> None:
    world = make_world(tmp_path / "store", storage_dtype="float32")
    export(world, "safetensors", tmp_path / "files", layers="5,final")
    for row, path in enumerate(row_files(tmp_path / "files")):
        assert torch.equal(load_file(path)["hidden_states"], expected(world, row, (5, "final")))


def test_names_are_those_of_samples_and_copies_have_numbers_whatever_rows_are_chosen(
    world: World, tmp_path: Path
) -> None:
    export(world, "modelopt", tmp_path / "all")
    export(world, "modelopt", tmp_path / "some", rows="4:")
    names = [path.stem for path in row_files(tmp_path / "all")]
    assert names[4] == f"{names[0]}-2"
    assert names[6] == f"{names[1]}-2"
    assert [path.stem for path in row_files(tmp_path / "some")] == names[4:]


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_bytes_come_again_whatever_the_threads(world: World, tmp_path: Path, form: str) -> None:
    export(world, form, tmp_path / "one", threads=1)
    export(world, form, tmp_path / "four", threads=4)
    assert content(tmp_path / "one") == content(tmp_path / "four")


@pytest.mark.parametrize("form", FORMATS)
def test_the_plan_says_about_how_many_bytes_that_will_be(world: World, tmp_path: Path, form: str) -> None:
    planned = world.plan(form, tmp_path).num_bytes
    info = export(world, form, tmp_path)
    assert info.bytes <= planned <= info.bytes + info.rows * 8192
    assert info.bytes == sum(path.stat().st_size for path in row_files(tmp_path))


def test_what_is_there_and_right_is_kept_and_the_rest_is_made_again(world: World, tmp_path: Path) -> None:
    export(world, "specforge", tmp_path)
    before, files = content(tmp_path), row_files(tmp_path)
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    damaged = bytearray(files[2].read_bytes())
    damaged[-300] ^= 1
    files[2].write_bytes(damaged)
    os.utime(files[3])  # a copy of a folder has other times
    inodes = {path: path.stat().st_ino for path in files[3:]}
    info = export(world, "specforge", tmp_path)
    assert (info.written, info.present) == (3, len(ORDER) - 3)
    assert content(tmp_path) == before
    assert {path: path.stat().st_ino for path in files[3:]} == inodes
    assert export(world, "specforge", tmp_path).written == 0


def test_the_manifest_says_what_came_from_where(world: World, tmp_path: Path) -> None:
    export(world, "specforge", tmp_path, rows=":3")
    header = json.loads((tmp_path / HEADER).read_text())
    assert header["complete"] is True
    assert (header["format"], header["store"]) == ("specforge", str(world.store))
    assert (header["spec_digest"], header["tokens_digest"]) == (world.spec.digest(), world.tokens.digest())
    assert (header["layers"], header["norm"]) == ([2, 4, 5, "final"], "after the final norm")
    assert header["drafter_layers_as_the_trainer_counts"] == [1, 3, 4]
    rows = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert [(row["kept"], row["row"]) for row in rows] == [(0, 0), (1, 10), (2, 20)]
    for row in rows:
        assert row["file"] == f"{row['sample_hash'][:2]}/{row['sample_hash']}.ckpt"
        assert row["bytes"] == (tmp_path / row["file"]).stat().st_size


def test_an_export_of_some_rows_can_become_one_of_more_and_not_of_fewer(world: World, tmp_path: Path) -> None:
    export(world, "speculators", tmp_path, rows=":3")
    assert export(world, "speculators", tmp_path).written == len(ORDER) - 3
    with pytest.raises(
        ExportError, match=r"hs_3.safetensors of row 30, which has another place in this export, or none"
    ):
        export(world, "speculators", tmp_path, rows=":3")
    with pytest.raises(ExportError, match="which has another place"):
        export(world, "speculators", tmp_path, rows="1:")


@pytest.mark.parametrize(
    ("form", "changes", "words"),
    [
        ("modelopt", {}, "export of another format"),
        ("specforge", {"layers": "2,4,5"}, "export of another layers"),
    ],
)
def test_another_export_is_not_mixed_into_a_folder(
    world: World, tmp_path: Path, form: str, changes: dict[str, Any], words: str
) -> None:
    export(world, "safetensors", tmp_path, **({"layers": "2,final"} if form == "specforge" else {}))
    before = content(tmp_path)
    with pytest.raises(ExportError, match=words):
        export(world, "safetensors" if changes else form, tmp_path, **changes)
    assert content(tmp_path) == before


def test_a_folder_of_other_things_is_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "old.ckpt").touch()
    with pytest.raises(ExportError, match=r"is not empty and no export \(it holds 'old.ckpt'\)"):
        export(world, "specforge", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["old.ckpt"]


def test_one_process_at_a_time_exports_to_a_folder(world: World, tmp_path: Path) -> None:
    plan = world.plan("specforge", tmp_path)
    with Manifest(tmp_path, plan.identity(), {}), pytest.raises(ExportError, match="another process exports"):
        export_rows(plan)


def test_rows_without_states_are_refused_or_left_out(tmp_path: Path) -> None:
    world = make_world(tmp_path / "store", lacking=1)
    with pytest.raises(SampleNotFoundError, match=r"1 of 7 rows have no states .* --missing skip"):
        world.plan("specforge", tmp_path / "files")
    info = export(world, "speculators", tmp_path / "files", missing="skip")
    assert (info.rows, info.missing) == (6, 1)
    lengths = [
        len(load_file(tmp_path / "files" / "hidden_states" / f"hs_{i}.safetensors")["token_ids"]) for i in range(6)
    ]
    assert lengths == [len(world.rows[row][0]) for row in (0, 1, 2, 4, 5, 6)]


def test_a_store_in_a_bucket_gives_the_same_files(world: World, s3_place: ObjectPath, tmp_path: Path) -> None:
    remote = make_world(s3_place)
    export(world, "speculators", tmp_path / "local")
    export(remote, "speculators", tmp_path / "remote")
    assert content(tmp_path / "local") == content(tmp_path / "remote")
    assert json.loads((tmp_path / "remote" / HEADER).read_text())["store"] == str(s3_place)


def test_float8_numbers_are_those_of_the_store(tmp_path: Path) -> None:
    world = make_world(tmp_path / "store", storage_dtype="float8_e4m3fn")
    plan = world.plan("speculators-fp8", tmp_path / "files")
    export_rows(plan)
    stored = plan.store[plan.sample_hash(1)].float8_states((2, 4, 5, 8))
    found = load_file(tmp_path / "files" / "hidden_states" / "hs_1.safetensors")
    assert found["hidden_states"].dtype == torch.float8_e4m3fn
    assert found["hidden_states"].view(torch.uint8).numpy().tobytes() == stored.values.tobytes()
    assert np.array_equal(found["hidden_states_scales"].squeeze(-1).numpy(), stored.scales)


@pytest.mark.parametrize(
    ("form", "changes", "words"),
    [
        ("specforge", {"storage_dtype": "float8_e4m3fn"}, r"are lossy \(float8_e4m3fn\); give --allow-lossy"),
        ("speculators", {"mantissa_bits": 3}, r"are lossy \(3 bits of mantissa\)"),
        ("safetensors", {"mantissa_bits": 3}, "are lossy"),
        ("modelopt", {"storage_dtype": "float16"}, "reads bfloat16 and the store's states are float16"),
    ],
)
def test_lossy_states_are_exported_only_when_asked_for(
    tmp_path: Path, form: str, changes: dict[str, Any], words: str
) -> None:
    world = make_world(tmp_path / "store", **changes)
    with pytest.raises(ExportError, match=words):
        world.plan(form, tmp_path / "files")
    assert export(world, form, tmp_path / "files", allow_lossy=True).written == len(ORDER)
    file = row_files(tmp_path / "files")[0]
    found = load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)
    states = next(value for name, value in found.items() if name.startswith("hidden_state"))
    assert states.dtype == torch.bfloat16


def test_no_room_is_refused_before_anything_is_written(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = world.plan("specforge", tmp_path / "files")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=plan.num_bytes))
    with pytest.raises(NotEnoughSpaceError, match=rf"has {plan.num_bytes:,} bytes free, the export needs about "):
        require_room(plan)
    with pytest.raises(NotEnoughSpaceError):
        export_rows(plan)
    assert not list((tmp_path / "files").rglob("*.ckpt"))


def test_the_tokens_of_rows_are_the_progress(world: World, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    plan = world.plan("specforge", tmp_path)
    export_rows(plan, on_progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == len(ORDER)
    assert seen[-1] == (plan.num_tokens, plan.num_tokens)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("specforge", ["vocab_mapping/vocab_mapping.pt"]),
        ("speculators", ["d2t-100.npy", "t2d-100.npy"]),
        ("modelopt", ["d2t-100.torch"]),
        ("safetensors", ["d2t-100.npy", "t2d-100.npy"]),
    ],
)
def test_draft_vocabularies_of_these_tokens_come_with_them(tmp_path: Path, form: str, names: list[str]) -> None:
    world = make_world(tmp_path / "store")
    vocabulary = choose_tokens(np.arange(50_000)[::-1].copy(), 100)
    for digest, size in ((world.tokens.digest(), 100), ("0" * 64, 7)):
        spec = DraftVocabularySpec(digest, "tokenizer", 50_000, size)
        write_draft_vocabulary(world.store, spec, choose_tokens(np.arange(50_000)[::-1].copy(), size))
    info = export(world, form, tmp_path / "files")
    assert [str(file.relative_to(tmp_path / "files")) for file in info.vocabularies] == names
    first = info.vocabularies[0]
    found = np.load(first) if first.suffix == ".npy" else torch.load(first, weights_only=True)
    d2t = found["d2t"] if form == "specforge" else found
    assert np.array_equal(np.asarray(d2t), vocabulary.d2t)


# Once so many files are there, each thread stops in the middle of its next one.
STUCK = """
import os, sys, time
from pathlib import Path
from tasks.trainer_files import row_files
from tasks.trainer_files.exporter import export_rows
from tasks.trainer_files.manifest import ROWS
from tasks.trainer_files.requests import ExportRequest, make_export_plan

store, form, folder, lines = sys.argv[1:]
write = row_files._CheckedFile.write
def write_or_stop(self, data):
    if (Path(folder) / ROWS).read_bytes().count(b"}") < int(lines):
        return write(self, data)
    self._file.write(data[: len(data) // 2])
    os.write(1, b"stuck\\n")
    time.sleep(600)
row_files._CheckedFile.write = write_or_stop
export_rows(make_export_plan(ExportRequest(Path(store), form, Path(folder))), threads=2)
"""


@pytest.mark.parametrize("form", ["specforge", "speculators"])
@pytest.mark.parametrize("lines", [1, 4])
def test_a_killed_export_leaves_only_whole_files_and_goes_on(
    world: World, tmp_path: Path, form: str, lines: int
) -> None:
    folder = tmp_path / "files"
    command = [sys.executable, "-c", STUCK, str(world.store), form, str(folder), str(lines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.kill()
    assert said.startswith("stuck")
    assert json.loads((folder / HEADER).read_text())["complete"] is False
    export(world, form, tmp_path / "whole")
    whole = content(tmp_path / "whole")
    left = {
        str(path.relative_to(folder)): path for path in folder.rglob("*") if path.suffix in (".ckpt", ".safetensors")
    }
    assert left
    for name, path in left.items():
        assert path.read_bytes() == whole[name]
    info = export(world, form, folder)
    assert lines <= info.present < len(ORDER)
    assert content(folder) == whole
    assert not (folder / STAGING).exists()
