"""The states of many samples, decoded on threads into one block of memory."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy.typing as npt

from storage.codecs import TOKENS_PER_CHUNK
from storage.errors import SampleShapeError
from storage.files import default_threads
from storage.samples import Sample
from storage.scratch import Scratch, allocate
from storage.specs import LayerId, StateSpec

# A longer sample is shared among threads.
PART_ROWS = 2 * TOKENS_PER_CHUNK
# Several for each thread, so that all end together, and more while they are large; few of small samples, since to hand
# one over costs more than to read it.
SHARES_PER_THREAD = range(8, 33)
SHARE_BYTES = 4 << 20
MAX_THREADS = 16


class _Scratches(threading.local):
    """One scratch a thread, for all of its shares."""

    def __init__(self) -> None:
        self.mine = Scratch()


class _Part(NamedTuple):
    """Rows of one sample from `start`, and where they go: [layers, rows, hidden_size]."""

    sample: Sample
    start: int
    out: npt.NDArray[Any]


def read_samples(
    samples: Sequence[Sample],
    spec: StateSpec,
    layers: Sequence[LayerId] | None = None,
    rows: slice | None = None,
    threads: int | None = None,
    out: npt.NDArray[Any] | None = None,
) -> list[npt.NDArray[Any]]:
    """Return what `Sample.hidden_states` returns for each of `samples`, as views of one block of memory.

    Args:
        samples: of one spec; the same one may come again.
        spec: the spec.
        layers: as for `Sample.hidden_states`.
        rows: as for `Sample.hidden_states`, for each sample.
        threads: that read and decode; `default_threads`, at most `MAX_THREADS`.
        out: the block, [len(layers), at least all rows, hidden_size]; fresh memory by default.

    Raises:
        SpecError, ValueError, CorruptObjectError: as `Sample.hidden_states`.
        SampleShapeError: `out` does not fit.
    """
    slots = spec.slots_of(layers)
    ranges = [sample.row_range(rows) for sample in samples]
    ends = list(accumulate((len(wanted) for wanted in ranges), initial=0))
    shape = (len(slots), ends[-1], spec.hidden_size)
    block = allocate(shape, spec.dtype.bits) if out is None else _fitting(out, shape, spec)
    places = [block[:, start:stop] for start, stop in pairwise(ends)]
    parts = [
        _Part(sample, wanted.start + first, place[:, first : first + PART_ROWS])
        for sample, wanted, place in zip(samples, ranges, places, strict=True)
        for first in range(0, len(wanted), PART_ROWS)
    ]
    _read_parts(parts, slots, threads or _default_threads(samples))
    return [spec.view_logical(place.transpose(1, 0, 2)) for place in places]


def _default_threads(samples: Sequence[Sample]) -> int:
    return min(default_threads(samples[0].stored_rows.states.path), MAX_THREADS) if samples else 1


def _fitting(out: npt.NDArray[Any], shape: tuple[int, int, int], spec: StateSpec) -> npt.NDArray[Any]:
    """Return the part of `out` that has this shape, as bits of the states."""
    num_layers, num_rows, hidden_size = shape
    fits = out.ndim == len(shape) and (len(out), out.shape[2]) == (num_layers, hidden_size) and out.shape[1] >= num_rows
    if not fits or out.dtype.name != spec.dtype.states or not out.flags.c_contiguous or not out.flags.writeable:
        raise SampleShapeError(
            f"out is {out.dtype}{list(out.shape)}; give a contiguous array of {spec.dtype.states}{list(shape)}, or "
            "with more rows"
        )
    return out.view(spec.dtype.bits)[:, :num_rows]


def _read_parts(parts: list[_Part], slots: Sequence[int], threads: int) -> None:
    scratches = _Scratches()

    def read(share: list[_Part]) -> list[_Part]:
        return [part for part in share if not _read_part(part, slots, scratches.mine)]

    shares = list(_shares(parts, threads * _shares_per_thread(parts, threads) if threads > 1 else 1))
    if len(shares) < 2:  # noqa: PLR2004 - one share needs no second thread
        moved = [part for share in shares for part in read(share)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            moved = [part for share in pool.map(read, shares) for part in share]
    for part in moved:  # here, since finding a sample again changes the store that the threads read from
        part.sample.read_into(part.out, slots, part.start)


def _read_part(part: _Part, slots: Sequence[int], scratch: Scratch) -> bool:
    """Read a part; False if a file of its sample has gone, as happens when it moves into a pack."""
    try:
        part.sample.stored_rows.read_into(part.out, slots, part.start, scratch)
    except FileNotFoundError:
        return False
    return True


def _shares_per_thread(parts: list[_Part], threads: int) -> int:
    large = sum(part.out.nbytes for part in parts) // (threads * SHARE_BYTES)
    return min(max(large, SHARES_PER_THREAD.start), SHARES_PER_THREAD.stop - 1)


def _shares(parts: list[_Part], count: int) -> Iterator[list[_Part]]:
    """Cut `parts`, in their order, into at most about `count` lists of about as many rows."""
    target = sum(part.out.shape[1] for part in parts) / count
    share: list[_Part] = []
    num_rows = 0
    for part in parts:
        share.append(part)
        num_rows += part.out.shape[1]
        if num_rows >= target:
            yield share
            share, num_rows = [], 0
    if share:
        yield share
