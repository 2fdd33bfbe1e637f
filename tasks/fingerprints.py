"""The identity of a model: a digest of its content, never of its path."""

import json
from pathlib import Path
from typing import Any

from storage.digests import canonical_json, file_digest, sha256_hex
from tasks.engine.models import weight_files

# Written by the library that saved the model; they change no number of a forward.
_IRRELEVANT = frozenset({"transformers_version", "_name_or_path", "name_or_path"})


def model_fingerprint(model: Path) -> str:
    """Return the sha256 over the names and contents of the weights, the config and any code in the model folder.

    Digests of large files are cached by path, size, inode and times (see `storage.digests.file_digest`).
    """
    code = sorted(model.glob("*.py"))
    contents = {file.name: file_digest(file) for file in [*weight_files(model), *code]}
    return sha256_hex(canonical_json({"config": _config(model), "files": contents}))


def _config(model: Path) -> dict[str, Any]:
    config = json.loads((model / "config.json").read_bytes())
    return {key: value for key, value in config.items() if key not in _IRRELEVANT}
