"""A cache of the Hugging Face Hub, laid out as its client leaves it."""

import hashlib
import os
from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"


def fill_cache(cache: Path, model: Path, name: str = "org/tiny") -> Path:
    """Put a model folder into a cache, by links; returns the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / REVISION
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    for file in model.iterdir():
        blob = repository / "blobs" / _blob_name(file)
        os.link(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def _blob_name(file: Path) -> str:
    content = file.read_bytes()
    if file.suffix == ".safetensors":  # kept by LFS
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
