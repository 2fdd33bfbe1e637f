"""What every test stands on: a clean environment, the real model and the tiny ones, and the skip of GPU tests."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tiny_models import ensure_tiny_model

from storage.paths import ObjectPath
from tasks.smollm2 import ensure_smollm2, user_cache

TESTS = Path(__file__).parent

# Of memory, for one of the processes among which `-n auto` deals out the tests, and for the engines that it starts.
WORKER_BYTES = 6 << 30
# Files that take more than half a minute, the longest first: one that is begun last has all other cores wait for it.
# Those that mostly wait are beside some that compute.
LONGEST_FILES = (
    "deployments/test_nodes.py",
    "flows/test_fault_matrix.py",
    "benchmarks/test_drill.py",
    "tasks/engine/test_sglang_engine.py",
    "deployments/test_deaths.py",
    "tasks/engine/test_tensor_parallel.py",
    "deployments/test_pages.py",
    "flows/test_commands.py",
    "benchmarks/test_postgresql.py",
    "flows/test_interruptions.py",
    "tasks/test_engine_process.py",
    "tasks/test_engine_faults.py",
    "test_recipes.py",
    "flows/test_resuming.py",
    "deployments/test_outage.py",
    "deployments/test_secrets.py",
    "tasks/trainer_files/test_consumers.py",
    "storage/test_adapters.py",
    "examples/test_train_eagle3.py",
    "examples/test_speculation.py",
    "examples/test_scripts.py",
    "flows/test_object_storage.py",
    "test_pages.py",
    "test_readme.py",
    "tasks/engine/test_sglang_batches.py",
    "tasks/test_tokenization.py",
    "flows/test_export_commands.py",
    "tasks/trainer_files/test_exporter.py",
    "flows/test_cli.py",
    "test_notebooks.py",
    "flows/test_pipeline.py",
    "benchmarks/test_overhead.py",
    "flows/test_part_runs.py",
    "flows/test_nodes.py",
    "tasks/engine/test_one_by_one.py",
    "tasks/engine/test_canary.py",
    "benchmarks/test_fidelity.py",
    "storage/test_backends.py",
    "storage/test_object_storage.py",
    "storage/test_object_kills.py",
    "test_packaging.py",
    "flows/test_manners.py",
    "flows/test_doctor.py",
    "flows/test_completion.py",
)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which a GPU machine need not have
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes fit the cores and the memory of this machine."""
    import psutil

    return max(1, min(len(os.sched_getaffinity(0)), psutil.virtual_memory().total // WORKER_BYTES))


def pytest_configure(config: pytest.Config) -> None:
    """Make the environment the same for everyone, child processes included, before Prefect or transformers read it."""
    for name in [name for name in os.environ if name.startswith(("AERIE_", "PREFECT_", "AWS_"))]:
        del os.environ[name]
    # A shell without job control has what it starts in the background ignore Ctrl-C, and so what that starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As in an engine process (tasks/engine_process.py): a neighbour on the machine makes spinning threads very slow.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if num_workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        # One of several processes that share the cores, and so do its children. Readline has told it how wide the
        # terminal of the first one is, which would be believed before the terminals that tests make.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // num_workers)))
    os.environ |= {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    # The ephemeral server takes over half a minute to start on two busy cores.
    os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "180"
    # Prefect's console handler keeps a stream that pytest closes before the server is stopped.
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    # The server outlives the last test by a moment and still writes.
    prefect_home = TemporaryDirectory(prefix="aerie-prefect-", ignore_cleanup_errors=True)
    config.add_cleanup(prefect_home.cleanup)
    os.environ["PREFECT_HOME"] = prefect_home.name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let several processes begin with the files that take longest."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST_FILES)}
        items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("needs a GPU: torch.cuda.is_available() is false")


@cache
def has_gpu() -> bool:
    """Tell whether torch sees a GPU; torch is imported only when a GPU test asks."""
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run an object store; the environment says where, to child processes too."""
    from s3_server import run_server

    with run_server(tmp_path_factory.mktemp("swift")) as environment:
        os.environ |= environment
        yield environment


@pytest.fixture
def s3_place(s3_server: dict[str, str]) -> ObjectPath:  # noqa: ARG001 - it runs
    """Return a place for a store in a bucket, where nothing is yet."""
    from s3_server import BUCKET

    return ObjectPath(BUCKET, f"{uuid.uuid4().hex}/store")


@pytest.fixture(scope="session")
def with_server() -> dict[str, str]:
    """Return the variables by which a command uses the server of this process: its own takes seconds to start."""
    from flows.prefect_server import TiedServer

    server = TiedServer()  # which flows in this process use, too
    server.start()
    return {"PREFECT_API_URL": server.api_url}


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, converted once a machine."""
    return ensure_smollm2()


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Return the function from a name in `quantized_models.QUANTIZED_MODELS` to its folder and its twin's."""
    from quantized_models import make_quantized_model

    return cache(lambda name: make_quantized_model(name, user_cache() / "tests", tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Path]:
    """Return the function from a name in `tiny_models.TINY_MODELS` to its folder, made once a machine."""
    return lambda name: ensure_tiny_model(name, user_cache() / "tests")
