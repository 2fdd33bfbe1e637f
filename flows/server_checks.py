"""What `aerie doctor` looks at of Prefect: its folder, and the server if there is one."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flows.diagnosis import Check, failed, passed, warned

ANSWER_SECONDS = 5.0


def check_prefect() -> Iterator[Check]:
    """Look at Prefect's folder and ask its server; a folder that is not there is not made."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    above = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    if above.is_dir() and os.access(above, os.W_OK):
        yield passed("Prefect's folder", f"{home}{'' if home.exists() else ', made when needed'}")
    else:
        yield failed("Prefect's folder", f"{home} cannot be written", "set PREFECT_HOME to a folder that can")
    with _home_that_is_there(home):
        yield _check_server()


def _check_server() -> Check:
    from prefect import __version__ as ours  # noqa: PLC0415 - takes a second
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.settings import get_current_settings  # noqa: PLC0415

    url = get_current_settings().api.url
    if url is None:
        return passed("Prefect server", "none is set; each run has a temporary one of its own")
    with get_client(httpx_settings={"timeout": ANSWER_SECONDS}, sync_client=True) as client:
        error = client.api_healthcheck()
        if error is not None:
            reason = str(error).partition("\n")[0] or type(error).__name__
            cure = "start it (aerie server), correct PREFECT_API_URL, or unset it"
            return failed("Prefect server", f"{url} does not answer: {reason}", cure)
        theirs = client.api_version()
    if theirs != ours:
        return warned("Prefect server", f"{url}, version {theirs}; here {ours}", f"run the server with prefect=={ours}")
    return passed("Prefect server", f"{url}, version {theirs}")


@contextlib.contextmanager
def _home_that_is_there(home: Path) -> Iterator[None]:
    """Lend Prefect a folder that goes again, where it has none: it makes one when it is imported."""
    if home.exists():
        yield
        return
    before = os.environ.get("PREFECT_HOME")
    with tempfile.TemporaryDirectory(prefix="aerie-doctor-") as lent:
        os.environ["PREFECT_HOME"] = lent
        try:
            yield
        finally:
            os.environ.pop("PREFECT_HOME")
            if before is not None:
                os.environ["PREFECT_HOME"] = before
