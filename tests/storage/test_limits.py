"""A store of somebody else: what it says of sizes is refused in one line before memory is taken for it."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import open_store, open_tokens
from storage.codecs import add_checksum
from storage.digests import canonical_json, sha256_hex
from storage.draft_vocabularies import (
    DraftVocabulary,
    DraftVocabularySpec,
    read_draft_vocabularies,
    write_draft_vocabulary,
)
from storage.errors import (
    CorruptObjectError,
    SampleShapeError,
    SpecError,
    StatesTooLargeError,
    StorageError,
    TornObjectError,
)
from storage.limits import MAX_DOCUMENT_BYTES, MAX_HIDDEN_SIZE, MAX_LAYERS, MAX_TOKENS
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.specs import StateSpec, TokensSpec
from storage.store import read_spec
from storage.tokens import TokensWriter

HUGE = (MAX_TOKENS + 1, 1 << 40, 1 << 63, 10**40, True, 3.0, float("nan"), "3", None, [3], -1, 0)


@contextmanager
def little_memory() -> Iterator[None]:
    """Have the kernel refuse more than half a gigabyte beyond what this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def change(file: Path, act: Callable[[Any], object]) -> None:
    document = json.loads(file.read_bytes())
    act(document)
    file.write_text(json.dumps(document))


def one_line(error: BaseException) -> bool:
    return bool(str(error)) and "\n" not in str(error) and len(str(error)) < 2000


@pytest.mark.parametrize("number", HUGE, ids=repr)
def test_a_loose_object_with_another_number_of_tokens_is_refused(make_filled, number: object) -> None:
    filled = make_filled((3,))
    (folder,) = filled.objects()
    change(folder / "zarr.json", lambda document: document["attributes"].update(num_tokens=number))
    with little_memory(), pytest.raises(CorruptObjectError, match="a sample has 1 to 16777216 tokens") as refused:
        _ = open_store(filled.path)[next(iter(filled.samples))]
    assert one_line(refused.value)


def test_an_object_that_says_more_tokens_than_its_shard_has_is_refused_before_memory_is_taken(make_filled) -> None:
    filled = make_filled((3,))
    (folder,) = filled.objects()
    change(folder / "zarr.json", lambda document: document["attributes"].update(num_tokens=MAX_TOKENS))
    with little_memory(), pytest.raises(TornObjectError, match="is shorter than its index") as refused:
        open_store(filled.path)[next(iter(filled.samples))].hidden_states()
    assert one_line(refused.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ((1 << 63, 100), "names bytes that its shard has not"),
        ((0, 1 << 62), "names bytes that its shard has not"),
        ((1 << 40, 1 << 40), "names bytes that its shard has not"),
        ((0, 0), "names bytes that its shard has not"),
        (((1 << 64) - 1, (1 << 64) - 1), "lacks an inner chunk"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(make_filled, entry: tuple[int, int], words: str) -> None:
    filled = make_filled((3,))
    shard = filled.objects()[0] / "hidden_states/c/0/0/0"
    data = shard.read_bytes()
    index = np.frombuffer(data[-52:-4], "<u8").reshape(3, 2).copy()
    index[1] = entry
    shard.write_bytes(data[:-52] + add_checksum(index.tobytes()))
    sample = open_store(filled.path)[next(iter(filled.samples))]
    for layers in (None, [5]):
        with little_memory(), pytest.raises(TornObjectError, match=words):
            sample.hidden_states(layers)


def test_entries_that_share_bytes_are_refused(make_filled) -> None:
    """Else a store of a few bytes would decode to any number of them."""
    filled = make_filled((3,))
    shard = filled.objects()[0] / "hidden_states/c/0/0/0"
    data = shard.read_bytes()
    index = np.frombuffer(data[-52:-4], "<u8").reshape(3, 2).copy()
    index[:] = (0, len(data) - 52)
    shard.write_bytes(data[:-52] + add_checksum(index.tobytes()))
    with pytest.raises(TornObjectError, match="names bytes that its shard has not"):
        open_store(filled.path)[next(iter(filled.samples))].hidden_states()


@pytest.mark.parametrize("name", ["row_start", "num_tokens", "sample_hash", "checksum", "input_ids"])
@pytest.mark.parametrize("number", [1 << 62, 10**40, 2.0, True, float("nan"), -5], ids=repr)
def test_a_pack_with_another_number_of_rows_is_refused(make_filled, name: str, number: object) -> None:
    filled = make_filled((3, 5))
    compact(filled.path, filled.digest)
    file = filled.packs()[0] / name / "zarr.json"

    def resize(document: Any) -> None:
        document["shape"][0] = document["chunk_grid"]["configuration"]["chunk_shape"][0] = number

    change(file, resize)
    with little_memory(), pytest.raises(CorruptObjectError) as refused:
        open_store(filled.path)
    assert one_line(refused.value)


def test_a_sample_of_a_pack_has_no_more_tokens_than_any(make_filled) -> None:
    filled = make_filled((3, 5))
    compact(filled.path, filled.digest)
    file = filled.packs()[0] / "num_tokens/c/0"
    file.write_bytes(add_checksum(np.array([3, 1 << 62], "<i8").tobytes()))
    with little_memory(), pytest.raises(CorruptObjectError, match="a sample has other than 1 to 16777216 tokens"):
        open_store(filled.path)


def test_a_writer_keeps_to_the_limit_of_readers(make_filled) -> None:
    filled = make_filled(())
    ids = np.zeros(MAX_TOKENS + 1, np.int32)
    with pytest.raises(SampleShapeError, match="with 1 to 16777216 tokens"):
        ObjectWriter(filled.path, filled.spec).write(ids, np.empty((0, 3, 48), np.uint16))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": MAX_HIDDEN_SIZE + 1},
        {"hidden_size": 1 << 70},
        {"num_layers": MAX_LAYERS + 1},
        {"storage_dtype": ["bfloat16"]},
        {"storage_dtype": {}},
        {"numerics": 3},
        {"numerics": [["a", 1]]},
        {"numerics": {"a": float("nan")}},
        {"layers": [[2]]},
        {"layers": [2.0, "final"]},
        {"layers": "2"},
        {"architecture": "x" * 100_000, "num_layers": "x" * 100_000},
    ],
    ids=str,
)
def test_a_spec_that_nobody_writes_is_refused(make_filled, changes: dict[str, Any]) -> None:
    filled = make_filled(())
    text = json.dumps({**filled.spec.to_json(), **changes}).encode()
    digest = sha256_hex(text)
    (filled.path / "specs" / f"{digest}.json").write_bytes(text)
    with little_memory(), pytest.raises(SpecError) as refused:
        read_spec(filled.path, digest)
    assert one_line(refused.value)


def test_the_widest_state_has_a_chunk_that_blosc_takes() -> None:
    widest = StateSpec("f", "A", 1, MAX_HIDDEN_SIZE, (0,), "float32", "float32", None, "e", "1")
    assert 256 * widest.stored_width * widest.stored_dtype.itemsize < 1 << 31


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff", b"[]", b"3"])
def test_documents_that_are_none_are_corrupt(make_filled, text: bytes) -> None:
    filled = make_filled((3,))
    (filled.objects()[0] / "zarr.json").write_bytes(text)
    with pytest.raises(CorruptObjectError) as refused:
        _ = open_store(filled.path)[next(iter(filled.samples))]
    assert one_line(refused.value)


def test_a_file_larger_than_it_can_be_is_not_read(make_filled) -> None:
    """Of no bytes, as a file system stores it: to read it would take all of them."""
    filled = make_filled((3,))
    folder = filled.objects()[0]
    for name, most in (("zarr.json", MAX_DOCUMENT_BYTES), ("input_ids/c/0", 3 * 4 + 4)):
        before = (folder / name).read_bytes()
        with (folder / name).open("r+b") as file:
            file.truncate(1 << 40)
        words = f"has {1 << 40} bytes, at most {most} were expected"
        with little_memory(), pytest.raises(CorruptObjectError, match=words):
            _ = open_store(filled.path)[next(iter(filled.samples))].input_ids
        (folder / name).write_bytes(before)


def test_states_that_do_not_fit_memory_are_an_error_of_ours(make_filled) -> None:
    filled = make_filled((700,), hidden_size=4096)
    store = open_store(filled.path)
    (name,) = store
    with (
        little_memory(),
        pytest.raises(StatesTooLargeError, match=r"more than there is memory for; read fewer") as refused,
    ):
        store.read_hidden_states([name] * 50)
    assert one_line(refused.value)


def write_tokens(store: Path) -> Path:
    spec = TokensSpec(("d",), "t", "c")
    with TokensWriter(store, spec) as writer:
        writer.append(np.arange(5, dtype=np.int32), np.ones(5, np.uint8), 0)
        writer.commit()
    return store / "tokens" / spec.digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"accounting": []},
        {"accounting": {"in": 1, "rejected": [], "truncated": 0}},
        {"accounting": {"in": 1, "rejected": {"empty": "1"}, "truncated": 0}},
        {"accounting": {"in": True, "rejected": {}, "truncated": False}},
        {"accounting": {"in": 1 << 70, "rejected": {"empty": (1 << 70) - 1}, "truncated": 0}},
        {"format_version": "1"},
        {"columns": ["input_ids"]},
    ],
    ids=str,
)
def test_a_tokens_artifact_that_nobody_writes_is_refused(make_filled, changes: dict[str, Any]) -> None:
    filled = make_filled(())
    folder = write_tokens(filled.path)
    change(folder / "zarr.json", lambda document: document["attributes"].update(changes))
    with pytest.raises(CorruptObjectError) as refused:
        open_tokens(filled.path, folder.name)
    assert one_line(refused.value)


@pytest.mark.parametrize("spec", [[], 3, {"data": "abc"}, {"data": ["d"], "tokenizer": 3}, {"x": 1}], ids=str)
def test_an_artifact_under_the_digest_of_what_is_no_tokens_spec_is_refused(make_filled, spec: object) -> None:
    filled = make_filled(())
    folder = write_tokens(filled.path)
    change(folder / "zarr.json", lambda document: document["attributes"].update(tokens_spec=spec))
    digest = sha256_hex(canonical_json(spec))
    folder.rename(folder.with_name(digest))
    with pytest.raises(CorruptObjectError, match="is not that of this tokens artifact"):
        open_tokens(filled.path, digest)


def test_offsets_that_wrap_are_refused(make_filled) -> None:
    filled = make_filled(())
    folder = write_tokens(filled.path)
    offsets = folder / "offsets/c/0"
    offsets.write_bytes(add_checksum(np.array([0, -5], "<i8").tobytes()))
    with pytest.raises(CorruptObjectError, match="do not add up"):
        open_tokens(filled.path, folder.name)


@pytest.mark.parametrize(
    "changes",
    [{"attributes": []}, {"attributes": {"spec": {"tokens_digest": []}}}, {"attributes": {"spec": 3}}, {}],
    ids=str,
)
def test_a_draft_vocabulary_that_nobody_writes_is_refused(make_filled, changes: dict[str, Any]) -> None:
    filled = make_filled(())
    spec = DraftVocabularySpec("d", "t", 4, 2)
    vocabulary = DraftVocabulary(np.array([0, 1]), np.array([True, False, True, False]), 0.5)
    place = write_draft_vocabulary(filled.path, spec, vocabulary)
    assert [found.coverage for found in read_draft_vocabularies(filled.path, "d")] == [0.5]
    change(place / "zarr.json", lambda document: document.update(changes or {"attributes": {"spec": vars(spec)}}))
    with pytest.raises(StorageError) as refused:
        list(read_draft_vocabularies(filled.path, "d"))
    assert one_line(refused.value)


def test_a_vocabulary_is_named_by_text_and_sized_by_numbers() -> None:
    good = DraftVocabularySpec("d", "t", 4, 2)
    for changes in ({"tokens_digest": []}, {"tokenizer": ""}, {"target_size": "4"}, {"draft_size": 2.0}):
        with pytest.raises(SpecError):
            replace(good, **changes)
