"""Tokenizing beside `tokenizers` alone, and its memory over a large file.

python benchmarks/tokenization.py [--mebibytes 48] [--rounds 3] [--large-mebibytes 2048]

Chats are put together from those that Aerie ships. Ours reads JSON Lines, renders, encodes, masks, and commits a tokens
artifact; theirs is one `encode_batch` after another over the same texts, rendered before, on all cores. Not named
`tokenize`, which would hide the standard library's module from scripts of this folder.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from record import ROOT, write_result
from turns import speed_ratio, take_turns

from storage.store import init_store
from storage.tokens import Tokens
from tasks.inputs.shapes import ShapeRules, read_row
from tasks.smollm2 import ensure_smollm2
from tasks.templates import Template
from tasks.token_options import TokenOptions
from tasks.tokenization import tokenize_chats
from tasks.tokenizer_sources import load_source
from tasks.tokens_specs import make_tokens_spec

CHATS = ROOT / "flows" / "data" / "mt_bench_smollm2.jsonl"
BATCH_TEXTS = 1000
SAMPLE_SECONDS = 0.2
# A file is cut into so many parts, to see whether memory grows from one to the next.
PARTS = 8
OPTIONS = TokenOptions(max_length=8192)


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=48, help="of data, for the speed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large-mebibytes", type=int, default=2048, help="of data, for the memory; 0 leaves it out")
    parser.add_argument("--watched", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watched:
        tokenize_watched(arguments.watched)
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="aerie-tokenization-") as folder:
        if arguments.rounds:
            figures["speed"] = measure_speed(Path(folder), arguments.mebibytes << 20, arguments.rounds)
            print(json.dumps(figures["speed"], indent=1))
        if arguments.large_mebibytes:
            figures["memory"] = measure_memory(Path(folder), arguments.large_mebibytes << 20)
            print(json.dumps(figures["memory"], indent=1))
    print(write_result("tokenization", figures))


def measure_speed(folder: Path, num_bytes: int, rounds: int) -> dict[str, Any]:
    """Time ours and theirs, taking turns."""
    model, data = ensure_smollm2(), folder / "chats.jsonl"
    write_chats(data, num_bytes)
    source = load_source(model)
    template = Template(source.template, source.special_tokens)
    texts = [
        template.render(read_row(json.loads(line), "messages", ShapeRules()).messages)  # type: ignore[union-attr]
        for line in data.read_bytes().splitlines()
    ]
    made: list[Tokens] = []
    times = take_turns(
        {
            "aerie": lambda: made.append(tokenize(folder, model, data)),
            "encode_batch": lambda: [
                len(source.backend.encode_batch(texts[start : start + BATCH_TEXTS], add_special_tokens=False))
                for start in range(0, len(texts), BATCH_TEXTS)
            ],
        },
        rounds,
    )
    num_tokens = made[0].num_tokens
    return {
        "bytes": num_bytes,
        "chats": len(texts),
        "tokens": num_tokens,
        "tokens_per_second": {name: round(each.rate(num_tokens)["per_second"]) for name, each in times.items()},
        "ratio": round(speed_ratio(times["aerie"], times["encode_batch"])["wall"], 3),
        "seconds": {name: [round(seconds, 2) for seconds in each.wall] for name, each in times.items()},
    }


def tokenize(folder: Path, model: Path, data: Path) -> Tokens:
    """Make a tokens artifact in a store of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as store:
        init_store(Path(store))
        return tokenize_chats(Path(store), make_tokens_spec(model, [data], OPTIONS), model, [data], options=OPTIONS)


def measure_memory(folder: Path, num_bytes: int) -> dict[str, Any]:
    """Tokenize a large file in a process that is watched with its children; give the peaks part by part."""
    data = folder / "large.jsonl"
    write_chats(data, num_bytes)
    started = time.monotonic()
    command = [sys.executable, __file__, "--watched", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - this script
        watch = _Watch(child.pid)
        for line in child.stdout or ():
            watch.part = min(PARTS - 1, PARTS * int(line) // num_bytes)
        if child.wait():
            raise SystemExit("the process that was watched failed")
    return {
        "bytes": data.stat().st_size,
        "seconds": round(time.monotonic() - started),
        "peak_bytes_by_part": watch.peaks,
        "peak_bytes_of_one_process_by_part": watch.single_peaks,
        "processes": watch.processes,
    }


class _Watch:
    """Samples the memory of a process and its children: unique bytes (USS), so that shared ones count in none."""

    def __init__(self, pid: int) -> None:
        self.part = 0
        self.peaks, self.single_peaks = [0] * PARTS, [0] * PARTS
        self.processes = 0
        self._process = psutil.Process(pid)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while self._process.is_running():
            sizes = list(self._sizes())
            self.peaks[self.part] = max(self.peaks[self.part], sum(sizes))
            self.single_peaks[self.part] = max(self.single_peaks[self.part], *sizes, 0)
            self.processes = max(self.processes, len(sizes))
            time.sleep(SAMPLE_SECONDS)

    def _sizes(self) -> Iterator[int]:
        try:
            for process in [self._process, *self._process.children(recursive=True)]:
                yield process.memory_full_info().uss
        except psutil.Error:
            return  # one has just ended


def tokenize_watched(data: Path) -> None:
    """Tokenize and say how many bytes have been read."""
    model = ensure_smollm2()
    with tempfile.TemporaryDirectory(dir=data.parent) as store:
        init_store(Path(store))
        spec = make_tokens_spec(model, [data], OPTIONS)
        tell = lambda _, num_bytes: print(num_bytes, flush=True)  # noqa: E731 - one line reads best
        tokenize_chats(Path(store), spec, model, [data], options=OPTIONS, on_progress=tell)


def write_chats(path: Path, num_bytes: int) -> None:
    """Write chats of one to four questions with their answers, drawn from those that Aerie ships."""
    draw = random.Random(7)  # noqa: S311 - the same file each time
    messages = [json.loads(line)["messages"] for line in CHATS.read_bytes().splitlines()]
    pairs = [chat[i : i + 2] for chat in messages for i in range(0, len(chat) - 1, 2)]
    size, number = 0, 0
    with path.open("wb") as file:
        while size < num_bytes:
            turns = [turn for pair in draw.choices(pairs, k=draw.randint(1, 4)) for turn in pair]
            turns[0] = {"role": "user", "content": f"{number}. {turns[0]['content']}"}
            size += file.write(json.dumps({"id": number, "messages": turns}).encode() + b"\n")
            number += 1


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
