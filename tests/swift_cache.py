"""A cache in the memory of Swift's proxy instead of memcached: without one it asks for its containers each time."""

import time
from collections.abc import Callable
from typing import Any


class Cache:
    """What Swift calls of `swift.common.memcached.MemcacheRing`."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Any, float]] = {}

    def get(self, key: str, **_: Any) -> Any:
        value, until = self._values.get(key, (None, 0.0))
        return value if until > time.monotonic() else None

    def set(self, key: str, value: Any, **options: Any) -> None:
        self._values[key] = value, time.monotonic() + (options.get("time") or 60)

    def delete(self, key: str, **_: Any) -> None:
        self._values.pop(key, None)

    def incr(self, key: str, delta: int = 1, **options: Any) -> int:
        total = max(0, (self.get(key) or 0) + delta)
        self.set(key, total, **options)
        return total

    def decr(self, key: str, delta: int = 1, **options: Any) -> int:
        return self.incr(key, -delta, **options)


def filter_factory(_global: Any, **_: Any) -> Callable[..., Any]:
    """Make the filter, as PasteDeploy asks for it."""
    cache = Cache()

    def wrap(application: Callable[..., Any]) -> Callable[..., Any]:
        def call(environment: dict[str, Any], start_response: Callable[..., Any]) -> Any:
            environment["swift.cache"] = cache
            return application(environment, start_response)

        return call

    return wrap
