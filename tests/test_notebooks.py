"""The example notebooks run from top to bottom, with no network and a tiny model."""

import json
from pathlib import Path

import nbformat
import psutil
import pytest
from jobs import chat, user_environment
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbformat import NotebookNode
from prefect_servers import until

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def executed(tiny_model, tmp_path_factory, with_server) -> NotebookNode:
    """Execute extract.ipynb, its cell tagged `parameters` replaced."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(FOLDER / "extract.ipynb", as_version=4)
    [parameters] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = "\n".join(
        ["from pathlib import Path", f"model = Path({str(tiny_model('qwen3'))!r})", "store_path = Path('states')"]
    )
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}})
    client.execute(env=user_environment() | with_server)
    return notebook


def text_of(cell: NotebookNode) -> str:
    """Return what a cell printed and what its last line is, without what went to the log."""
    results = [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    return "".join([output.text for output in cell.outputs if output.get("name") == "stdout"] + results)


def output_below(notebook: NotebookNode, heading: str) -> list[str]:
    """Return the texts of the code cells of one section."""
    titles = [cell.source.split("\n")[0] if cell.cell_type == "markdown" else "" for cell in notebook.cells]
    start = titles.index(f"## {heading}")
    stop = next((i for i in range(start + 1, len(titles)) if titles[i].startswith("## ")), len(titles))
    return [text_of(cell) for cell in notebook.cells[start:stop] if cell.cell_type == "code"]


def test_the_result_shows_what_the_run_did(executed):
    [shown] = output_below(executed, "Run")

    assert shown.startswith("RunResult(completed)")
    assert "3 = 2 done + 1 rejected" in shown


def test_its_cell_shows_bars_and_a_table_and_no_log(executed):
    [cell] = [cell for cell in executed.cells if cell.source.endswith("extract_hidden_states(settings)\nresult")]
    bars, table = (output.data["text/html"] for output in cell.outputs)

    assert [phase for phase in ("tokenize", "extract", "validate", "compact") if f"<td>{phase}</td>" in bars] == [
        *("tokenize", "extract", "validate", "compact")
    ]
    assert bars.count("width:100.0%") == 4
    assert "<b>Run completed</b>" in table


def test_interrupting_the_kernel_ends_the_engines_and_leaves_a_report(tiny_model, tmp_path, with_server):
    chats = [chat(f"Question {i}", "Because it scatters light. " * 30) for i in range(400)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)) + "\n")
    settings = f"model={str(tiny_model('qwen3'))!r}, data='chats.jsonl', store='states', devices='cpu'"
    source = f"from flows import *; extract_hidden_states(Settings({settings}, max_batch_tokens=300))"
    manager, client = start_new_kernel(cwd=tmp_path, env=user_environment() | with_server)
    try:
        asked = client.execute(source)
        kernel = psutil.Process(manager.provisioner.pid)
        until(lambda: list(tmp_path.glob("states/objects/*/*/*")))
        assert engines_of(kernel)
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=300))["parent_header"]["msg_id"] != asked:
            pass
        assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
        until(lambda: not engines_of(kernel))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    [report] = tmp_path.glob("states/runs/*/report.json")
    assert json.loads(report.read_text())["status"] == "interrupted"


def engines_of(process):
    return [child.pid for child in process.children(recursive=True) if "tasks.worker" in child.cmdline()]


def test_the_report_accounts_for_every_row(executed):
    rows, rejects = output_below(executed, "Report")

    assert "'in': 3" in rows
    assert "{'nothing_to_supervise': 1}" in rows
    assert "'row': 2" in rejects


def test_states_are_a_torch_tensor_of_all_tokens_and_layers(executed):
    samples, tensor = output_below(executed, "States")

    assert samples.startswith("2 samples, ")
    num_tokens = samples.split("\n")[1].strip("(").split(",")[0]
    assert tensor == f"(torch.Size([{num_tokens}, 4, 256]), torch.bfloat16)"


def test_the_mask_is_on_the_answer_and_nothing_else(executed):
    [lines] = output_below(executed, "Loss mask")
    learnt = [line.split(maxsplit=2)[2].strip("'") for line in lines.splitlines() if line.startswith("*")]

    assert "".join(learnt) == "The nest of an eagle, high on a cliff.<|im_end|>"


def test_every_layer_has_a_norm(executed):
    [lines] = output_below(executed, "Norms")
    norms = {line.split()[0]: float(line.split()[1]) for line in lines.splitlines()[1:]}

    assert list(norms) == ["2", "4", "5", "final"]
    assert all(norm > 0 for norm in norms.values())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.name for path in NOTEBOOKS])
def test_a_notebook_is_committed_without_outputs(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]

    assert cells
    assert [cell for cell in cells if cell.outputs or cell.execution_count is not None] == []
