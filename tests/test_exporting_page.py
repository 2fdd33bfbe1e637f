"""docs/exporting.md is true: its tables are those of the code, and its flags those of the command line."""

import re
from dataclasses import fields
from typing import Any

import pytest
from pages import Page

from flows.cli import make_parser
from tasks.trainer_files.base import TrainerFormat
from tasks.trainer_files.formats import FORMATS
from tasks.trainer_files.sources import SOURCES

PAGE = Page("docs/exporting.md").text


def flags_of(command: str) -> dict[str, Any]:
    [subparsers] = make_parser()._subparsers._group_actions
    return {flag: action for action in subparsers.choices[command]._actions for flag in action.option_strings}


def test_every_format_is_in_the_table_in_the_order_of_the_code() -> None:
    [rows] = re.findall(r"^\| `--format` \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert re.findall(r"^\| `([\w-]+)`", rows, re.MULTILINE) == list(FORMATS)
    assert flags_of("export")["--format"].choices == list(FORMATS)


def test_the_sources_of_an_import_are_those_of_the_code() -> None:
    assert list(flags_of("import")["--from"].choices) == list(SOURCES)
    assert all(f"`{name}`" in PAGE for name in SOURCES)


@pytest.mark.parametrize("command", ["export", "import"])
def test_the_commands_of_the_page_take_their_flags(command: str) -> None:
    lines = re.findall(rf"^\$ aerie {command} .*", PAGE, re.MULTILINE)
    assert lines
    assert set(re.findall(r"--[\w-]+", " ".join(lines))) <= set(flags_of(command))


def test_every_part_of_a_row_is_told_where_a_format_is_added() -> None:
    page = Page("docs/adding-an-exporter.md")
    for field in fields(TrainerFormat):
        assert f"`{field.name}`" in page.text or f"{field.name}=" in page.text
