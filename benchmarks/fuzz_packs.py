"""Packs, shards and chunks of somebody else's store; checksums are those of what was changed."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from fuzz_base import Change, Target
from fuzz_stores import SPECS, StoreTarget, change_column, read_rows
from mutations import mutate_array, mutate_bytes

from storage.codecs import add_checksum, decode_chunk, encode_chunk
from storage.errors import StorageError
from storage.pack_index import Pack, pack_id_of
from storage.specs import StateSpec
from storage.state_arrays import StateArray
from storage.verification import verify_chunks


class PackIndex(StoreTarget):
    """The index of a pack."""

    is_packed = True
    _columns: ClassVar[dict[str, str]] = {
        "sample_hash": "u1",
        "row_start": "<i8",
        "num_tokens": "<i8",
        "checksum": "<u4",
        "rounding_error": "<f4",
    }

    def read_group(self, place: Path, spec: StateSpec) -> None:
        """Read all samples of a pack."""
        pack = Pack(place, spec, place.name)
        pack.encoded_bytes()
        for position in range(len(pack)):
            read_rows(pack.rows(position))

    def make(self, dice: Random) -> Change:
        """Change a document, or columns and all that depends on their length; or take a file away."""
        spec = dice.choice(SPECS)
        group = dice.choice(self.groups(spec))
        way = dice.randrange(8)
        if way == 0:
            return {dice.choice([name for name in self.files if name.startswith(group)]): None}
        if way < 4:
            return self.change_document(dice.choice(self._documents(group)), dice)
        change: Change = {}
        for _ in range(dice.randrange(1, 3)):
            change |= self._change_any(group, dice)
        if dice.randrange(3) == 0:
            change |= self.change_document(f"{group}/zarr.json", dice)
        return self._renamed(spec, group, change) if f"{group}/sample_hash/c/0/0" in change else change

    def _documents(self, group: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{group}/") and name.endswith("zarr.json")]

    def _names(self, group: str) -> list[str]:
        return [name for name in self._columns if f"{group}/{name}/zarr.json" in self.files]

    def _change_any(self, group: str, dice: Random) -> Change:
        name = dice.choice(self._names(group))
        return change_column(self.files, f"{group}/{name}", self._columns[name], dice)

    def _renamed(self, spec: StateSpec, group: str, change: Change) -> Change:
        """Give the pack the name that its hashes make, beside the one that is there."""
        hashes = np.frombuffer((change[f"{group}/sample_hash/c/0/0"] or b"")[:-4], "u1")
        old = group.rpartition("/")[2]
        new = pack_id_of(spec.digest(), hashes.reshape(-1, 32))
        mine = {name: data for name, data in self.files.items() if name.startswith(f"{group}/")} | change
        moved = {name.replace(old, new): _renamed_in(data, old, new) for name, data in mine.items()}
        return moved if new == old else dict.fromkeys(mine) | moved


def _renamed_in(data: bytes | None, old: str, new: str) -> bytes | None:
    return None if data is None else data.replace(old.encode(), new.encode())


class ShardIndexes(StoreTarget):
    """The indexes of shards, loose and packed, and what they point to."""

    is_packed = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._packs: dict[Path, Pack] = {}

    def read_group(self, place: Path, spec: StateSpec) -> None:
        """Read, check and copy the samples of a pack, by an index that was read before the shards were changed."""
        pack = self._packs.setdefault(place, Pack(place, spec, place.name))
        for position in range(len(pack)):
            rows = replace(pack.rows(position), states=StateArray(place / "hidden_states", spec, pack.shard_rows))
            list(rows.states.runs(rows.chunks))
            try:
                verify_chunks(rows)
            finally:
                read_rows(rows)

    def make(self, dice: Random) -> Change:
        """Change entries of an index; now and then the bytes before it, too."""
        name = dice.choice([name for name in self.files if "/hidden_states/c/" in name])
        data = self.files[name]
        num_bytes = self._index_bytes(name)
        body, index = data[:-num_bytes], np.frombuffer(data[-num_bytes:-4], "<u8")
        if dice.randrange(4) == 0:
            body = mutate_bytes(body, dice)
        return {name: body + add_checksum(mutate_array(index, dice).tobytes())}

    def _index_bytes(self, name: str) -> int:
        document = json.loads(self.files[name.partition("/c/")[0] + "/zarr.json"])
        shard_rows, num_layers, _ = document["chunk_grid"]["configuration"]["chunk_shape"]
        return shard_rows // 256 * num_layers * 16 + 4


class ChunkStream(Target):
    """The Blosc stream of an inner chunk, whose checksum fits."""

    errors = (StorageError,)
    _width = 48

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        dice = np.random.default_rng(0)
        self._chunks: list[tuple[npt.DTypeLike, bytes]] = []
        for dtype in ("<u2", "<f4", "u1", "<f2"):
            for rows in (
                dice.integers(0, 99, (256, self._width)),
                np.ones((3, self._width)),
                np.zeros((256, self._width)),
            ):
                values = np.ascontiguousarray(rows.astype(dtype))
                chunks = {encode_chunk(values), encode_chunk(values, has_repeats=True), _by_blosc(values)}
                self._chunks += [(dtype, chunk[:-4]) for chunk in sorted(chunks)]

    def valid(self) -> list[tuple[npt.DTypeLike, bytes, int]]:
        """Return chunks of each dtype."""
        return [(dtype, data, 256) for dtype, data in self._chunks]

    def make(self, dice: Random) -> tuple[npt.DTypeLike, bytes, int]:
        """Damage a stream; have its header tell its true length mostly, since it is refused otherwise."""
        dtype, data = dice.choice(self._chunks)
        start = 0 if dice.randrange(2) else 16
        data = data[:start] + mutate_bytes(data[start:], dice)
        if len(data) >= 16 and dice.randrange(8):
            size = 256 * self._width * np.dtype(dtype).itemsize
            data = data[:4] + size.to_bytes(4, "little") + data[8:12] + len(data).to_bytes(4, "little") + data[16:]
        return dtype, data, dice.choice((256, 256, 1, 100))

    def read(self, made: tuple[npt.DTypeLike, bytes, int]) -> None:
        """Decode, all or some rows, into memory of ours."""
        dtype, data, num_rows = made
        encoded = memoryview(bytearray(add_checksum(data)))
        decode_chunk(encoded, np.dtype(dtype), self._width, "chunk", None, num_rows)


def _by_blosc(values: npt.NDArray[Any]) -> bytes:
    from storage.codecs import BLOSC  # noqa: PLC0415

    whole = np.zeros((256, values.shape[1]), values.dtype)
    whole[: len(values)] = values
    return add_checksum(bytes(BLOSC.encode(whole)))
