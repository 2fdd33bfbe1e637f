"""Collect: free what a store holds that nobody needs."""

from collections.abc import Callable

from prefect import task

from storage.collection import collect_garbage
from storage.garbage import Garbage
from storage.paths import StorePath
from tasks.policy import RETRY_WHAT_MAY_PASS, STORE_IS_THE_CACHE


def collect_store_garbage(
    store: StorePath,
    *,
    older_than_seconds: float | None = None,
    is_dry: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Garbage:
    """Find, and unless `is_dry` free, what no tokens artifact names, what repair set aside, and what the dead left.

    Args:
        store: the store.
        older_than_seconds: take also staging of other hosts in which nothing has changed for so long.
        is_dry: only look.
        on_progress: called with the samples copied and in all, for each group of packs that is written anew.
    """
    return collect_garbage(store, older_than_seconds, is_dry=is_dry, on_progress=on_progress)


collect = task(name="collect-garbage", **RETRY_WHAT_MAY_PASS, **STORE_IS_THE_CACHE)(collect_store_garbage)
