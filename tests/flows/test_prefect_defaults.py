"""What Aerie changes about Prefect, and that a user's own choice stays."""

import os
import subprocess
import sys


def run(code: str, **variables: str) -> str:
    """Run code in a process of its own, without what the tests tell Prefect."""
    ours = ("PREFECT_", "DO_NOT_TRACK", "NO_PROXY", "no_proxy")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"PREFECT_HOME": os.environ["PREFECT_HOME"]} | variables
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout


def test_nobody_is_told_what_is_run_and_the_temporary_server_is_one_that_ends_with_us() -> None:
    code = """
import flows.maintenance, os
from prefect.settings import get_current_settings as settings
from prefect.server.api.server import SubprocessASGIServer
print(settings().server.analytics_enabled, os.environ["DO_NOT_TRACK"])
print(settings().server.ephemeral.startup_timeout_seconds, type(SubprocessASGIServer()).__name__)
"""
    assert run(code).split() == ["False", "1", "120", "TiedServer"]


def test_what_the_user_has_set_stays() -> None:
    code = """
import flows, os
print(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"], os.environ["NO_PROXY"], os.environ["no_proxy"])
"""
    given = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "7", "NO_PROXY": "intranet,localhost"}
    assert run(code, **given).split() == ["7", "intranet,localhost,127.0.0.1", "127.0.0.1,localhost"]


def test_where_the_user_has_a_server_none_is_even_imported() -> None:
    code = "import flows.pipeline, sys; print('prefect.server.api.server' in sys.modules)"
    assert run(code, PREFECT_API_URL="http://127.0.0.1:4200/api").strip() == "False"


def test_importing_flows_and_its_settings_imports_no_prefect() -> None:
    code = "import sys; from flows import Settings; print({'prefect', 'torch', 'transformers'} & set(sys.modules))"
    assert run(code).strip() == "set()"
