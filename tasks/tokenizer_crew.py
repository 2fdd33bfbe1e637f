"""Processes that tokenize chunks of rows side by side, and give the outcomes in the order of the chunks."""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from tasks.errors import TokenizationError
from tasks.row_tokenizer import Outcome, RowTokenizer, Work, unpack
from tasks.token_options import TokenOptions
from tasks.tokenizer_sources import TokenizerSource

T = TypeVar("T")
Job = tuple[T, Work | list[Outcome]]

# Chunks that wait for a process, for each of them: so that none waits for a chunk.
_AHEAD = 2


class OneProcess:
    """This process alone; the tokenizer encodes on all cores by itself, the rest of the work is done on one."""

    def __init__(self, source: TokenizerSource, options: TokenOptions) -> None:
        self._tokenizer = RowTokenizer(source, options)

    def map(self, jobs: Iterable[Job[T]]) -> Iterator[tuple[T, Iterable[Outcome]]]:
        """Give what became of each job's chunk, with what came with it, in order."""
        for tag, work in jobs:
            yield tag, self._tokenizer.tokenize(work) if isinstance(work, Work) else work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class Crew:
    """Several processes; a context manager that ends them.

    They are fresh interpreters that import neither torch nor transformers: a fork of a process with threads may hang,
    and a spawned child would run the user's script again.
    """

    def __init__(self, source: TokenizerSource, options: TokenOptions, workers: int) -> None:
        self._workers = workers
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes = [_start() for _ in range(workers)]
        self._pool = ThreadPoolExecutor(workers, "tokenizer")
        greeting = pickle.dumps((source, options, os.getpid()))
        for process in self._processes:
            _send(process, greeting)
            self._idle.put(process)

    def map(self, jobs: Iterable[Job[T]]) -> Iterator[tuple[T, Iterable[Outcome]]]:
        """Give what became of each job's chunk, with what came with it, in order.

        Raises:
            TokenizationError: a process died.
        """
        pending: deque[tuple[T, Callable[[], Iterable[Outcome]]]] = deque()
        for tag, work in jobs:
            pending.append((tag, self._submit(work)))
            if len(pending) > _AHEAD * self._workers:
                yield _take(pending)
        while pending:
            yield _take(pending)

    def _submit(self, work: Work | list[Outcome]) -> Callable[[], Iterable[Outcome]]:
        if isinstance(work, list):
            return lambda: work
        future: Future[Iterable[Outcome]] = self._pool.submit(self._run, work)
        return future.result

    def _run(self, work: Work) -> Iterable[Outcome]:
        process = self._idle.get()
        try:
            _send(process, pickle.dumps(work, protocol=pickle.HIGHEST_PROTOCOL))
            return unpack(pickle.load(process.stdout))  # type: ignore[arg-type] # noqa: S301 - from our child; it has a pipe
        except (EOFError, pickle.UnpicklingError) as error:
            raise _death(process) from error
        finally:  # one that has died, too: whoever waits for it must hear of it
            self._idle.put(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if kind is not None:
                process.kill()
            with suppress(BrokenPipeError):  # what was meant for one that has died
                process.stdin.close()  # type: ignore[union-attr] # it is a pipe
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            process.stdout.close()  # type: ignore[union-attr] # it is a pipe


def _take(pending: deque[tuple[T, Callable[[], Iterable[Outcome]]]]) -> tuple[T, Iterable[Outcome]]:
    tag, result = pending.popleft()
    return tag, result()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: a folder named tasks in the user's working directory must not shadow ours
        [sys.executable, "-P", "-m", "tasks.tokenizer_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the parent, which decides
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )


def _send(process: subprocess.Popen[bytes], message: bytes) -> None:
    try:
        process.stdin.write(message)  # type: ignore[union-attr] # it is a pipe
        process.stdin.flush()  # type: ignore[union-attr]
    except BrokenPipeError as error:
        raise _death(process) from error


def _death(process: subprocess.Popen[bytes]) -> TokenizationError:
    code = process.wait()
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return TokenizationError(f"a process that tokenizes {how}; if memory ran out, lower tokenize_workers")
