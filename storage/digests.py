"""Names derived from content: canonical JSON, sha256, sample hashes and digests of files."""

import hashlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import SpecError

SAMPLE_DOMAIN = b"aerie.sample.v1\0"
DIGEST_LENGTH = 64
# A file changed again within one tick of the kernel's clock keeps its ctime; ticks are 1 to 10 ms.
CLOCK_TICK_NS = 100_000_000


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of `value`: sorted keys, no spaces, ASCII, no NaN or Infinity.

    Raises:
        SpecError: `value` has no such text.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{value!r} has no canonical JSON: {error}; use finite numbers, strings, lists, dicts"
        ) from error
    return text.encode("ascii")


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of `data`, 64 lowercase hex digits."""
    return hashlib.sha256(data).hexdigest()


def sample_hash(input_ids: npt.NDArray[np.int32]) -> str:
    """Return the identity of a sample: sha256 over a domain tag and its token ids.

    Args:
        input_ids: int32[num_tokens]; hashed as little-endian. Nothing else enters: neither position nor loss mask.
    """
    if input_ids.dtype != np.int32:
        raise SpecError(
            f"input_ids are {input_ids.dtype}, sample_hash takes int32; cast them after checking their range"
        )
    return sha256_hex(SAMPLE_DOMAIN + input_ids.astype("<i4", copy=False).tobytes())


def is_digest(text: str) -> bool:
    """Say whether `text` is 64 lowercase hex digits."""
    return len(text) == DIGEST_LENGTH and not set(text) - set("0123456789abcdef")


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's content, streamed, and remembered until the file changes.

    The memory is `$XDG_CACHE_HOME/aerie/digests`, keyed by resolved path, device, inode, size, mtime and ctime.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        entry = _cache_entry(path, before)
        remembered = _recall(entry)
        if remembered is not None:
            return remembered
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
    settled = time.time_ns() - before.st_ctime_ns > CLOCK_TICK_NS
    if settled and _cache_entry(path, after) == entry:
        _remember(entry, digest)
    return digest


def _cache_entry(path: Path, stat: os.stat_result) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = [str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    return root / "aerie" / "digests" / sha256_hex(canonical_json(key))


def _recall(entry: Path) -> str | None:
    # The cache only saves time: whatever is wrong with it, the digest is computed again.
    try:
        text = entry.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return text if is_digest(text) else None


def _remember(entry: Path, digest: str) -> None:
    temporary = entry.with_name(f"{entry.name}.{uuid.uuid4().hex}")
    # Same reason: a full or read-only cache must not stop the caller, who has the digest.
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(digest, "ascii")
        temporary.replace(entry)
    except OSError:
        return
