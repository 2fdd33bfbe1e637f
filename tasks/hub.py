"""Models in the local cache of the Hugging Face Hub, found and identified without a network.

Its layout is that of huggingface_hub: `models--org--name/snapshots/<revision>/` holds links into
`models--org--name/blobs/`, where a file kept by LFS is named by the sha256 of its content, any other by its git sha1.
"""

import re
from pathlib import Path

from storage.digests import is_digest
from tasks.engine.errors import ModelNotFoundError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{40}")


def find_model(model: Path) -> Path:
    """Return the folder of a model: `model` itself, or the snapshot in the cache if it is a Hub id such as `org/name`.

    Raises:
        ModelNotFoundError: it looks like a Hub id, and is neither a folder nor in the cache.
    """
    if model.exists() or not _HUB_ID.fullmatch(str(model)):
        return model
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415 - slow, and needed only here
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415 - same

    try:
        return Path(snapshot_download(str(model), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        raise ModelNotFoundError(
            f"model {model} does not exist: it is no folder, and not in the Hugging Face cache "
            f"{constants.HF_HUB_CACHE}; give a folder, or fetch it first: hf download {model}"
        ) from None


def find_revision(folder: Path) -> str | None:
    """Return the Hub revision (40 hex digits) of a snapshot folder in a cache, None of any other folder."""
    folder = folder.resolve()
    in_cache = folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")
    return folder.name if in_cache and _REVISION.fullmatch(folder.name) else None


def blob_digest(file: Path) -> str | None:
    """Return the sha256 that the cache names a snapshot's file by, None where there is no such name.

    The Hub's client gives that name to what it has downloaded whole; it is not computed again here.
    """
    if not file.is_symlink():
        return None
    repository = file.parent.resolve().parent.parent
    blob = file.resolve()
    in_layout = find_revision(file.parent) is not None and blob.parent == repository / "blobs" and blob.is_file()
    return blob.name if in_layout and is_digest(blob.name) else None
