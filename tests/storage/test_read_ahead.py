"""Results come in order, ahead of their consumer, and no further than they should."""

import threading

import pytest

from storage.read_ahead import JOBS_PER_THREAD, make_ahead


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_results_are_in_the_order_of_the_jobs(threads: int, count: int) -> None:
    assert list(make_ahead(lambda job: job * job, range(count), threads)) == [job * job for job in range(count)]


def test_an_error_comes_at_its_place() -> None:
    results = make_ahead(lambda job: 1 // (job - 2), range(9), 2)
    assert [next(results), next(results)] == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_jobs_run_ahead_at_once_and_those_of_a_consumer_that_leaves_are_not_begun() -> None:
    together = threading.Barrier(2, timeout=60)  # two jobs that wait for each other
    begun = []

    def make(job: int) -> int:
        begun.append(job)
        if job < 2:
            together.wait()
        return job

    results = make_ahead(make, range(100), 2)
    assert next(results) == 0
    results.close()
    assert max(begun) < 2 * JOBS_PER_THREAD
