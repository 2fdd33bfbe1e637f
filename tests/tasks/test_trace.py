"""A trace is what Chrome's format asks for, whatever threads and processes write to it and however they end."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.trace import Trace, begin_trace

CHILD = "import sys, pathlib, os; from tasks.trace import Trace; t = Trace(pathlib.Path(sys.argv[1]), 'child'); "


def read(path: Path) -> list[dict]:
    return json.loads(path.read_text().rstrip(",\n") + "]")


def test_spans_of_threads_and_processes_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    begin_trace(path)
    trace = Trace(path, "parent")

    def work(number: int) -> None:
        with trace.span("outer", number=number), trace.span("inner"):
            pass

    with ThreadPoolExecutor(4, thread_name_prefix="encode") as pool:
        list(pool.map(work, range(200)))
    killed = CHILD + "t.add('forward', 1.0, 0.5, 'device'); os._exit(9)"
    subprocess.run([sys.executable, "-c", killed, path], check=False)
    events = read(path)
    spans = [event for event in events if event["ph"] == "X"]
    assert sorted(span["args"]["number"] for span in spans if span["name"] == "outer") == list(range(200))
    assert sum(span["name"] == "inner" for span in spans) == 200
    [forward] = [span for span in spans if span["name"] == "forward"]
    assert (forward["ts"], forward["dur"]) == (1e6, 5e5)
    names = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"}
    assert {name for _, name in names} == {"parent", "child"}
    assert len({pid for pid, _ in names}) == 2


def test_without_a_file_nothing_is_recorded() -> None:
    trace = Trace(None)
    with trace.span("forward"):
        trace.add("copy", 0.0, 1.0)
    trace.close()
