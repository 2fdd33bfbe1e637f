"""What a store of somebody else may hold: its documents, loose objects, packs, shards, chunks and tokens artifacts.

Checksums are those of what was changed: damage is what `corruption_matrix` is for, and this is malice.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz_base import Change, FolderTarget
from mutations import change_value, make_value, mutate_array, mutate_bytes, mutate_document
from small_samples import SPEC

from storage import open_store
from storage.checks import check_store
from storage.codecs import add_checksum
from storage.digests import sha256_hex
from storage.errors import StorageError
from storage.file_checks import check_files, check_header
from storage.files import missing_is_torn
from storage.objects import ObjectWriter, open_loose
from storage.packs import Compaction
from storage.samples import StoredRows
from storage.specs import StateSpec
from storage.store import Store, add_spec, init_store

# Narrow, so that most of the time goes into what is hostile.
EXACT = replace(SPEC, hidden_size=8, layers=(2, "final"))
LOSSY = replace(EXACT, storage_dtype="float8_e4m3fn")
SPECS = (EXACT, LOSSY)
DIGESTS = {spec.storage_dtype: spec.digest() for spec in SPECS}
LENGTHS = (3, 300)
SHARD_BYTES = 256 * EXACT.bytes_per_token
# Of so many inputs one is checked as a whole, too.
CHECK_EACH = 31


class StoreTarget(FolderTarget):
    """A store, read as a user and as `aerie validate` does."""

    errors = (StorageError,)
    is_packed = False

    def fill(self, root: Path) -> None:
        """Make a store of two specs."""
        init_store(root)
        for spec in SPECS:
            add_spec(root, spec)
            for length in LENGTHS:
                states = np.random.default_rng(length).normal(size=(length, spec.num_captured, spec.hidden_size))
                bits = states.astype(np.float32).view(np.uint32) >> 16
                ObjectWriter(root, spec).write(np.arange(length, dtype=np.int32), bits.astype(np.uint16))
            if self.is_packed:
                Compaction(root, spec, SHARD_BYTES).pack_loose()

    def read(self, made: Change) -> None:
        """Read what has changed, and now and then check it as `aerie validate` does."""
        self._changed = list(made)
        self._is_checked = not made or sum(len(data or b"") for data in made.values()) % CHECK_EACH == 0
        super().read(made)

    def read_folder(self, root: Path) -> None:
        """Read the groups that have changed; now and then all of their spec as a user does."""
        for spec in SPECS:
            digest = DIGESTS[spec.storage_dtype]
            if self._is_checked and (not self._changed or digest in self._changed):
                read_states(root, digest)
            for place in {Path(name).parents[-4 if self.is_packed else -5] for name in self._changed if digest in name}:
                with missing_is_torn(f"{place}"):
                    self.read_group(root / place, spec)

    def read_group(self, place: Path, spec: StateSpec) -> None:
        """Read one group."""
        raise NotImplementedError

    def groups(self, spec: StateSpec) -> list[str]:
        """Return the paths of the groups of a spec."""
        start = f"{'packs' if self.is_packed else 'objects'}/{DIGESTS[spec.storage_dtype]}"
        end = "/hidden_states/zarr.json"
        return [name.removesuffix(end) for name in self.files if name.startswith(start) and name.endswith(end)]

    def change_document(self, name: str, dice: Random) -> Change:
        """Change the zarr.json of a group or array."""
        return {name: mutate_document(json.loads(self.files[name]), dice)}


def read_rows(rows: StoredRows) -> None:
    """Read all that is stored of a sample; ids and states may fail for themselves."""
    try:
        rows.input_ids()
    finally:
        rows.hidden_states(range(rows.states.spec.num_captured), 0, rows.num_tokens)


def read_states(root: Path, digest: str) -> None:
    """Read all that a store has under a spec, and check it; each sample may fail for itself."""
    failed: list[StorageError] = []
    check_header(root)
    check_store(root, digest, threads=1)
    store = open_store(root, digest)
    acts: list[Callable[[], Any]] = [store.num_tokens, store.rounding_error, store.stored_bytes]
    for name in list(store)[:4]:
        acts += [
            partial(_read_sample, store, name),
            partial(store.read_hidden_states, [name], rows=slice(0, 3), threads=1),
        ]
    for act in acts:
        try:
            act()
        except StorageError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _read_sample(store: Store, name: str) -> None:
    read_rows(store[name].stored_rows)
    store[name].hidden_states()


class StoreMetadata(StoreTarget):
    """The header, and the specs with the states of other ones under them."""

    def make(self, dice: Random) -> Change:
        """Change the header, or a spec."""
        if dice.randrange(4) == 0:
            return {"aerie.json": mutate_document(json.loads(self.files["aerie.json"]), dice)}
        spec = dice.choice(SPECS)
        document: Any = spec.to_json()
        for _ in range(1 << dice.randrange(3)):
            document = change_value(document, dice)
        text = _canonical_text(document)
        if dice.randrange(8) == 0:
            text = mutate_bytes(text, dice)
        digest = sha256_hex(text)
        change: Change = {f"specs/{digest}.json": text}
        group = self.groups(spec)[0]
        for name, data in self.files.items():
            if name.startswith(f"{group}/"):
                change[name.replace(spec.digest(), digest)] = data.replace(spec.digest().encode(), digest.encode())
        return change

    def read_folder(self, root: Path) -> None:
        """Read the specs that are new, too."""
        check_header(root)
        open_store(root, DIGESTS["bfloat16"])
        for file in sorted((root / "specs").glob("*.json")):
            if file.stem not in DIGESTS.values():
                for sample in open_store(root, file.stem).values():
                    read_rows(sample.stored_rows)
        if self._is_checked:
            check_files(root)


def _canonical_text(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


class LooseObject(StoreTarget):
    """The documents and the token ids of loose objects."""

    def read_group(self, place: Path, spec: StateSpec) -> None:
        """Read an object."""
        read_rows(open_loose(place, spec))

    def make(self, dice: Random) -> Change:
        """Change a document, or the ids, or take a file away."""
        group = dice.choice(self.groups(dice.choice(SPECS)))
        way = dice.randrange(8)
        if way == 0:
            ids = np.frombuffer(self.files[f"{group}/input_ids/c/0"][:-4], "<i4")
            return {f"{group}/input_ids/c/0": add_checksum(mutate_array(ids, dice).tobytes())}
        if way == 1:
            return {dice.choice([name for name in self.files if name.startswith(group)]): None}
        if way == 2:
            return self._change_lengths(group, dice)
        document = dice.choice(("zarr.json", "zarr.json", "hidden_states/zarr.json", "input_ids/zarr.json"))
        return self.change_document(f"{group}/{document}", dice)

    def _change_lengths(self, group: str, dice: Random) -> Change:
        """Have all documents of an object agree on another number of tokens."""
        length, change = make_value(dice), {}
        for name in ("zarr.json", "hidden_states/zarr.json", "input_ids/zarr.json"):
            document = json.loads(self.files[f"{group}/{name}"])
            if name == "zarr.json":
                document["attributes"]["num_tokens"] = length
            else:
                document["shape"][0] = length
                document["chunk_grid"]["configuration"]["chunk_shape"][0] = length
            change[f"{group}/{name}"] = json.dumps(document).encode()
        return change


def change_column(files: dict[str, bytes], place: str, dtype: str, dice: Random) -> Change:
    """Change the values of a column of one chunk, and all that depends on their number."""
    document = json.loads(files[f"{place}/zarr.json"])
    key = f"{place}/c/0" + "/0" * (len(document["shape"]) - 1)
    values = np.frombuffer(files[key][:-4], dtype).reshape(-1, *document["shape"][1:])
    values = mutate_array(values, dice)
    document["shape"][0] = len(values)
    document["chunk_grid"]["configuration"]["chunk_shape"][0] = max(1, len(values))
    return {key: add_checksum(values.tobytes()), f"{place}/zarr.json": json.dumps(document).encode()}
