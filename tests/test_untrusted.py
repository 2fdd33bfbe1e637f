"""No source unpickles, evaluates or executes what comes from outside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.rejections import RowRejectedError
from tasks.templates import Template

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    file for name in ("flows", "tasks", "storage", "examples", "benchmarks") for file in (ROOT / name).rglob("*.py")
)
# Between a process and its children, over pipes; the fuzzer as they do.
PICKLERS = {"tasks/tokenizer_worker.py", "tasks/tokenizer_crew.py", "benchmarks/fuzz_data.py"}
UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "_pickle"}
UNSAFE_CALLS = {"eval", "exec", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "pickle.loads"}


def find_faults(text: str) -> Iterator[str]:
    """Name what runs or may run what it is given."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from find_in_call(node)


def find_in_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    if name in UNSAFE_CALLS:
        yield name
    if name == "torch.load" and given.get("weights_only") != "True" and "**options" not in ast.unparse(call):
        yield name
    if given.get("allow_pickle", "False") != "False" or given.get("trust_remote_code", "False") != "False":
        yield f"{name} with {given}"
    if given.get("shell", "False") != "False":
        yield f"{name} with a shell"


def test_the_search_finds_each_kind() -> None:
    bad = [
        *("import pickle", "from dill import loads", "eval('1')", "torch.load(f)", "torch.load(f, weights_only=False)"),
        *(
            "np.load(f, allow_pickle=True)",
            "run('x', shell=True)",
            "AutoModel.from_pretrained(m, trust_remote_code=yes)",
        ),
    ]
    assert [len(list(find_faults(line))) for line in bad] == [1] * len(bad)
    assert not list(find_faults("torch.load(f, weights_only=True)\nnp.load(f)\nmodel.eval()\n"))


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_nothing_from_outside_is_run(file: Path) -> None:
    faults = set(find_faults(file.read_text("utf-8")))
    if file.relative_to(ROOT).as_posix() in PICKLERS:
        faults -= {"pickle", "pickle.loads"}
    assert faults == set()


def test_what_torch_load_is_given_as_options_is_safe() -> None:
    text = (ROOT / "tasks/trainer_files/torch_files.py").read_text("utf-8")
    assert text.count("torch.load(") == text.count("**options)") == 2
    assert '"weights_only": True' in text


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__base__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_reaches_nothing_but_what_it_is_given(text: str) -> None:
    try:
        shown = Template(text, {}).render([{"role": "user", "content": "a"}])
    except RowRejectedError as error:
        assert error.reason == "template_error"  # noqa: PT017 - or nothing at all
    else:
        assert shown == ""  # an attribute that is not allowed is undefined
