"""Processes that tokenize: light, in order, and gone when they should be."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from chat_templates import make_source

from tasks.errors import TokenizationError
from tasks.inputs.base import Chunk
from tasks.row_tokenizer import Outcome, RowTokenizer, Work, pack, unpack
from tasks.token_options import TokenOptions
from tasks.tokenizer_crew import Crew, OneProcess

OPTIONS = TokenOptions(max_length=200)


def work(number):
    rows = [
        {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number} " * i}]}
        for i in range(1, 6)
    ]
    lines = [*map(json.dumps, rows), "{oops"]
    return Work(Chunk("\n".join(lines).encode(), number, 0), "jsonl", "messages")


def plain(outcomes):
    """Return outcomes as values that can be compared."""
    return [
        (
            o.line,
            [s.reason if hasattr(s, "reason") else (s.input_ids.tolist(), s.loss_weight.tolist()) for s in o.samples],
        )
        for o in outcomes
    ]


def test_outcomes_come_in_the_order_of_the_work_and_as_from_one_process(smollm2):
    source = make_source("smollm2", smollm2)
    jobs = [(i, work(i) if i % 5 else [Outcome(i)]) for i in range(20)]
    with OneProcess(source, OPTIONS) as one:
        expected = [(tag, plain(outcomes)) for tag, outcomes in one.map(jobs)]
    with Crew(source, OPTIONS, 3) as crew:
        found = [(tag, plain(outcomes)) for tag, outcomes in crew.map(jobs)]
    assert found == expected
    assert [tag for tag, _ in found] == list(range(20))


def test_what_is_packed_comes_back(smollm2):
    outcomes = RowTokenizer(make_source("smollm2", smollm2), OPTIONS).tokenize(work(7))
    assert plain(unpack(pack(outcomes))) == plain(outcomes)


def test_a_process_that_dies_is_an_error_and_none_is_left(smollm2):
    before = set(psutil.Process().children())
    with Crew(make_source("smollm2", smollm2), OPTIONS, 2) as crew:
        ours = set(psutil.Process().children()) - before
        assert len(ours) == 2
        for child in ours:
            child.send_signal(signal.SIGKILL)
        with pytest.raises(TokenizationError, match="was killed by SIGKILL; if memory ran out"):
            list(crew.map((i, work(i)) for i in range(9)))
    assert not [child for child in ours if child.is_running()]


def test_only_so_much_is_read_ahead(smollm2):
    taken = []

    def jobs():
        for i in range(100):
            taken.append(i)
            yield i, work(i)

    with Crew(make_source("smollm2", smollm2), OPTIONS, 2) as crew:
        next(iter(crew.map(jobs())))
        assert len(taken) < 10


def test_a_worker_imports_neither_torch_nor_transformers_nor_prefect():
    code = (
        "import sys, tasks.tokenizer_worker; print({'torch', 'transformers', 'prefect', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_a_worker_does_not_outlive_its_parent(smollm2, tmp_path):
    code = (
        "import sys, time; sys.path[:0] = sys.argv[1].split(':'); from pathlib import Path\n"
        "from chat_templates import make_source; from tasks.tokenizer_crew import Crew\n"
        "from tasks.token_options import TokenOptions\n"
        "crew = Crew(make_source('smollm2', Path(sys.argv[2])), TokenOptions(max_length=9), 1)\n"
        "print(crew._processes[0].pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, ":".join(sys.path), str(smollm2)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:  # else the test's own limit ends it
        time.sleep(0.1)
