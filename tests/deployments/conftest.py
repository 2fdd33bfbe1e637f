"""A real Prefect server for the tests of this folder."""

from collections.abc import Iterator

import pytest
from prefect_servers import PrefectServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """Run `aerie server`."""
    with running_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server
