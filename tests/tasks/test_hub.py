"""Models in a cache of the Hub, found and identified without a network."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_caches import REVISION, fill_cache

from tasks.engine.errors import ModelNotFoundError
from tasks.fingerprints import model_fingerprint
from tasks.hub import blob_digest, find_model, find_revision


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "plain"))


@pytest.fixture
def snapshot(model: Path, tmp_path: Path) -> Path:
    return fill_cache(tmp_path / "cache", model)


def test_a_snapshot_has_the_fingerprint_of_a_plain_copy_and_no_weight_is_read(snapshot: Path, model: Path) -> None:
    plain = model_fingerprint(model)
    weights = (snapshot / "model.safetensors").resolve()
    os.truncate(weights, 0)  # a copy of the link count: the plain file is the same inode, and was read before
    assert model_fingerprint(snapshot) == plain


def test_a_file_of_other_content_is_another_model(snapshot: Path) -> None:
    before = model_fingerprint(snapshot)
    (snapshot / "model.safetensors").unlink()
    blob = snapshot.parent.parent / "blobs" / hashlib.sha256(b"other").hexdigest()
    blob.write_bytes(b"other")
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs") / blob.name)
    assert model_fingerprint(snapshot) != before


def test_the_revision_is_found_in_the_cache_alone(snapshot: Path, model: Path, tmp_path: Path) -> None:
    assert find_revision(snapshot) == REVISION
    (tmp_path / "link").symlink_to(snapshot)
    assert find_revision(tmp_path / "link") == REVISION
    assert find_revision(model) is None
    assert find_revision(model.rename(tmp_path / REVISION)) is None
    assert find_revision(snapshot.rename(snapshot.with_name("main"))) is None


def move_blob(name: str) -> Callable[[Path], None]:
    """Give the weights' blob another name, or another folder."""

    def spoil(snapshot: Path) -> None:
        link = snapshot / "model.safetensors"
        blob = link.resolve()
        moved = blob.parent / name
        moved.parent.mkdir(exist_ok=True)
        blob.rename(moved)
        link.unlink()
        link.symlink_to(moved)

    return spoil


def rename_repository(snapshot: Path) -> None:
    repository = snapshot.parent.parent
    repository.rename(repository.with_name("datasets--org--tiny"))


def unlink_blob(snapshot: Path) -> None:
    content = (snapshot / "model.safetensors").read_bytes()
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        move_blob("f" * 63),
        move_blob("F" * 64),
        move_blob("f" * 40),
        move_blob(f"../elsewhere/{'f' * 64}"),
        rename_repository,
        unlink_blob,
    ],
)
def test_a_name_is_trusted_in_the_layout_of_the_cache_alone(
    snapshot: Path, model: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(snapshot)
    folder = next(snapshot.parent.parent.parent.glob("*/snapshots/*"))
    assert blob_digest(folder / "model.safetensors") is None
    assert model_fingerprint(folder) == model_fingerprint(model)


def test_small_files_have_git_names_and_are_read(snapshot: Path) -> None:
    assert blob_digest(snapshot / "model.safetensors") is not None
    assert blob_digest(snapshot / "config.json") is None


class TestFindingAModel:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # what would go to the network must show
        monkeypatch.chdir(tmp_path)
        return tmp_path / "cache"

    def test_an_id_is_its_snapshot(self, snapshot: Path) -> None:
        assert find_model(Path("org/tiny")) == snapshot

    def test_a_folder_of_that_name_comes_first(self, snapshot: Path, tmp_path: Path) -> None:
        assert snapshot.exists()
        (tmp_path / "org" / "tiny").mkdir(parents=True)
        assert find_model(Path("org/tiny")) == Path("org/tiny")

    @pytest.mark.parametrize("name", ["org/other", "org/tiny..x", "a--b/c"])
    def test_what_is_not_there_is_refused_with_what_to_do(self, snapshot: Path, cache: Path, name: str) -> None:
        assert snapshot.exists()
        with pytest.raises(ModelNotFoundError, match=f"{name} does not exist.*hf download {name}") as error:
            find_model(Path(name))
        assert str(cache) in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("path", ["/nowhere/at/all", "./a/b/c", "tiny"])
    def test_a_path_stays_a_path(self, path: str) -> None:
        assert find_model(Path(path)) == Path(path)
