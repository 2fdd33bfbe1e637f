"""Which files are read, for files, globs, folders and saved datasets."""

import json

import pytest

from storage import init_store
from tasks.errors import DataError, DataNotFoundError
from tasks.inputs.data_files import find_files, name_files


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.jsonl",
        "a.jsonl.gz",
        "sub/c.parquet",
        "sub/d.json.zst",
        "notes.txt",
        ".hidden/e.jsonl",
        ".f.jsonl",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(folder, *data):
    return [path.relative_to(folder).as_posix() for path in find_files(data)]


def test_a_folder_is_its_data_files_by_name(folder):
    assert names(folder, folder) == ["a.jsonl.gz", "b.jsonl", "sub/c.parquet", "sub/d.json.zst"]


def test_the_files_of_a_store_are_no_data(folder):
    init_store(folder / "states")
    (folder / "states" / "rejects.jsonl").touch()
    assert names(folder, folder) == ["a.jsonl.gz", "b.jsonl", "sub/c.parquet", "sub/d.json.zst"]


def test_files_keep_their_order_and_globs_are_sorted(folder):
    assert names(folder, folder / "sub" / "c.parquet", folder / "*.jsonl*") == [
        "sub/c.parquet",
        "a.jsonl.gz",
        "b.jsonl",
    ]
    assert names(folder, folder / "**" / "*.zst") == ["sub/d.json.zst"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    (tmp_path / "a[1].jsonl").touch()
    (tmp_path / "a1.jsonl").touch()
    assert names(tmp_path, tmp_path / "a[1].jsonl") == ["a[1].jsonl"]


def test_a_file_that_is_missing_is_left_to_be_refused(tmp_path):
    assert find_files([tmp_path / "gone.jsonl"]) == [tmp_path / "gone.jsonl"]


def test_nothing_to_read_is_said(folder):
    (folder / "empty").mkdir()
    with pytest.raises(DataNotFoundError, match="without a data file"):
        find_files([folder / "empty"])
    with pytest.raises(DataNotFoundError, match="matches no file"):
        find_files([folder / "*.csv"])


@pytest.fixture
def saved(tmp_path):
    from datasets import Dataset, DatasetDict

    rows = [{"messages": [{"role": "user", "content": str(i)}]} for i in range(10)]
    dataset = Dataset.from_list(rows)
    dataset.save_to_disk(tmp_path / "one", num_shards=3)
    DatasetDict({"train": dataset, "test": dataset.select([3, 1])}).save_to_disk(tmp_path / "splits")
    return tmp_path


def test_a_saved_dataset_is_its_arrow_files_in_order(saved):
    from tasks.inputs.formats import detect_format, reader_of

    found = find_files([saved / "one"])
    assert len(found) == 3
    reader = reader_of(detect_format(found[0]))
    rows = [r.value for path in found for c in reader.read(path, ("messages",)) for r in reader.records(c)]
    assert [row["messages"][0]["content"] for row in rows] == [str(i) for i in range(10)]


def test_a_choice_of_rows_is_saved_as_such(saved):
    from tasks.inputs.formats import reader_of

    [path] = find_files([saved / "splits" / "test"])
    rows = [r.value for c in reader_of("arrow").read(path, ("messages",)) for r in reader_of("arrow").records(c)]
    assert [row["messages"][0]["content"] for row in rows] == ["3", "1"]


def test_of_several_splits_one_must_be_named(saved):
    with pytest.raises(DataError, match=r"several splits \(train, test\)"):
        find_files([saved / "splits"])


def test_a_saved_dataset_that_is_damaged_or_indirect_is_refused(saved):
    state = json.loads((saved / "one" / "state.json").read_text())
    (saved / "one" / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "x"}]}))
    with pytest.raises(DataError, match="chosen by index"):
        find_files([saved / "one"])
    (saved / "one" / "state.json").write_text("{")
    with pytest.raises(DataError, match="not that of a saved dataset"):
        find_files([saved / "one"])


@pytest.mark.parametrize(
    "name", ["../secret.arrow", "/etc/passwd", "x/y.arrow", "..", "", "a\0b", 3, None, ["x"]], ids=repr
)
def test_a_saved_dataset_names_files_of_its_own_folder_alone(tmp_path, name):
    """Else the folder of somebody else would have us read any file of ours."""
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(DataError, match="no file of the folder; save the dataset again"):
        find_files([tmp_path])


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", "{}", '{"_data_files": 3}', '{"splits": 3}', "\ud800"])
@pytest.mark.parametrize("file", ["state.json", "dataset_dict.json"])
def test_files_of_a_saved_dataset_that_are_none_are_refused(tmp_path, file, text):
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / file).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match="is not that of a saved dataset") as refused:
        find_files([tmp_path])
    assert "\n" not in str(refused.value)


def test_names_are_short_and_tell_files_apart(tmp_path):
    assert name_files([tmp_path / "x" / "a.jsonl", tmp_path / "b.jsonl"]) == ["a.jsonl", "b.jsonl"]
    assert name_files([tmp_path / "x" / "a.jsonl", tmp_path / "a.jsonl"]) == ["x/a.jsonl", "a.jsonl"]
    assert name_files([tmp_path / "a.jsonl", tmp_path / "a.jsonl"]) == ["a.jsonl", "a.jsonl"]
