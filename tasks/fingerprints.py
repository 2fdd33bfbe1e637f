"""The identity of a model: a digest of its content, never of its path."""

import json
from pathlib import Path
from typing import Any

from storage.digests import OnProgress, canonical_json, file_digests, sha256_hex
from tasks.engine.models import MODELOPT_CONFIG, weight_files
from tasks.hub import blob_digest

# Written by the library that saved the model; they change no number of a forward.
_IRRELEVANT = frozenset({"transformers_version", "_name_or_path", "name_or_path"})


def model_fingerprint(model: Path, on_progress: OnProgress | None = None) -> str:
    """Return the sha256 over the names and contents of the weights, the config and any code in the model folder.

    Weights in the cache of the Hub are named by their digest already. Those of other files are computed by several
    threads and remembered (see `storage.digests.file_digest`).

    Args:
        model: the model folder.
        on_progress: called with the bytes read and those to read, while files are read.
    """
    modelopt = model / MODELOPT_CONFIG
    files = [*weight_files(model), *sorted(model.glob("*.py")), *([modelopt] if modelopt.is_file() else [])]
    digests = {file: blob_digest(file) for file in files}
    unknown = [file for file in files if digests[file] is None]
    digests |= dict(zip(unknown, file_digests(unknown, on_progress), strict=True))
    contents = {file.name: digest for file, digest in digests.items()}
    return sha256_hex(canonical_json({"config": _config(model), "files": contents}))


def _config(model: Path) -> dict[str, Any]:
    config = json.loads((model / "config.json").read_bytes())
    return {key: value for key, value in config.items() if key not in _IRRELEVANT}
