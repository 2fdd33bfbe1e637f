"""The recipes of docs/: whoever does what they say, in a copy of the tree, has a format, a task, a codec, a model."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from export_worlds import World, make_world
from pages import Page, assert_prints, run
from recipes import copy_tree, follow, is_change

from storage.store import open_store

RECIPES = [Page(f"docs/adding-{what}.md") for what in ("a-model", "a-codec", "an-exporter", "a-task")]


class Copy:
    """A copy of the tree in which a recipe is followed; commands run in it and with its code."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = copy_tree(folder)

    def follow(self) -> None:
        assert follow(self.page, self.folder)

    def give_model_and_chats(self, model: Path) -> None:
        """Put there what commands of pages name."""
        (self.folder / "models").mkdir()
        (self.folder / "models" / "Qwen3-8B").symlink_to(model)
        Page("README.md").write_files(self.folder)

    def run(self, command: str, **more: str) -> CompletedProcess[str]:
        return run(command, self.folder, PYTHONPATH=str(self.folder), **more)

    def prove(self, **more: str) -> None:
        """Run the commands of the page."""
        for command in self.page.commands:
            ran = self.run(command.line, **more)
            assert ran.returncode == command.returncode, f"{command.line}\n{ran.stdout}"
            assert_prints(ran.stdout, command.expected)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Copy]:
    """Return the function from a recipe to a copy in which it is not followed yet."""
    return lambda name: Copy(Page(f"docs/adding-{name}.md"), tmp_path / "tree")


@pytest.mark.parametrize("page", RECIPES, ids=[page.path for page in RECIPES])
def test_every_block_of_a_recipe_is_a_change_or_is_run(page: Page) -> None:
    assert not [block.line for block in page.blocks if block.why_not or not block.language]
    assert all(is_change(block) for block in page.blocks if block.language in {"markdown", "toml"})
    assert page.num_fences == 2 * len(page.blocks)


def test_an_exporter_is_added_and_exports(copy: Callable[[str], Copy], with_server: dict[str, str]) -> None:
    added = copy("an-exporter")
    world: World = make_world(added.folder / "states")

    added.follow()
    added.prove(**with_server)

    files = sorted((added.folder / "files").glob("??/*.npz"))
    assert len(files) == len(world.rows)
    store = open_store(world.store)
    for file in files:
        archive = np.load(file)
        sample = store[file.stem.split("-")[0]]
        assert np.array_equal(archive["hidden_states"], sample.hidden_states().astype(np.float32))
        assert np.array_equal(archive["input_ids"], sample.input_ids)


def test_a_task_is_added_and_runs_in_the_flow(
    copy: Callable[[str], Copy], tiny_model: Callable[[str], Path], with_server: dict[str, str]
) -> None:
    import httpx

    added = copy("a-task")
    added.give_model_and_chats(tiny_model("qwen3"))

    added.follow()
    added.prove(**with_server)

    [listed] = added.folder.glob("states/runs/*/samples.csv")
    store = open_store(added.folder / "states")
    lines = [f"{name},{sample.num_tokens}" for name, sample in store.items()]
    assert listed.read_text().splitlines() == ["sample_hash,num_tokens", *lines]
    wanted = {"task_runs": {"name": {"any_": ["list samples of states"]}}}
    with httpx.Client(trust_env=False) as client:
        [task_run] = client.post(f"{with_server['PREFECT_API_URL']}/task_runs/filter", json=wanted).json()
    assert task_run["state_type"] == "COMPLETED"


def test_a_codec_is_added_and_states_are_stored_by_it(
    copy: Callable[[str], Copy], tiny_model: Callable[[str], Path], with_server: dict[str, str]
) -> None:
    added = copy("a-codec")
    added.give_model_and_chats(tiny_model("qwen3"))

    added.follow()
    added.prove(**with_server)

    found = added.run(f"{sys.executable} -c {shlex.quote(WRITE_AND_READ)}")
    assert found.returncode == 0, found.stdout


# In the copy, since this process does not know the codec: every value that is read is within half a step of what was
# given.
WRITE_AND_READ = """
import sys
from pathlib import Path

import numpy as np

sys.path.append("tests")
from export_worlds import make_world

from storage.checks import check_store
from storage.digests import sample_hash
from storage.store import open_store

world = make_world(Path("world"), storage_dtype="int8")
store = open_store("world")
for input_ids, _, given in world.rows:
    given = given.astype(np.float32)
    half_a_step = np.abs(given).max(axis=-1, keepdims=True) / 127 / 2
    errors = np.abs(store[sample_hash(input_ids)].hidden_states().astype(np.float32) - given)
    assert errors.any()
    assert (errors <= half_a_step + 2.0**-8 * np.abs(given)).all()  # and bfloat16's own rounding
largest, mean = store.rounding_error()
assert 0 < mean < largest < 0.05
assert not check_store(Path("world"), store.spec_digest).findings
"""


def test_a_model_is_added_and_captured_by_sglang(copy: Callable[[str], Copy]) -> None:
    added = copy("a-model")
    for file, entry in (("tasks/engine/architectures.py", '"Phi3ForCausalLM"'), ("tests/tiny_configs.py", '"phi3"')):
        path = added.folder / file
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.strip().startswith(f"{entry}:")]
        assert len(kept) == len(lines) - 1
        path.write_text("".join(kept))
    ask = "from tasks.engine.architectures import get_architecture; get_architecture('Phi3ForCausalLM')"
    before = added.run(f'{sys.executable} -c "{ask}"')
    assert "Phi3ForCausalLM" in before.stdout
    assert "docs/adding-a-model.md" in before.stdout

    added.follow()

    [command] = added.page.commands
    ran = added.run(command.line)
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^[6-9] passed", ran.stdout, re.MULTILINE), ran.stdout
