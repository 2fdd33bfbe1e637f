"""Compact: copy loose objects into packs and small packs into larger ones, encoded as they are."""

from collections.abc import Callable, Collection

from prefect import task

from storage.packs import PackInfo
from storage.packs import compact as compact_objects
from storage.paths import StorePath
from tasks.policy import RETRY_WHAT_MAY_PASS, STORE_IS_THE_CACHE


def compact_samples(
    store: StorePath,
    spec_digest: str,
    *,
    only: Collection[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_merge: Callable[[int, int], None] | None = None,
) -> PackInfo | None:
    """Move the loose objects of one spec into packs, and many small packs into one; None when there was nothing to do.

    Args:
        store: the store.
        spec_digest: which states.
        only: these loose objects alone, and no packs.
        on_progress: called with the loose samples done and in all.
        on_merge: the same for the samples of packs that are merged.
    """
    return compact_objects(store, spec_digest, only=only, on_progress=on_progress, on_merge=on_merge)


compact = task(name="compact", **RETRY_WHAT_MAY_PASS, **STORE_IS_THE_CACHE)(compact_samples)
