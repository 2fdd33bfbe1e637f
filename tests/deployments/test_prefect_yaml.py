from pathlib import Path

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

PREFECT_YAML = yaml.safe_load((Path(__file__).parents[2] / "deployments" / "prefect.yaml").read_text())
DEPLOYMENTS = {deployment["name"]: deployment for deployment in PREFECT_YAML["deployments"]}


def test_the_main_flows_are_deployed():
    assert {name: deployment["entrypoint"] for name, deployment in DEPLOYMENTS.items()} == {
        "extract": "flows.pipeline:extract_hidden_states",
        "extract-nightly": "flows.pipeline:extract_hidden_states",
        "extract-on-nodes": "flows.nodes:extract_on_nodes",
        "extract-part": "flows.nodes:extract_part",
        "validate": "flows.maintenance:validate_store",
        "compact": "flows.maintenance:compact_store",
        "export": "flows.maintenance:export_store",
    }


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_prefect_loads_each_entrypoint_from_any_folder(deployment, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    flow = load_flow_from_entrypoint(deployment["entrypoint"])

    assert flow.fn.__name__ == deployment["entrypoint"].split(":")[1]


def test_nothing_is_pulled_on_the_worker():
    # Left out, Prefect pins the folder of whoever deployed.
    assert PREFECT_YAML["pull"] == []


def test_the_prefect_version_is_the_one_installed():
    import prefect

    assert PREFECT_YAML["prefect-version"] == prefect.__version__
