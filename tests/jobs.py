"""Jobs for the tests of flows: chats that end in every column of the accounting, and the command line of users."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows import RunReport, RunResult, Settings

AERIE = Path(sys.executable).with_name("aerie")


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


# Of 40 to 400 tokens: less and more than one token-chunk of the store.
GOOD = [chat(f"Question {i}: why is the sky blue?", "Because it scatters light. " * (1 + 9 * i)) for i in range(8)]
LINES = [
    *map(json.dumps, GOOD),
    json.dumps(GOOD[0]),
    json.dumps({"id": 7, **GOOD[3]}),
    "this is no JSON",
    '{"messages": [',
    '["a", "list"]',
    '{"messages": []}',
    '{"messages": [{"role": "user", "content": 1}]}',
    json.dumps({"messages": GOOD[0]["messages"][:1]}),
]
DUPLICATES = 2
REJECTED = {"bad_message": 1, "invalid_json": 2, "no_messages": 1, "not_an_object": 1, "nothing_to_supervise": 1}


def write_lines(path: Path, lines: Iterable[str] = LINES) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def snapshot(*folders: Path) -> dict[Path, tuple[int, int, int]]:
    """Return inode, size and time of every file: what is rewritten, even with the same bytes, differs."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]}


@dataclass(frozen=True)
class Finished:
    """A run that has ended; its store is not to be changed."""

    settings: Settings
    result: RunResult

    @property
    def report(self) -> RunReport:
        return self.result.report

    @property
    def store(self) -> Path:
        assert isinstance(self.report.store, Path)
        return self.report.store

    def settings_with(self, **changes: Any) -> Settings:
        return Settings(**{**self.settings.model_dump(), **changes})


@dataclass
class Job:
    """Flags of a sound `aerie extract`, to be changed or spoilt by a test."""

    folder: Path
    flags: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)

    def command(self, name: str, *more: Any) -> list[str]:
        flags = [part for flag, value in self.flags.items() for part in (f"--{flag}", value)]
        return [str(part) for part in (AERIE, name, *flags, *more)]

    def run(self, name: str, *more: Any) -> subprocess.CompletedProcess[str]:
        return run(self.command(name, *more), cwd=self.folder, env=self.env)


def run_aerie(*arguments: Any, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run([str(part) for part in (AERIE, *arguments)], cwd=cwd, env=env)


def run(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = user_environment() | (env or {})
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def user_environment() -> dict[str, str]:
    """Return the environment without what makes tests quiet and Python flush, which users do not set."""
    ours = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "PYTHONUNBUFFERED"}
    return {name: value for name, value in os.environ.items() if name not in ours}


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a refused command; progress may stand before it, nothing else."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    *progress, last = done.stderr.splitlines()
    assert last.startswith("aerie: "), done.stderr
    assert not [line for line in progress if line.startswith("aerie: ")]
    return last
