"""The pages of docs/ are true: their blocks run in one small world, their tables are those of the code.

Each page has a copy of a folder with a model, the README's chats, and a store that a run made of them. Commands of ours
run in this process, since each would take seconds to start; and so do a page's Python blocks, which are one program.
"""

import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages import ROOT, Command, Page, assert_prints, bare, run

from flows.accounting import Ledger
from flows.cli import main, make_parser
from flows.progress import LineProgress
from flows.settings import Settings
from tasks.rejections import REASONS

PAGES = [Page(path.relative_to(ROOT).as_posix()) for path in sorted((ROOT / "docs").glob("*.md"))]
PAGES.append(Page("CONTRIBUTING.md"))
# Of which other tests run all blocks, in worlds of their own.
ELSEWHERE = {
    "docs/format.md": "tests/storage: the reader and the test vectors",
    "docs/training.md": "tests/storage/test_adapters.py and tests/examples: trainers that this environment lacks",
    **{f"docs/adding-{what}.md": "tests/test_recipes.py" for what in ("a-codec", "a-model", "a-task", "an-exporter")},
}
HERE = [page for page in PAGES if page.path not in ELSEWHERE]
RUN = [page for page in HERE if page.commands or page.python_program()]
README = Page("README.md")
SETTINGS, RUNNING = (next(page for page in PAGES if page.path == f"docs/{name}.md") for name in ("settings", "running"))
SHELL = set("|&;<>$*()`'\"")


@pytest.fixture(scope="module")
def world(
    tiny_model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    with_server: dict[str, str],  # noqa: ARG001 - flows of this process use it
) -> Path:
    """Return a folder in which the README's own run has been done."""
    from flows import extract_hidden_states

    folder = tmp_path_factory.mktemp("pages")
    (folder / "models").mkdir()
    (folder / "models" / "Qwen3-8B").symlink_to(tiny_model("qwen3"))
    README.write_files(folder)
    with contextlib.chdir(folder):
        extract_hidden_states(Settings(model=folder / "models/Qwen3-8B", data=["chats.jsonl"], store=Path("states")))
    return folder


@pytest.fixture
def place(world: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of it, where the test is meanwhile."""
    folder = shutil.copytree(world, tmp_path / "world", symlinks=True)
    with contextlib.chdir(folder):
        yield folder


def run_here(command: Command) -> tuple[int, str]:
    """Run a command; return its exit code and both its outputs."""
    words = command.line.split("#")[0]
    if not words.startswith("aerie ") or SHELL & set(words):
        ran = run(command.line, Path.cwd())
        return ran.returncode, ran.stdout
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        returncode = main(shlex.split(words)[1:])
    return returncode, printed.getvalue()


@pytest.mark.parametrize("page", RUN, ids=[page.path for page in RUN])
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page: Page, place: Path) -> None:
    page.write_files(place)
    for command in page.commands:
        returncode, printed = run_here(command)
        assert returncode == command.returncode, f"{command.line}\n{printed}"
        assert_prints(printed, command.expected)
    exec(compile(page.python_program(), ROOT / page.path, "exec"), {"__name__": "page"})  # noqa: S102 - our own page


@pytest.mark.parametrize("page", PAGES, ids=[page.path for page in PAGES])
def test_every_block_says_what_it_is_and_is_run_or_says_why_not(page: Page) -> None:
    assert page.num_fences == 2 * len(page.blocks)
    assert [block.line + 1 for block in page.blocks if not block.language] == []
    if page in HERE:
        assert {block.language for block in page.run} <= {"python", "console", "toml", "text"}
    for block in page.blocks:
        assert block.why_not is None or len(block.why_not.split()) > 2, block


def test_what_is_run_elsewhere_is_there() -> None:
    for page, where in ELSEWHERE.items():
        assert page in [known.path for known in PAGES]
        assert all((ROOT / name).exists() for name in re.findall(r"tests/[\w./]*\w", where))


@pytest.mark.parametrize("page", [README, *PAGES], ids=[page.path for page in [README, *PAGES]])
def test_every_link_leads_to_a_file_and_a_heading(page: Page) -> None:
    assert page.dead_links() == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in README.links()}
    assert [page.path for page in PAGES if page.path not in linked] == []


@pytest.mark.parametrize("page", [README, *PAGES], ids=[page.path for page in [README, *PAGES]])
def test_flags_that_a_page_names_exist(page: Page) -> None:
    [subparsers] = make_parser()._subparsers._group_actions  # type: ignore[union-attr]
    for line in re.findall(r"aerie (\w+[^`\n]*)", page.text):
        command = line.split()[0]
        if command in subparsers.choices:
            known = {flag for action in subparsers.choices[command]._actions for flag in action.option_strings}
            assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", line.split("&&")[0])) <= known, line


def test_every_setting_is_in_the_table_with_its_default() -> None:
    found = {bare(name): bare(default) for name, default, _ in SETTINGS.table("setting")}

    assert list(found) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert found[name] == ("" if field.is_required() or field.default is None else str(field.default))


def test_the_columns_of_the_accounting_are_those_of_a_report() -> None:
    rows = Ledger(LineProgress(print)).rows()

    assert [bare(name) for name, _ in RUNNING.table("column")] == [name for name in rows if name != "in"]


def test_every_reason_to_reject_a_row_is_told() -> None:
    told = [name for names, _ in RUNNING.table("rejected because") for name in bare(names).split(", ")]
    assert told == list(REASONS)
