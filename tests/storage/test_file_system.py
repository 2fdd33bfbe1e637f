"""The store on a file system: what it removes."""

from pathlib import Path

from storage.file_system import FileSystem


def test_of_a_link_the_link_is_removed_and_nothing_that_it_leads_to(tmp_path: Path) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    (elsewhere / "folder").mkdir(parents=True)
    (elsewhere / "folder" / "kept").write_text("kept")
    store.mkdir()
    place, dangling = store / "place", store / "dangling"
    place.symlink_to(elsewhere / "folder")
    dangling.symlink_to(elsewhere / "nothing")
    FileSystem().remove(store, [place, dangling])
    assert not place.is_symlink()
    assert not dangling.is_symlink()
    assert (elsewhere / "folder" / "kept").read_text() == "kept"
    assert list((store / "tmp").iterdir()) == []
