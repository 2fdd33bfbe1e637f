"""What is of object storage alone: attempts, intents, copies of folders, other readers, and errors with a cure."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import S3Store
from s3_server import BUCKET, GUEST_ID, SECRET
from stored_files import list_files, write_file
from zarr.storage import ObjectStore

from storage import StorageError, bucket_listing, init_store, open_store
from storage.attempts import new_attempt
from storage.bucket import Bucket
from storage.bucket_listing import bucket_of
from storage.checks import check_store
from storage.collection import collect_garbage
from storage.dataset import HiddenStateDataset, HiddenStateLoader
from storage.epochs import BatchRules
from storage.errors import NotAStoreError
from storage.file_system import staging_name
from storage.intents import intent
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.paths import ObjectPath, store_path
from storage.samplers import TokenBatchSampler


@pytest.fixture
def filled(make_filled: Callable, s3_place: ObjectPath) -> Any:
    return make_filled(path=s3_place)


def assert_all_there(filled) -> None:
    store = open_store(filled.path, filled.digest)
    assert set(store) == set(filled.samples)
    for name, (_, states) in filled.samples.items():
        assert store[name].hidden_states().tobytes() == states.tobytes()
    assert not check_store(filled.path, filled.digest).findings


class TestPaths:
    def test_an_address_is_a_bucket_and_a_key(self) -> None:
        assert store_path("s3://bucket/a/b/") == ObjectPath("bucket", "a/b")
        assert store_path("s3://bucket") == ObjectPath("bucket")
        assert store_path(Path("s3://bucket/a")) == ObjectPath("bucket", "a"), "pathlib drops a slash"
        assert store_path("some/folder") == Path("some/folder")
        path = ObjectPath("bucket", "a/b")
        assert (str(path), path.name, str(path.parent), str(path / "c")) == (
            "s3://bucket/a/b",
            "b",
            "s3://bucket/a",
            "s3://bucket/a/b/c",
        )
        assert str(path.parent.parent) == "s3://bucket"
        assert path.parent.parent / "x" == ObjectPath("bucket", "x")

    @pytest.mark.parametrize(
        "text", ["s3://", "s3:///a", "s3://b//a", "s3://b/../a", "s3://b/a b", "gs://b/a", "https://b/a"]
    )
    def test_other_addresses_are_refused(self, text: str) -> None:
        with pytest.raises(NotAStoreError, match=r"no place for a store; give .*s3://BUCKET/PREFIX"):
            store_path(text)


class TestOtherReaders:
    def open_group(self, path: ObjectPath) -> zarr.Group:
        store = S3Store(path.bucket, prefix=path.key, client_options={"allow_http": True})
        return zarr.open_group(ObjectStore(store, read_only=True), mode="r")

    def test_zarr_reads_loose_objects(self, filled) -> None:
        documents = [
            name for name in list_files(filled.path) if re.fullmatch(r"objects/\w+/../\w+/\w+/zarr.json", name)
        ]
        assert len(documents) == len(filled.samples)
        for document in documents:
            group = self.open_group((filled.path / document).parent)
            ids, states = filled.samples[group.attrs["sample_hash"]]
            assert np.array_equal(group["input_ids"][:], ids)
            assert np.array_equal(group["hidden_states"][:], states.view("u2"))

    def test_zarr_reads_packs(self, filled) -> None:
        compact(filled.path, filled.digest, shard_bytes=2 * 256 * filled.spec.bytes_per_token)
        (document,) = (n for n in list_files(filled.path) if re.fullmatch(r"packs/\w+/\w+/\w+/zarr.json", n))
        pack = self.open_group((filled.path / document).parent)
        for name, start, length in zip(
            pack["sample_hash"][:], pack["row_start"][:], pack["num_tokens"][:], strict=True
        ):
            ids, states = filled.samples[name.tobytes().hex()]
            assert np.array_equal(pack["input_ids"][start : start + length], ids)
            assert np.array_equal(pack["hidden_states"][start : start + length], states.view("u2"))


class TestFolders:
    """A store that was in a folder, copied into a bucket file by file."""

    @pytest.fixture(params=[False, True])
    def copied(
        self, request: pytest.FixtureRequest, make_filled: Callable, tmp_path: Path, s3_place: ObjectPath
    ) -> Any:
        filled = make_filled(path=tmp_path / "store")
        if request.param:
            compact(filled.path, filled.digest)
        for name in list_files(filled.path):
            write_file(s3_place / name, (tmp_path / "store" / name).read_bytes())
        filled.path = s3_place
        return filled

    def test_it_is_read_and_goes_on(self, copied) -> None:
        assert_all_there(copied)
        init_store(copied.path)
        copied.write(90, 77)
        assert_all_there(copied)
        compact(copied.path, copied.digest)
        assert_all_there(copied)
        assert not [name for name in list_files(copied.path) if name.startswith(("objects/", "tmp/"))]

    def test_a_bucket_goes_into_a_folder_without_its_attempts(self, filled, tmp_path: Path) -> None:
        """As docs/format.md says."""
        filled.write(90, 78)
        compact(filled.path, filled.digest)
        filled.write(80, 79)
        for name in list_files(filled.path):
            place = tmp_path / "copy" / re.sub(r"/[0-9a-f]{32}/", "/", name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bytes(bucket_of(BUCKET).get((filled.path / name).key)))
        filled.path = tmp_path / "copy"
        assert_all_there(filled)


class TestAttempts:
    def test_an_attempt_under_way_does_not_count_and_is_left_alone(self, filled) -> None:
        (name, *_) = filled.samples
        place = filled.path / f"objects/{filled.digest}/{name[:2]}/{name}"
        other = filled.path / f"objects/{filled.digest}/00/{'0' * 64}"
        attempts = [place / new_attempt(), other / new_attempt()]
        bucket = bucket_of(BUCKET)
        with intent(bucket, filled.path, attempts):
            for attempt in attempts:
                write_file(attempt / "hidden_states/c/0/0/0", b"a part")
            assert "0" * 64 not in open_store(filled.path)
            assert_all_there(filled)
            init_store(filled.path)
            assert collect_garbage(filled.path, is_dry=False).counts == {}
            compact(filled.path, filled.digest)
            assert_all_there(filled)
            assert all(bucket.info((attempt / "hidden_states/c/0/0/0").key) for attempt in attempts)
            for attempt in attempts:
                write_file(attempt / "zarr.json", b"{}")

    @pytest.mark.parametrize("is_ours", [True, False])
    def test_what_a_killed_writer_left_is_swept_by_its_host_or_by_age(self, filled, is_ours: bool) -> None:
        dead = subprocess.Popen(["true"])
        dead.wait()
        host = staging_name().rsplit("-", 2)[0] if is_ours else "elsewhere.1"
        attempt = f"objects/{filled.digest}/00/{'0' * 64}/{new_attempt()}"
        write_file(filled.path / f"tmp/{host}-{dead.pid}-{'0' * 32}", json.dumps([attempt]).encode())
        write_file(filled.path / attempt / "hidden_states/c/0/0/0", b"a part")
        before = set(list_files(filled.path))
        garbage = collect_garbage(filled.path)
        assert (garbage.counts["staging"], garbage.bytes["staging"], garbage.foreign_bytes) == (
            (1, 6, 0) if is_ours else (0, 0, 6)
        )
        init_store(filled.path)
        if not is_ours:
            assert set(list_files(filled.path)) == before
            time.sleep(1.1)  # a listing has whole seconds
            assert not collect_garbage(filled.path, older_than_seconds=3600, is_dry=False).counts
            assert collect_garbage(filled.path, older_than_seconds=0.01, is_dry=False).counts["staging"] == 1
        assert not [name for name in list_files(filled.path) if "0" * 64 in name or name.startswith("tmp/")]
        assert_all_there(filled)

    def test_an_intent_of_what_was_committed_removes_nothing(self, filled) -> None:
        dead = subprocess.Popen(["true"])
        dead.wait()
        folders = {
            name.rsplit("/", 1)[0]
            for name in list_files(filled.path)
            if re.fullmatch(r"objects/.*/\w{32}/zarr.json", name)
        }
        note = f"tmp/{staging_name().rsplit('-', 2)[0]}-{dead.pid}-{'0' * 32}"
        write_file(filled.path / note, json.dumps(sorted(folders)).encode())
        init_store(filled.path)
        assert_all_there(filled)
        assert note not in list_files(filled.path)

    def test_attempts_without_an_intent_are_garbage(self, filled) -> None:
        attempt = filled.path / f"packs/{filled.digest}/{'0' * 64}/{new_attempt()}"
        write_file(attempt / "hidden_states/c/0/0/0", b"a part")
        assert_all_there(filled)
        assert collect_garbage(filled.path, is_dry=False).counts["staging"] == 1
        assert not [name for name in list_files(filled.path) if name.startswith("packs/")]
        assert_all_there(filled)


def test_a_large_store_is_listed_by_prefixes(filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_listing, "PAGE", 3)
    compact(filled.path, filled.digest)
    for seed in range(5):
        filled.write(20, 100 + seed)
    assert_all_there(filled)
    attempts = [f"{folder}/{new_attempt()}" for folder in (f"packs/{filled.digest}/{'0' * 64}", f"tokens/{'1' * 64}")]
    for attempt in attempts:
        write_file(filled.path / attempt / "hidden_states/c/0/0/0", b"a part")
    assert collect_garbage(filled.path, is_dry=False).counts["staging"] == 2
    assert_all_there(filled)


class TestReading:
    def test_a_part_of_a_sample_takes_a_part_of_the_bytes(self, filled, monkeypatch: pytest.MonkeyPatch) -> None:
        filled.write(4000, 50)
        compact(filled.path, filled.digest)
        read: list[int] = []
        get_range = Bucket.get_range

        def count(bucket: Bucket, key: str, start: int, stop: int) -> memoryview:
            data = get_range(bucket, key, start, stop)
            read.append(len(data))
            return data

        monkeypatch.setattr(Bucket, "get_range", count)
        store = open_store(filled.path)
        name = next(name for name in store if store[name].num_tokens == 4000)
        store[name].hidden_states()
        whole = sum(read)
        read.clear()
        store[name].hidden_states(rows=slice(300, 310))
        assert len(read) == 1
        assert sum(read) < whole / 10

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_a_dataset_is_read_by_worker_processes(self, filled, num_workers: int) -> None:
        from storage import TokensSpec
        from storage.tokens import TokensWriter

        with TokensWriter(filled.path, TokensSpec(("d" * 64,), "t" * 64, "c" * 64)) as writer:
            for row, (ids, _) in enumerate(filled.samples.values()):
                writer.append(ids, np.ones(len(ids), np.uint8), row)
            digest = writer.commit().digest
        compact(filled.path, filled.digest)
        dataset = HiddenStateDataset(str(filled.path), digest)
        sampler = TokenBatchSampler(dataset.hashes, dataset.lengths, BatchRules(max_tokens=1000), rank=0, world_size=1)
        rows = []
        for batch in HiddenStateLoader(dataset, sampler, num_workers=num_workers):
            for row, states, mask in zip(batch["row"], batch["hidden_states"], batch["attention_mask"], strict=True):
                expected = list(filled.samples.values())[int(row)][1]
                assert states[: int(mask.sum())].float().numpy().tolist() == expected.astype(np.float32).tolist()
                rows.append(int(row))
        assert sorted(rows) == list(range(len(filled.samples)))

    def test_a_forked_process_is_told_so(self, filled) -> None:
        open_store(filled.path)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                open_store(filled.path)
            except StorageError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert "start processes with spawn" in pipe.read()
        os.waitpid(child, 0)


def test_large_files_go_up_in_parts_and_come_back(make_filled: Callable, s3_place: ObjectPath) -> None:
    filled = make_filled((40_000,), path=s3_place, hidden_size=256)
    assert max(list_files(s3_place).values()) > 32 << 20
    assert_all_there(filled)
    compact(s3_place, filled.digest)
    assert_all_there(filled)


class TestErrors:
    """Each in a process of its own, as the environment says who and where."""

    def refusal(self, place: str, call: str = "open_store", **environment: str | None) -> str:
        code = (
            "import sys; from storage import init_store, open_store, StorageError\n"
            f"try: {call}({place!r})\n"
            "except StorageError as error: print(f'{type(error).__name__}: {error}')\n"
        )
        changed = {name: value for name, value in (os.environ | environment).items() if value is not None}
        done = subprocess.run(
            [sys.executable, "-c", code], env=changed, capture_output=True, text=True, timeout=120, check=True
        )
        (line,) = done.stdout.splitlines()
        assert not done.stderr
        assert SECRET not in line
        assert "test:tester" not in line
        return line

    def test_no_bucket(self, s3_server: dict[str, str]) -> None:
        line = self.refusal("s3://nowhere/store")
        host = s3_server["AWS_ENDPOINT_URL"].removeprefix("http://")
        assert line == f"StoreNotFoundError: there is no bucket nowhere at {host}; make it, or correct the address"

    def test_no_store(self, s3_place: ObjectPath) -> None:
        assert self.refusal(str(s3_place)).startswith(f"StoreNotFoundError: {s3_place} has no object below it")

    @pytest.mark.parametrize("address", ["banana", "http:", "https://"])
    def test_no_address(self, s3_place: ObjectPath, address: str) -> None:
        line = self.refusal(str(s3_place), AWS_ENDPOINT_URL=address)
        assert line == ("StoreUnreachableError: AWS_ENDPOINT_URL is no address; give http://HOST:PORT or https://HOST")

    @pytest.mark.parametrize("call", ["open_store", "init_store"])
    def test_no_credentials(self, s3_place: ObjectPath, call: str) -> None:
        none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"}
        line = self.refusal(str(s3_place), call, **none)
        assert line == (
            f"StoreUnreachableError: there are no credentials for s3://{BUCKET}; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )

    @pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
    def test_wrong_credentials(self, s3_place: ObjectPath, name: str) -> None:
        line = self.refusal(str(s3_place), **{name: "wrong"})
        assert re.match(
            rf"StoreUnreachableError: 127.0.0.1:\d+ refuses s3://{BUCKET} \(\w+\); check AWS_ACCESS_KEY_ID", line
        )

    def test_nobody_there(self, s3_place: ObjectPath) -> None:
        line = self.refusal(str(s3_place), AWS_ENDPOINT_URL="http://user:password@127.0.0.1:1")
        assert line == "StoreUnreachableError: 127.0.0.1:1 does not answer; check AWS_ENDPOINT_URL and the network"

    def test_no_rights(self, s3_place: ObjectPath) -> None:
        line = self.refusal(str(s3_place), "init_store", AWS_ACCESS_KEY_ID=GUEST_ID)
        assert re.match(rf"StoreUnreachableError: 127.0.0.1:\d+ refuses s3://{BUCKET} \(AccessDenied\); check", line)


def test_an_object_is_written_by_few_requests(
    make_filled: Callable, s3_place: ObjectPath, sample_of, monkeypatch
) -> None:
    filled = make_filled((), path=s3_place)
    asked: list[str] = []
    ask = Bucket._ask

    def count(bucket: Bucket, key: str, request: Any, **options: Any) -> Any:
        asked.append(key)
        return ask(bucket, key, request, **options)

    writer = ObjectWriter(s3_place, filled.spec)
    monkeypatch.setattr(Bucket, "_ask", count)
    writer.write(*sample_of(300, 1))
    assert len(asked) == 9  # is it there; still not; intent; four files; zarr.json; intent done
