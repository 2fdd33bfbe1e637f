"""README.md is true: its blocks run in a tiny world and print what it says, its tables are those of the code."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.accounting import Ledger
from flows.cli import make_parser
from flows.progress import LineProgress
from flows.settings import Settings
from tasks.engine.architectures import ARCHITECTURES
from tasks.engine.layers import resolve_layers
from tasks.engine.version import SGLANG_VERSION
from tasks.rejections import REASONS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "README.md").read_text("utf-8")
# Blocks of these languages become files of the folder where the others run.
FILES = {"json": "chats.jsonl", "toml": "aerie.toml"}


@dataclass(frozen=True)
class Block:
    """A fenced block; `why_not` says why it is not run, in a comment that the reader does not see."""

    language: str
    text: str
    why_not: str | None
    line: int


@dataclass(frozen=True)
class Command:
    """A line after `$ ` in a console block, and the output that the page shows."""

    line: str
    expected: str

    @property
    def returncode(self) -> int:
        return 1 if self.expected.startswith("aerie: ") else 0


def find_blocks() -> list[Block]:
    pattern = re.compile(r"^(?:<!-- not run: ([^\n]+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(match[2], match[3], match[1], PAGE.count("\n", 0, match.start(3))) for match in pattern.finditer(PAGE)
    ]


def find_commands(blocks: list[Block]) -> list[Command]:
    pattern = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
    consoles = (block.text for block in blocks if block.language == "console")
    return [Command(match[1], match[2]) for text in consoles for match in pattern.finditer(text)]


BLOCKS = find_blocks()
RUN = [block for block in BLOCKS if block.why_not is None]
COMMANDS = find_commands(RUN)
NOT_RUN = find_commands([block for block in BLOCKS if block.why_not])


@dataclass
class Transcript:
    """What the blocks printed, in the order of the page; Python blocks are one program."""

    console: dict[Command, subprocess.CompletedProcess[str]]
    python: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def transcript(tiny_model, tmp_path_factory, with_server) -> Transcript:
    """Run the page where its model is a tiny one; the commands start a server of Prefect, the program is given one."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "models").mkdir()
    (folder / "models" / "Qwen3-8B").symlink_to(tiny_model("qwen3"))
    for block in RUN:
        if block.language in FILES:
            (folder / FILES[block.language]).write_text(block.text)
    console = {command: run(["bash", "-c", command.line], folder) for command in COMMANDS}
    (folder / "readme.py").write_text(python_program())
    return Transcript(console, run([sys.executable, "readme.py"], folder, **with_server))


def run(arguments: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    return subprocess.run(
        arguments,
        cwd=folder,
        env=os.environ | {"PATH": path} | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def python_program() -> str:
    """Join the Python blocks, each at its line of the page, so that a traceback names that."""
    program = ""
    for block in RUN:
        if block.language == "python":
            program += "\n" * (block.line - program.count("\n")) + block.text
    return program


def assert_prints(printed: str, expected: str) -> None:
    """Compare but for numbers, units, digests and paths; `...` stands for anything, alone on a line for any lines."""
    lines = ["(?:.*\n)*" if line == "..." else pattern_of(line) for line in shape(expected).splitlines()]
    assert re.fullmatch("".join(lines), shape(printed)), printed


def pattern_of(line: str) -> str:
    return ".*".join(map(re.escape, line.split("..."))) + "\n"


def shape(text: str) -> str:
    text = re.sub(r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", "RUN", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)
    text = re.sub(r"(?<!\S)/\S+", "PATH", text)
    text = re.sub(r"\b(kB|MB|GB)\b", "B", text)
    text = re.sub(r"\d[\d,.]*", "0", text)
    return "".join(" ".join(line.split()) + "\n" for line in text.splitlines())


def test_every_block_is_run_or_says_why_not():
    assert {block.language for block in RUN} == {"console", "python", *FILES}
    assert {block.language for block in BLOCKS if block.why_not} == {"console"}
    assert PAGE.count("\n```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("command", COMMANDS, ids=[command.line for command in COMMANDS])
def test_a_command_prints_what_the_page_shows(transcript, command):
    ran = transcript.console[command]

    assert_prints(ran.stdout, command.expected)
    for accounting in re.findall(r'rows +\d+ = .+|"[a-z]+": \d+', command.expected):
        assert accounting in ran.stdout
    assert ran.returncode == command.returncode


def test_the_python_blocks_run(transcript):
    assert transcript.python.returncode == 0, transcript.python.stdout
    assert "'reused': 2" in transcript.python.stdout


def test_the_demo_prints_what_any_run_prints(transcript):
    [demo] = [command for command in NOT_RUN if command.line == "make demo"]
    [first] = [ran for command, ran in transcript.console.items() if "aerie extract --model" in command.line]

    assert_prints(first.stdout, demo.expected.split("\n", 1)[1])


def test_make_targets_and_extras_are_there():
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert {"demo"} <= set(re.findall(r"\bmake ([a-z]+)\b(?=[`\n])", PAGE)) <= targets
    assert set(re.findall(r"'\.\[(\w+)\]'", PAGE)) == set(project["optional-dependencies"])
    assert f"torch {project_pin(project, 'torch')} is built" in PAGE


def project_pin(project: dict, name: str) -> str:
    [pin] = [need.split("==")[1] for need in project["optional-dependencies"]["gpu"] if need.startswith(f"{name}==")]
    return pin


def test_the_commands_are_those_of_the_command_line():
    [subparsers] = make_parser()._subparsers._group_actions

    assert sorted(cell.split()[1].rstrip("`") for cell, _ in table("command")) == sorted(subparsers.choices)


def test_every_setting_is_in_the_table_with_its_default():
    found = {bare(name): bare(default) for name, default, _ in table("setting")}

    assert list(found) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert found[name] == ("" if field.is_required() or field.default is None else str(field.default))


def test_layers_mean_what_the_table_says():
    for ids, _, expected in table("id")[2:]:
        assert ", ".join(map(str, resolve_layers(bare(ids), 30))) == expected


def test_sets_of_layers_are_what_the_table_says():
    for names, _, expected in table("set"):
        for name in names.split(", "):
            assert ", ".join(map(str, resolve_layers(bare(name), 30))) == expected


def test_the_columns_of_the_accounting_are_those_of_a_report():
    rows = Ledger(LineProgress(print)).rows()

    assert [bare(name) for name, _ in table("column")] == [name for name in rows if name != "in"]


def test_every_reason_to_reject_a_row_is_told():
    assert [name for names, _ in table("rejected because") for name in bare(names).split(", ")] == list(REASONS)


def test_the_limits_are_those_of_the_code():
    limits = PAGE.split("\n## Limits\n")[1]

    assert re.findall(r"`(\w+For(?:CausalLM|ConditionalGeneration))`", limits) == list(ARCHITECTURES)
    assert f"sglang {SGLANG_VERSION} exactly" in limits


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", PAGE)

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_error_can_be_imported_from_where_the_page_says():
    found = re.findall(r"`(\w+Error)` ?\s?\(`([\w.]+)`\)", PAGE)

    assert len(found) == 4
    for name, module in found:
        assert issubclass(getattr(__import__(module, fromlist=[name]), name), Exception)


def table(first_column: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this head."""
    [rows] = re.findall(rf"^\| {first_column} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]


def bare(cell: str) -> str:
    return cell.replace("`", "")
