"""Recipes of docs/: pages that say what to add where, followed to the letter in a copy of the tree."""

import ast
import re
import shutil
from pathlib import Path

from pages import ROOT, Block, Page

# A block of a recipe begins with its file and the place in it, as a comment of its language.
_PLACE = re.compile(r"(?:#|<!--) (?P<file>\S+), (?P<place>[^\n]+?)(?: -->)?\n(?P<text>.*)", re.DOTALL)
# What makes a copy in which everything of the page can be run.
_TREE = ("flows", "tasks", "storage", "deployments", "tests", "docs", "examples", "benchmarks")
_FILES = ("README.md", "LICENSE", "Makefile", "CHANGELOG.md", "pyproject.toml")
# Compiled modules come along: times are kept, so that they fit.
_LEFT_OUT = shutil.ignore_patterns("results", "images", "stores")


def copy_tree(folder: Path) -> Path:
    """Copy what a recipe may change and what its tests need."""
    for name in _TREE:
        shutil.copytree(ROOT / name, folder / name, ignore=_LEFT_OUT)
    for name in _FILES:
        shutil.copy(ROOT / name, folder)
    return folder


def follow(page: Page, tree: Path) -> list[str]:
    """Do what the page says, in the order of its blocks; return the files that it changed or made."""
    changed = []
    for block in page.run:
        if found := _PLACE.fullmatch(block.text):
            _put(tree / found["file"], found["place"], found["text"])
            changed.append(found["file"])
    return changed


def is_change(block: Block) -> bool:
    """Say whether a block is something to be added, not a program."""
    return _PLACE.fullmatch(block.text) is not None


def _put(file: Path, place: str, text: str) -> None:
    if place == "a new file":
        assert not file.exists(), f"{file} is there already"
        file.write_text(text)
        return
    lines = file.read_text("utf-8").splitlines(keepends=True)
    kind, _, what = place.partition(" `")
    first, last = _find(kind, what.removesuffix("`"), lines)
    file.write_text("".join([*lines[:first], text, *lines[last:]]))


def _find(kind: str, what: str, lines: list[str]) -> tuple[int, int]:
    """Return the lines that the text takes the place of: none where it is added."""
    if kind == "at the end":
        return len(lines), len(lines)
    if kind == "with the imports":
        return (end := _last_import(lines)), end
    if kind == "last in":  # before the bracket that closes it
        return (end := _assignment_end(lines, what) - 1), end
    [at] = [number for number, line in enumerate(lines) if line.strip().startswith(what)]
    return {"after": (at + 1, at + 1), "instead of": (at, at + 1)}[kind]


def _last_import(lines: list[str]) -> int:
    body = ast.parse("".join(lines)).body
    return max(node.end_lineno or 0 for node in body if isinstance(node, ast.Import | ast.ImportFrom))


def _assignment_end(lines: list[str], name: str) -> int:
    for node in ast.parse("".join(lines)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.end_lineno or 0
    raise AssertionError(f"nothing is called {name}")
