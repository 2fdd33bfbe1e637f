import getpass
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from record import COMMIT_VARIABLE, find_commit, median_of, read_results, write_result

ROOT = Path(__file__).parent.parent.parent


def test_a_result_says_what_it_takes_to_judge_and_repeat_it(tmp_path):
    file = write_result("nothing", {"answer": 42}, tmp_path)

    document = json.loads(file.read_text())
    assert file.name == f"nothing-{document['machine']['name']}.json"
    assert document["figures"] == {"answer": 42}
    assert document["machine"]["cores"] > 0
    assert document["versions"]["python"] == platform.python_version()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["date"])
    assert document["command"].startswith("python ")


def test_a_result_names_no_host_no_user_and_no_path(tmp_path):
    program = (
        f"from record import write_result; from pathlib import Path; write_result('n', {{}}, Path({str(tmp_path)!r}))"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "out"), str(ROOT / "README.md")]
    subprocess.run(arguments, check=True, env=os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")})

    [file] = tmp_path.glob("n-*.json")
    assert json.loads(file.read_text())["command"] == "python -c out README.md"
    for secret in (platform.node(), str(ROOT), str(Path.home()), f'"{getpass.getuser()}"'):
        assert secret not in file.read_text()


def test_lists_of_plain_values_are_on_one_line(tmp_path):
    figures = {
        "errors": [0.0, 1e-7],
        "rows": [{"layers": [0, "final [sic]"], "names": ["two  blanks", "x"], "none": []}],
    }
    file = write_result("lists", figures, tmp_path)

    assert '"errors": [0.0, 1e-07]' in file.read_text()
    assert json.loads(file.read_text())["figures"] == figures


def test_a_second_result_replaces_the_first_and_leaves_nothing_beside_it(tmp_path):
    file = write_result("same", {"n": 1}, tmp_path)
    assert write_result("same", {"n": 2}, tmp_path) == file

    assert list(tmp_path.iterdir()) == [file]
    assert [document["figures"] for document in read_results("same", tmp_path)] == [{"n": 2}]


def test_results_of_another_benchmark_are_not_read(tmp_path):
    write_result("read", {}, tmp_path)
    write_result("read-random", {}, tmp_path)

    assert [document["benchmark"] for document in read_results("read", tmp_path)] == ["read"]


def test_the_commit_of_a_copy_on_another_machine_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv(COMMIT_VARIABLE, "abc123")

    assert find_commit() == "abc123"


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    monkeypatch.setenv("GIT_DIR", str(tmp_path))

    assert find_commit() is None


def test_the_median_comes_with_its_extremes():
    values = iter([3.0, 1.0, 2.0])

    assert median_of(lambda: next(values), 3) == {"median": 2.0, "min": 1.0, "max": 3.0, "repeats": 3}
