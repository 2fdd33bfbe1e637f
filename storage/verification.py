"""Checks of the stored bytes of one sample that need no decoding."""

from storage.codecs import join_checksum, strip_checksum
from storage.digests import sample_hash
from storage.errors import ChecksumError, HashMismatchError
from storage.samples import StoredRows


def verify_ids(rows: StoredRows, name: str) -> None:
    """Check that the stored token ids have the sample hash under which they are stored.

    Raises:
        FileNotFoundError, CorruptObjectError: they are missing, damaged or others.
    """
    found = sample_hash(rows.input_ids())
    if found != name:
        raise HashMismatchError(f"token ids stored under {name} have sample hash {found}; use aerie validate --repair")


def verify_chunks(rows: StoredRows) -> int:
    """Check the crc32c of each encoded inner chunk, and that over all of these; give the chunks' bytes.

    Raises:
        FileNotFoundError, CorruptObjectError: a chunk is missing or damaged.
    """
    num_bytes = checksum = 0
    for chunk in rows.encoded():
        strip_checksum(chunk.data, f"chunk {chunk.chunk}, slot {chunk.slot}")
        num_bytes += len(chunk.data)
        checksum = join_checksum(chunk.data, checksum)
    verify_checksum(checksum, rows.checksum)
    return num_bytes


def verify_checksum(found: int, recorded: int) -> None:
    """Check that inner chunks, over whose checksums in C order the crc32c `found` is, are those that were recorded.

    Raises:
        ChecksumError: they are others, such as those of another sample.
    """
    if found != recorded:
        raise ChecksumError(
            f"the checksums of its chunks have crc32c {found:08x}, recorded is {recorded:08x}; "
            "use aerie validate --repair"
        )
