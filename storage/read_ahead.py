"""Results in order, made ahead of their consumer on threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")

# A thread has as many jobs before it as it is in, so that it need not wait for the consumer.
JOBS_PER_THREAD = 2


def make_ahead(make: Callable[[J], R], jobs: Iterable[J], threads: int) -> Iterator[R]:
    """Yield `make(job)` of each job, in their order; of a consumer that leaves early, no further job is begun.

    Raises:
        Whatever `make` raises, at the place of that job.
    """
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[R]] = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(make, job))
            if len(waiting) >= threads * JOBS_PER_THREAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
