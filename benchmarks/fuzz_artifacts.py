"""Tokens artifacts and draft vocabularies of somebody else's store, under the names that their specs make."""

import json
from pathlib import Path
from random import Random

import numpy as np
from fuzz_base import Change, FolderTarget
from fuzz_stores import change_column
from mutations import change_value, mutate_bytes, mutate_document
from small_samples import TOKENS_SPEC, make_sample

from storage import open_tokens
from storage.digests import canonical_json, sha256_hex
from storage.draft_vocabularies import (
    DraftVocabulary,
    DraftVocabularySpec,
    read_draft_vocabularies,
    write_draft_vocabulary,
)
from storage.errors import StorageError
from storage.file_checks import check_files
from storage.store import init_store
from storage.tokens import TokensWriter


class TokensArtifact(FolderTarget):
    """A tokens artifact, under the name that its spec makes."""

    errors = (StorageError,)
    _types = {  # noqa: RUF012
        "input_ids": "<i4",
        "loss_mask": "u1",
        "offsets": "<i8",
        "sample_hash": "u1",
        "row": "<i8",
        "truncated": "u1",
        "loss_weight": "<f4",
    }

    def fill(self, root: Path) -> None:
        """Write an artifact with weights."""
        init_store(root)
        with TokensWriter(root, TOKENS_SPEC) as writer:
            for row, number in enumerate((0, 1, 2, 0)):
                ids = make_sample(number)[0]
                ones = np.ones(len(ids), np.uint8)
                writer.append(ids, ones, row, loss_weight=ones.astype(np.float32))
            writer.reject("chats.jsonl", 3, 99, "empty", "no assistant turn")
            writer.commit()
        self.group = f"tokens/{TOKENS_SPEC.digest()}"

    def make(self, dice: Random) -> Change:
        """Change the document, a column or the rejects."""
        way = dice.randrange(8)
        if way < 3:
            return self._change_document(dice)
        if way == 3:
            name = f"{self.group}/rejects.jsonl"
            return {name: mutate_bytes(self.files[name], dice)}
        if way == 4:
            name = dice.choice([name for name in self.files if name.startswith(self.group)])
            return {name: None}
        name = dice.choice(list(self._types))
        if way == 5:
            document = f"{self.group}/{name}/zarr.json"
            return {document: mutate_document(json.loads(self.files[document]), dice)}
        return change_column(self.files, f"{self.group}/{name}", self._types[name], dice)

    def _change_document(self, dice: Random) -> Change:
        name = f"{self.group}/zarr.json"
        text = mutate_document(json.loads(self.files[name]), dice)
        try:
            digest = sha256_hex(canonical_json(json.loads(text)["attributes"]["tokens_spec"]))
        except (ValueError, KeyError, TypeError, RecursionError, StorageError):
            return {name: text}
        group = f"tokens/{digest}"
        if group == self.group:
            return {name: text}
        mine = {name: data for name, data in self.files.items() if name.startswith(self.group)} | {name: text}
        return dict.fromkeys(mine) | {name.replace(self.group, group): data for name, data in mine.items()}

    def read_folder(self, root: Path) -> None:
        """Open every artifact, read it as a trainer does, and check it."""
        check_files(root)
        for folder in sorted((root / "tokens").iterdir()):
            tokens = open_tokens(root, folder.name)
            if tokens is None:
                continue
            list(tokens.rejects())
            tokens.spec.get("tokenizer")
            for i in range(min(len(tokens), 4)):
                tokens.input_ids(i), tokens.loss_mask(i), tokens.loss_weight(i)
            tokens.ids_of(0, len(tokens))


class DraftVocabularyGroup(FolderTarget):
    """A draft vocabulary."""

    errors = (StorageError,)

    def fill(self, root: Path) -> None:
        """Write one."""
        init_store(root)
        spec = DraftVocabularySpec("d" * 64, "t" * 64, 64, 8)
        target = np.arange(0, 64, 8)
        t2d = np.zeros(64, bool)
        t2d[target] = True
        write_draft_vocabulary(root, spec, DraftVocabulary(target - np.arange(8), t2d, 0.5))
        self.group = f"draft_vocabularies/{spec.digest()}"

    def make(self, dice: Random) -> Change:
        """Change a document, with its digest, or a column."""
        way = dice.randrange(4)
        if way == 0:
            name, dtype = dice.choice((("d2t", "<i8"), ("t2d", "u1")))
            return change_column(self.files, f"{self.group}/{name}", dtype, dice)
        if way == 1:
            name = dice.choice([name for name in self.files if name.startswith(self.group)])
            return {name: mutate_document(json.loads(self.files[name]), dice) if name.endswith("json") else None}
        name = f"{self.group}/zarr.json"
        document = json.loads(self.files[name])
        document["attributes"] = change_value(document["attributes"], dice)
        text = json.dumps(document).encode()
        try:
            digest = sha256_hex(canonical_json(document["attributes"]["spec"]))
        except (KeyError, TypeError, StorageError):
            return {name: text}
        group = f"draft_vocabularies/{digest}"
        mine = {name: data for name, data in self.files.items() if name.startswith(self.group)} | {name: text}
        return dict.fromkeys(mine) | {name.replace(self.group, group): data for name, data in mine.items()}

    def read_folder(self, root: Path) -> None:
        """Read all that are of the tokens artifact."""
        list(read_draft_vocabularies(root, "d" * 64))
