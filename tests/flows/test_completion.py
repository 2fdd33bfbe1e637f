"""`aerie completion` prints scripts by which real shells complete what is typed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from jobs import AERIE, run_aerie

PROMPT = "ready> "


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scripts")
    files = {}
    for shell in ("bash", "zsh", "fish"):
        done = run_aerie("completion", shell, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        files[shell] = folder / f"aerie.{shell}"
        files[shell].write_text(done.stdout)
    return files


@pytest.fixture
def bash(scripts: dict[str, Path], tmp_path: Path) -> Iterator[pexpect.spawn]:
    """Run a bash that a person might type into, in a folder with a store and a file of chats."""
    (tmp_path / "states").mkdir()
    (tmp_path / "chats.jsonl").write_text("")
    env = {**os.environ, "PATH": f"{AERIE.parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": PROMPT, "HISTFILE": ""}
    child = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        cwd=tmp_path,
        env=env,
        encoding="utf-8",
        timeout=60,
        dimensions=(24, 250),
    )
    child.expect_exact(PROMPT)
    child.sendline(f"source {scripts['bash']}; bind 'set bell-style none'")
    child.expect_exact(PROMPT)
    yield child
    child.close(force=True)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("aerie ext", "aerie extract "),
        ("aerie compl", "aerie completion "),
        ("aerie extract --stora", "aerie extract --storage-dtype "),
        ("aerie extract --dtype flo\t16", "aerie extract --dtype float16"),
        ("aerie export --format mod", "aerie export --format modelopt "),
        ("aerie show sta", "aerie show states/"),
        ("aerie extract --data cha", "aerie extract --data chats.jsonl "),
        ("aerie extract --data chats.jsonl --deter", "aerie extract --data chats.jsonl --deterministic "),
        ("aerie extract --data chats.jsonl --store sta", "aerie extract --data chats.jsonl --store states/"),
        ("aerie --no-c", "aerie --no-color "),
    ],
)
def test_bash_completes_what_is_typed(bash: pexpect.spawn, typed: str, completed: str) -> None:
    start, _, rest = typed.partition("\t")
    bash.send(f"{start}\t{rest}")
    bash.send("\x01echo '\x05'\r")  # to the beginning of the line, and to its end: the line is printed, not run
    bash.expect(r"\r\n(aerie [^\r\n]*)\r\n")
    assert bash.match[1] == completed


def test_every_shell_can_read_its_script(scripts: dict[str, Path]) -> None:
    for shell, flag in {"bash": "-n", "zsh": "-n", "fish": "--no-execute"}.items():
        if shutil.which(shell) is not None:
            subprocess.run([shell, flag, scripts[shell]], check=True)
        assert "storage-dtype" in scripts[shell].read_text()


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_what_is_typed(scripts: dict[str, Path]) -> None:
    code = f"source {scripts['fish']}; complete --do-complete 'aerie extract --dtype flo'"
    done = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(line.split("\t")[0] for line in done.stdout.splitlines()) == ["float16", "float32"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_what_is_typed(scripts: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(scripts["zsh"], tmp_path / "_aerie")
    env = {**os.environ, "PATH": f"{AERIE.parent}:{os.environ['PATH']}", "TERM": "dumb", "ZDOTDIR": str(tmp_path)}
    child = pexpect.spawn(
        "zsh", ["-f", "-i"], cwd=tmp_path, env=env, encoding="utf-8", timeout=60, dimensions=(24, 250)
    )
    child.sendline(
        f"unset zle_bracketed_paste; fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; PS1='{PROMPT}'"
    )
    child.expect(f"[\\r\\n]{PROMPT}$")
    child.send("aerie ext\t\x01echo '\x05'\r")
    child.expect(r"\n(aerie [^\r\n]*)\r\n")
    child.close(force=True)
    assert child.match[1].rstrip() == "aerie extract"
