"""Freeing what nobody needs."""

from collections.abc import Callable

from storage.copies import drop_copies
from storage.files import has_group, names, remove_folders
from storage.garbage import Garbage, find_garbage
from storage.hashes import names_of
from storage.layout import object_path, packs_folder
from storage.packs import SHARD_BYTES, Compaction
from storage.paths import StorePath
from storage.references import References
from storage.store import read_spec


def collect_garbage(
    store: StorePath,
    older_than_seconds: float | None = None,
    *,
    is_dry: bool = True,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Callable[[int, int], None] | None = None,
) -> Garbage:
    """Find what nobody needs, and free it unless `is_dry`.

    May run beside writers, readers, compactions and others of its kind. A run that begins meanwhile with data that
    names old samples keeps them, if its tokens artifact is there before the old packs go; else the next run makes
    them anew.

    Args:
        store: the store's folder.
        older_than_seconds: take also staging of other hosts in which nothing has changed for so long.
        is_dry: only look.
        shard_bytes: raw bytes of a shard of the packs that are written.
        on_progress: called with the number of samples copied and in all, for each group of packs.

    Returns:
        What was found. A pack with a damaged sample stays as it is.

    Raises:
        StoreFullError, StoreReadOnlyError: the store cannot be written.
        CorruptObjectError: a spec, a pack's index or a tokens artifact is damaged.
    """
    references = References(store)
    garbage = find_garbage(store, references, older_than_seconds)
    if is_dry:
        return garbage
    remove_folders(store, garbage.folders)
    for digest, loose in garbage.loose.items():
        # Asked again: a run may have begun since.
        unreferenced = names_of(loose[references.lack(loose)])
        remove_folders(store, [object_path(store, digest, name) for name in unreferenced])
        drop_copies(store, read_spec(store, digest))
    for digest, groups in garbage.rewrites.items():
        compaction = Compaction(store, read_spec(store, digest), shard_bytes)
        for group in groups:
            left = [pack for pack in group if has_group(pack.folder)]
            gone = compaction.merge(left, references.lack, on_progress)
            garbage.stayed += sorted({pack.pack_id for pack in left} - set(gone))
    remove_folders(store, _removals_without_pack(store))
    return garbage


def _removals_without_pack(store: StorePath) -> list[StorePath]:
    removals = store / "removed"
    found = [(spec, pack_id) for spec in names(removals) for pack_id in names(removals / spec)]
    return [removals / spec / pack_id for spec, pack_id in found if not has_group(packs_folder(store, spec) / pack_id)]
