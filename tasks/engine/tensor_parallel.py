"""One engine over several GPUs: this process is rank 0, the others mirror every call it makes.

SGLang's ranks meet inside the forward, so each has to run the same calls in the same order. States are whole on every
rank (SGLang reduces a stream before it hands it out), so only rank 0's are used.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from tasks.engine.base import EngineOptions, ReadableEngine
from tasks.engine.errors import EngineError, EngineOutOfMemoryError, EngineStateError, RankLostError
from tasks.engine.ranks import find_free_port, load_rank
from tasks.lifeline import describe_end, tie_to_parent

_STOP_SECONDS = 10.0
# From a broken connection in a collective operation to the end of the process that broke it: a GPU is let go between.
_LOSS_SECONDS = 10.0
# For the others to end what they do when this rank is out of memory.
_MEET_SECONDS = 30.0

OnLost = Callable[[EngineError], NoReturn]


def end_process(error: EngineError) -> NoReturn:
    """Say why on stderr and end this process at once, whatever its other threads wait for."""
    sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    os._exit(1)


class TensorParallelEngine:
    """Rank 0 of `options.tp_size` engines; see `Engine`.

    The other ranks are children of this process and die with it. If one dies, this process must end too, since it
    would wait for ever in its next collective operation, or in the first, while all load: a thread calls `on_lost` with
    the error that the rank died of, or a `RankLostError`. One that hangs is for whoever owns this process to find out
    (`tasks.patience`).
    """

    def __init__(self, options: EngineOptions, on_lost: OnLost = end_process) -> None:
        self.options = options
        self._on_lost = on_lost
        port = find_free_port()
        self._ranks = [_Rank(options, rank, port, on_lost) for rank in range(1, options.tp_size)]
        with _losses_come_first(Exception):
            self._engine: ReadableEngine = load_rank(options, 0, port)

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Run one packed forward on all ranks; see `Engine.forward`."""
        try:
            with self._mirrored("forward", sequences):
                return self._engine.forward(sequences)
        except EngineOutOfMemoryError:
            self._meet()
            raise

    def next_tokens(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Return the greedy next token after each sequence: int64[num_sequences]."""
        with self._mirrored("next_tokens", sequences):
            return self._engine.next_tokens(sequences)

    def read_out(self, final: torch.Tensor) -> torch.Tensor:
        """Return the LM head's logits over final states, from all ranks: float32[num_tokens, vocab_size]."""
        with self._mirrored("read_out", [final.float().cpu().numpy()]):
            return self._engine.read_out(final)

    def close(self) -> None:
        """End the other ranks, then free this one."""
        for rank in self._ranks:
            rank.close()
        self._engine.close()

    def _meet(self) -> None:
        """Make sure that all ranks left the same forward at the same place.

        One with more memory would wait in a collective operation, which would take the next forward's for its own.
        """
        try:
            for rank in self._ranks:
                rank.send("meet", [])
            _meet_ranks()
        except (RuntimeError, OSError):
            self._on_lost(
                RankLostError(
                    f"one of {self.options.tp_size} ranks ran out of memory where others did not, and the engine ended "
                    "with it; try again, or lower max_batch_tokens"
                )
            )

    @contextlib.contextmanager
    def _mirrored(self, call: str, arrays: Sequence[npt.NDArray[Any]]) -> Iterator[None]:
        with _losses_come_first(RuntimeError, OSError):
            for rank in self._ranks:
                rank.send(call, arrays)
            yield


@contextlib.contextmanager
def _losses_come_first(*errors: type[Exception]) -> Iterator[None]:
    """Let an error that a lost rank may be the cause of wait for the thread that knows, and ends this process then."""
    try:
        yield
    except errors:
        time.sleep(_LOSS_SECONDS)
        raise


class _Rank:
    """The parent's end of one other rank."""

    def __init__(self, options: EngineOptions, rank: int, port: int, on_lost: OnLost) -> None:
        ours, theirs = Pipe()
        start = {"options": asdict(options) | {"model": str(options.model)}, "rank": rank, "port": port}
        self._connection = ours
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", "tasks.engine.tensor_parallel", str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        ours.send_bytes(json.dumps(start).encode())
        self._closed = False
        self._on_lost = on_lost
        self._name = f"rank {rank} of {options.tp_size}"
        threading.Thread(target=self._watch, name=self._name, daemon=True).start()

    def send(self, call: str, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._connection.send((call, list(arrays)))

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # it is gone already
            self._connection.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _watch(self) -> None:
        code = self._process.wait()
        if not self._closed:
            lost = f"{self._name} {describe_end(code)}, and the engine with it; try again, the engine's log may say why"
            self._on_lost(self._last_words() or RankLostError(lost))

    def _last_words(self) -> EngineError | None:
        """Return the error that the rank ended with, if it could tell."""
        with contextlib.suppress(EOFError, OSError):
            if self._connection.poll():
                error: EngineError = self._connection.recv()
                return error
        return None


def serve(connection: Connection) -> None:
    """Mirror the calls of rank 0 until it is gone."""
    start = json.loads(connection.recv_bytes())
    fields = start["options"]
    options = EngineOptions(**fields | {"model": Path(fields["model"]), "layers": tuple(fields["layers"])})
    engine = load_rank(options, start["rank"], start["port"])
    while True:
        try:
            call, arrays = connection.recv()
        except EOFError:
            return
        with contextlib.suppress(EngineOutOfMemoryError, EngineStateError):  # rank 0 meets it too, and deals with it
            _answer(engine, call, arrays)


def _answer(engine: ReadableEngine, call: str, arrays: list[npt.NDArray[Any]]) -> None:
    if call == "forward":
        engine.forward(arrays)
    elif call == "next_tokens":
        engine.next_tokens(arrays)
    elif call == "meet":
        _meet_ranks()
    else:
        engine.read_out(torch.from_numpy(arrays[0]).to(engine.options.device))


def _meet_ranks() -> None:
    from tasks.engine.sglang_engine import meet_ranks  # noqa: PLC0415 - imports SGLang, which `load_rank` made ready for

    meet_ranks(_MEET_SECONDS)


def main() -> None:
    """Serve as a rank; arguments are the file descriptor of the pipe and rank 0's process id."""
    descriptor, parent_pid = map(int, sys.argv[1:])
    tie_to_parent(parent_pid)
    connection = Connection(descriptor)
    try:
        serve(connection)
    except Exception as error:  # noqa: BLE001 - whatever it is, an orderly end could wait for the other ranks
        traceback.print_exc()
        if isinstance(error, EngineError):
            connection.send(error)
        os._exit(1)


if __name__ == "__main__":
    main()
