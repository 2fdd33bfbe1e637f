"""The files of a store one by one, in a folder or in a bucket, for tests that look at them or spoil them."""

from pathlib import Path

from storage.bucket_listing import bucket_of
from storage.paths import ObjectPath, StorePath


def list_files(place: StorePath) -> dict[str, int]:
    """Return name below `place` and size of each file, ascending."""
    if isinstance(place, ObjectPath):
        pages = bucket_of(place.bucket).pages(place.key)
        found = {one.key.removeprefix(f"{place.key}/"): one.size for page in pages for one in page}
    else:
        files = (file for file in place.rglob("*") if file.is_file())
        found = {str(file.relative_to(place)): file.stat().st_size for file in files}
    return dict(sorted(found.items()))


def read_file(path: StorePath) -> bytes:
    return path.read_bytes() if isinstance(path, Path) else bytes(bucket_of(path.bucket).get(path.key))


def write_file(path: StorePath, data: bytes) -> None:
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    else:
        bucket_of(path.bucket).put(path.key, data)


def remove_file(path: StorePath) -> None:
    if isinstance(path, Path):
        path.unlink()
    else:
        bucket_of(path.bucket).delete([path.key])


def damage_file(path: StorePath, at: int) -> None:
    """Flip a bit of byte `at`."""
    data = bytearray(read_file(path))
    data[at] ^= 0x10
    write_file(path, bytes(data))
