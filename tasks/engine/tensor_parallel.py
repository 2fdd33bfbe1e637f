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
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tasks.engine.base import EngineOptions, ReadableEngine
from tasks.engine.errors import EngineOutOfMemoryError
from tasks.engine.ranks import find_free_port, load_rank
from tasks.lifeline import tie_to_parent

_STOP_SECONDS = 10.0


class TensorParallelEngine:
    """Rank 0 of `options.tp_size` engines; see `Engine`.

    The other ranks are children of this process and die with it. If one dies, this process ends too, by a thread: it
    would wait for ever in its next collective operation, or in the first, while all load. One that hangs is for whoever
    owns this process to find out (`tasks.patience`).
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        port = find_free_port()
        self._ranks = [_Rank(options, rank, port) for rank in range(1, options.tp_size)]
        self._engine: ReadableEngine = load_rank(options, 0, port)

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Run one packed forward on all ranks; see `Engine.forward`."""
        self._mirror("forward", sequences)
        return self._engine.forward(sequences)

    def next_tokens(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Return the greedy next token after each sequence: int64[num_sequences]."""
        self._mirror("next_tokens", sequences)
        return self._engine.next_tokens(sequences)

    def read_out(self, final: torch.Tensor) -> torch.Tensor:
        """Return the LM head's logits over final states, from all ranks: float32[num_tokens, vocab_size]."""
        self._mirror("read_out", [final.float().cpu().numpy()])
        return self._engine.read_out(final)

    def close(self) -> None:
        """End the other ranks, then free this one."""
        for rank in self._ranks:
            rank.close()
        self._engine.close()

    def _mirror(self, call: str, arrays: Sequence[npt.NDArray[Any]]) -> None:
        for rank in self._ranks:
            rank.send(call, arrays)


class _Rank:
    """The parent's end of one other rank."""

    def __init__(self, options: EngineOptions, rank: int, port: int) -> None:
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
        threading.Thread(target=self._watch, args=(rank,), name=f"rank {rank}", daemon=True).start()

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

    def _watch(self, rank: int) -> None:
        code = self._process.wait()
        if not self._closed:
            sys.stderr.write(f"rank {rank} ended with exit code {code}; this one ends too\n")
            sys.stderr.flush()
            os._exit(1)


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
        with contextlib.suppress(EngineOutOfMemoryError):  # rank 0 meets it too, and tries less
            _answer(engine, call, arrays)


def _answer(engine: ReadableEngine, call: str, arrays: list[npt.NDArray[Any]]) -> None:
    if call == "forward":
        engine.forward(arrays)
    elif call == "next_tokens":
        engine.next_tokens(arrays)
    else:
        engine.read_out(torch.from_numpy(arrays[0]).to(engine.options.device))


def main() -> None:
    """Serve as a rank; arguments are the file descriptor of the pipe and rank 0's process id."""
    descriptor, parent_pid = map(int, sys.argv[1:])
    tie_to_parent(parent_pid)
    serve(Connection(descriptor))


if __name__ == "__main__":
    main()
