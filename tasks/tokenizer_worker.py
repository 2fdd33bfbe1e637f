"""The main of a process that tokenizes: takes chunks of rows from its stdin, gives their outcomes on its stdout."""

import os
import pickle
import sys
from typing import BinaryIO

from tasks.lifeline import watch_parent
from tasks.row_tokenizer import RowTokenizer, pack


def main() -> None:
    """Serve the parent until it closes the pipe."""
    requests, results = sys.stdin.buffer, _take_stdout()
    source, options, parent_pid = pickle.load(requests)  # noqa: S301 - from our parent
    watch_parent(parent_pid)
    tokenizer = RowTokenizer(source, options)
    while True:
        try:
            work = pickle.load(requests)  # noqa: S301 - from our parent
        except EOFError:
            return
        pickle.dump(pack(tokenizer.tokenize(work)), results, protocol=pickle.HIGHEST_PROTOCOL)
        results.flush()


def _take_stdout() -> BinaryIO:
    """Keep the pipe for results: what a library prints goes to stderr."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


if __name__ == "__main__":
    main()
