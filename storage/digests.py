"""Names derived from content: canonical JSON, sha256, sample hashes and digests of files."""

import hashlib
import io
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import SpecError

SAMPLE_DOMAIN = b"aerie.sample.v1\0"
DIGEST_LENGTH = 64
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")
# A file changed again within one tick of the kernel's clock keeps its ctime; ticks are 1 to 10 ms.
CLOCK_TICK_NS = 100_000_000
HASH_CHUNK_BYTES = 1 << 20
# hashlib lets go of the GIL; more threads than this only make a disk seek.
MAX_HASH_THREADS = 16
PROGRESS_SECONDS = 1.0

OnBytes = Callable[[int], None]
OnProgress = Callable[[int, int], None]


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
    return _DIGEST.fullmatch(text) is not None


def file_digest(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Return the sha256 of a file's content, streamed, and remembered until the file changes.

    The memory is `$XDG_CACHE_HOME/aerie/digests`, keyed by resolved path, device, inode, size, mtime and ctime.

    Args:
        path: the file.
        on_bytes: called with the number of bytes just read.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        entry = _cache_entry(path, before)
        remembered = _recall(entry)
        if remembered is not None:
            return remembered
        digest = _read_digest(file, on_bytes)
        after = os.fstat(file.fileno())
    settled = time.time_ns() - before.st_ctime_ns > CLOCK_TICK_NS
    if settled and _cache_entry(path, after) == entry:
        _remember(entry, digest)
    return digest


def file_digests(paths: Sequence[Path], on_progress: OnProgress | None = None) -> list[str]:
    """Return the `file_digest` of each file, read by several threads.

    Args:
        paths: the files.
        on_progress: called about once a second with the bytes read and those to read in all; never when all digests
            are remembered.

    Raises:
        OSError: a file cannot be read.
    """
    stats = [path.stat() for path in paths]
    total = sum(
        stat.st_size for path, stat in zip(paths, stats, strict=True) if _recall(_cache_entry(path, stat)) is None
    )
    hashing = _Hashing(paths)
    with ThreadPoolExecutor(min(MAX_HASH_THREADS, os.cpu_count() or 1)) as pool:
        pending = futures = [pool.submit(hashing.digest, index) for index in range(len(paths))]
        try:
            while pending:
                finished, rest = wait(pending, timeout=PROGRESS_SECONDS, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                pending = list(rest)
                if on_progress is not None and total:
                    on_progress(min(hashing.done, total), total)
        except BaseException:  # Ctrl-C above all: nobody waits for hundreds of gigabytes
            hashing.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


class _Hashing:
    """Files being hashed by threads, each of which counts for itself."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._counts = [0] * len(paths)
        self.stopped = threading.Event()

    @property
    def done(self) -> int:
        """Bytes read so far."""
        return sum(self._counts)

    def digest(self, index: int) -> str:
        def count(num_bytes: int) -> None:
            self._counts[index] += num_bytes
            if self.stopped.is_set():
                raise CancelledError

        return file_digest(self._paths[index], count)


def _read_digest(file: io.BufferedReader, on_bytes: OnBytes | None) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(HASH_CHUNK_BYTES))
    while num_bytes := file.readinto(buffer):
        digest.update(buffer[:num_bytes])
        if on_bytes is not None:
            on_bytes(num_bytes)
    return digest.hexdigest()


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
