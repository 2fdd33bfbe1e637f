"""The examples as users start them: chats that a model writes, a store of its states, a drafter, what it is worth."""

import json
import sys
from pathlib import Path

import pytest
from jobs import GOOD, run, run_aerie, write_lines

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_a_script_that_takes_flags_says_which(script: str, tmp_path: Path) -> None:
    if "__main__" not in (EXAMPLES / script).read_text():
        pytest.skip("it is imported by the others")
    told = run([sys.executable, str(EXAMPLES / script), "--help"], cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "--model" in told.stdout


def test_from_chats_to_acceptance(smollm2: Path, tmp_path: Path, with_server: dict[str, str]) -> None:
    """The four commands of docs/training.md, with less to do."""

    def example(name: str, *flags: object) -> str:
        done = run([sys.executable, str(EXAMPLES / name), *map(str, flags)], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    chats = write_lines(tmp_path / "chats.jsonl", map(json.dumps, GOOD[:2]))
    model = ("--model", smollm2)
    example("answer_prompts.py", "answers.jsonl", *model, "--prompts", chats, "--max-new-tokens", 16)
    extract = ("extract", *model, "--data", chats, "answers.jsonl", "--store", "states", "--devices", "cpu")
    extracted = run_aerie(*extract, cwd=tmp_path, env=with_server)
    assert extracted.returncode == 0, extracted.stderr
    training = ("--epochs", 1, "--draft-vocabulary", 64, "--batch-tokens", 256)
    example("train_eagle3.py", "states", *model, "--out", "drafter.pt", *training)
    said = example("measure_acceptance.py", "drafter.pt", chats, *model, "--num-new", 8, "--num-drafts", 2)
    assert 1 <= json.loads(said)["acceptance_length"] <= 3
