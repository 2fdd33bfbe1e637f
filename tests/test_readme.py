"""README.md is true: its blocks run in a tiny world and print what it says, its tables are those of the code."""

import re
import subprocess
import tomllib
from dataclasses import dataclass

import pytest
from pages import FILES, ROOT, Command, Page, assert_prints, bare, find_commands, run, run_python

from flows.cli import make_parser
from tasks.engine.architectures import ARCHITECTURES
from tasks.engine.layers import resolve_layers
from tasks.engine.version import SGLANG_VERSION

README = Page("README.md")
PAGE = README.text
NOT_RUN = find_commands([block for block in README.blocks if block.why_not])
MOST_LINES = 300


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
    README.write_files(folder)
    console = {command: run(command.line, folder) for command in README.commands}
    return Transcript(console, run_python(README, folder, **with_server))


def test_every_block_is_run_or_says_why_not():
    assert {block.language for block in README.run} <= {"console", "python", *FILES}
    assert {block.language for block in README.blocks if block.why_not} == {"console"}
    assert README.num_fences == 2 * len(README.blocks)


def test_it_can_be_read_in_five_minutes():
    assert len(PAGE.splitlines()) < MOST_LINES


@pytest.mark.parametrize("command", README.commands, ids=[command.line for command in README.commands])
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
    first = next(ran for command, ran in transcript.console.items() if "aerie extract --model" in command.line)

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

    assert sorted(cell.split()[1].rstrip("`") for cell, _ in README.table("command")) == sorted(subparsers.choices)


def test_layers_mean_what_the_table_says():
    for ids, _, expected in README.table("id")[2:]:
        assert ", ".join(map(str, resolve_layers(bare(ids), 30))) == expected


def test_sets_of_layers_are_what_the_table_says():
    for names, _, expected in README.table("set"):
        for name in names.split(", "):
            assert ", ".join(map(str, resolve_layers(bare(name), 30))) == expected


def test_the_limits_are_those_of_the_code():
    limits = PAGE.split("\n## Limits\n")[1]

    assert re.findall(r"`(\w+For(?:CausalLM|ConditionalGeneration))`", limits) == list(ARCHITECTURES)
    assert f"sglang {SGLANG_VERSION} exactly" in limits


def test_every_error_can_be_imported_from_where_the_page_says():
    found = re.findall(r"`(\w+Error)` ?\s?\(`([\w.]+)`\)", PAGE)

    assert len(found) == 4
    for name, module in found:
        assert issubclass(getattr(__import__(module, fromlist=[name]), name), Exception)
