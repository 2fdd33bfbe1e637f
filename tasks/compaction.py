"""Compact: copy loose objects, encoded as they are, into a pack."""

from collections.abc import Callable
from pathlib import Path

from prefect import task

from storage.packs import PackInfo
from storage.packs import compact as compact_objects
from tasks.policy import STORE_IS_THE_CACHE


def compact_samples(
    store: Path, spec_digest: str, *, on_progress: Callable[[int, int], None] | None = None
) -> PackInfo | None:
    """Move the loose objects of one spec into a pack; None when there are none."""
    return compact_objects(store, spec_digest, on_progress=on_progress)


compact = task(name="compact", **STORE_IS_THE_CACHE)(compact_samples)
