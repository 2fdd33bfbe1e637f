"""Files of trainers that are imported, and the manifest of an export that is gone on with."""

import gzip
import io
import json
from pathlib import Path
from random import Random
from zipfile import ZipFile

import numpy as np
import torch
from fuzz_base import Change, FileTarget, FolderTarget
from mutations import mutate_bytes, mutate_document
from safetensors.torch import save

from storage.digests import DIGEST_LENGTH
from tasks.errors import ExportError, ImportFilesError
from tasks.trainer_files.manifest import HEADER, ROWS, Entry, Manifest
from tasks.trainer_files.sources import SOURCES, read_file

_WIDTH = 8


def _tensors() -> dict[str, torch.Tensor]:
    states = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 3 * _WIDTH)).astype(np.float32))
    return {
        "input_ids": torch.arange(5),
        "loss_mask": torch.ones(5, dtype=torch.int64),
        "aux_hidden_state": states.to(torch.bfloat16)[None],
        "hidden_state": states[:, :_WIDTH].to(torch.bfloat16)[None],
    }


class ImportedFile(FileTarget):
    """A file of a trainer."""

    errors = (ImportFilesError,)
    source: str

    def read_file(self, path: Path) -> None:
        """Read ids, mask and states."""
        file = read_file(SOURCES[self.source], path, _WIDTH)
        file.states()
        _ = file.num_layers, file.dtype


class SpecForgeFile(ImportedFile):
    """What `torch.save` wrote, gzipped or not."""

    name = "data_0.ckpt"
    source = "specforge"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._files = []
        for is_zip in (True, False):
            sink = io.BytesIO()
            torch.save(_tensors(), sink, _use_new_zipfile_serialization=is_zip)
            self._files.append(sink.getvalue())

    def valid(self) -> list[bytes]:
        """Return a zip; the older form is read from gzip alone."""
        return [self._files[0], *(gzip.compress(data, mtime=0) for data in self._files)]

    def make(self, dice: Random) -> bytes:
        """Damage a file, or what is gzipped."""
        way = dice.randrange(4)
        if way == 0:
            return mutate_bytes(gzip.compress(dice.choice(self._files), mtime=0), dice)
        whole = dice.choice(self._files)
        is_deep = whole is self._files[0] and dice.randrange(4) > 0
        data = _with_other_pickle(whole, dice) if is_deep else mutate_bytes(whole, dice)
        return data if way < 3 else gzip.compress(data, mtime=0)

    def read(self, made: bytes) -> None:
        """Give what is gzipped its suffix."""
        path = self.path.with_name(self.name + ".gz") if made.startswith(b"\x1f\x8b") else self.path
        path.write_bytes(made)
        self.read_file(path)


def _with_other_pickle(data: bytes, dice: Random) -> bytes:
    """Damage what a zip of torch is unpickled from, and have its checksum fit."""
    sink = io.BytesIO()
    with ZipFile(io.BytesIO(data)) as source, ZipFile(sink, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            target.writestr(entry, mutate_bytes(content, dice) if entry.filename.endswith("data.pkl") else content)
    return sink.getvalue()


class SafetensorsFile(ImportedFile):
    """What safetensors wrote."""

    name = "hs_0.safetensors"
    source = "safetensors"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        states = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 3, _WIDTH)).astype(np.float32))
        self._tensors = {
            "input_ids": torch.arange(5),
            "loss_mask": torch.ones(5, dtype=torch.int64),
            "hidden_states": states,
        }

    def valid(self) -> list[bytes]:
        """Return one file."""
        return [save(self._tensors)]

    def make(self, dice: Random) -> bytes:
        """Damage a file, or change values of its header."""
        data = save(self._tensors, {"layers": "[1, 2, 3]"})
        if dice.randrange(2):
            return mutate_bytes(data, dice)
        length = int.from_bytes(data[:8], "little")
        header = mutate_document(json.loads(data[8 : 8 + length]), dice)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]


class ExportManifest(FolderTarget):
    """The manifest of a folder of exported files."""

    errors = (ExportError,)
    _identity = {"format": "specforge", "spec_digest": "a" * 64}  # noqa: RUF012

    def fill(self, root: Path) -> None:
        """Write one of two files."""
        with Manifest(root, self._identity, {"store": "states"}) as manifest:
            manifest.begin()
            for kept in (0, 1):
                manifest.add(Entry(kept, kept, "b" * 64, f"rows_0-2/data_{kept}.ckpt", 10, 5, 7))
            manifest.complete()

    def make(self, dice: Random) -> Change:
        """Change the header, or lines."""
        if dice.randrange(2):
            return {HEADER: mutate_document(json.loads(self.files[HEADER]), dice)}
        lines = self.files[ROWS].splitlines()
        lines[dice.randrange(len(lines))] = mutate_document(json.loads(lines[0]), dice).replace(b"\n", b"")
        data = b"\n".join(lines) + b"\n"
        return {ROWS: mutate_bytes(data, dice) if dice.randrange(2) else data}

    def read_folder(self, root: Path) -> None:
        """Open it as an export does that goes on, and look at what it says of files."""
        with Manifest(root, self._identity, {"store": "states"}) as manifest:
            for kept, entry in manifest.entries.items():
                if not (0 <= kept == entry.kept and len(entry.sample_hash) == DIGEST_LENGTH and entry.file):
                    raise AssertionError(entry)
