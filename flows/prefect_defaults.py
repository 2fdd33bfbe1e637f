"""Prefect settings that differ from Prefect's defaults; whatever the user has set stays."""

import os
import warnings
from pathlib import Path
from urllib.parse import urlsplit

from flows.errors import SettingsError
from flows.notebook import is_notebook

DEFAULTS = {
    # Nobody is told what is run here.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The temporary server missed Prefect's 20 s on a loaded machine.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # A run whose server is away at its end waits 2 + 4 + ... + 256 s for it, 8 minutes; with Prefect's 5, one minute.
    "PREFECT_CLIENT_MAX_RETRIES": "8",
    # By its heartbeats the server knows that a run is alive (crash_detection); with Prefect's 180 it would know late.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}
_LOOPBACK = ("127.0.0.1", "localhost")


def apply() -> None:
    """Put our defaults into the environment, from which Prefect and the servers that it starts read them."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # A proxy for the outside must not be asked for a server on this machine.
    for name in ("NO_PROXY", "no_proxy"):
        known = [host for host in os.environ.get(name, "").split(",") if host]
        os.environ[name] = ",".join([*known, *(host for host in _LOOPBACK if host not in known)])


def quiet_notebook() -> None:
    """Keep Prefect's log out of a notebook, where bars and a result stand; its server still gets it."""
    if is_notebook():
        quiet_console()
        warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, which transformers brings


def require_prefect() -> None:
    """Refuse what Prefect could not run with, before it is tried.

    Raises:
        SettingsError: with the folder or the server, and the cure.
    """
    require_home()
    require_server()


def require_home() -> None:
    """Refuse a home of Prefect that cannot be written, for which Prefect itself would wait for minutes.

    Raises:
        SettingsError: with the folder and the cure.
    """
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect")
    try:
        home = home.expanduser()
        home.mkdir(parents=True, exist_ok=True)
        writable = os.access(home, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        writable = False
    if not writable:
        raise SettingsError(f"Prefect's folder {home} cannot be written; set PREFECT_HOME to one that can")


def require_server() -> None:
    """Refuse to start where Prefect is told of a server that does not answer.

    Raises:
        SettingsError: with the address, the reason and the cure.
    """
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - as below
    from prefect.settings import get_current_settings  # noqa: PLC0415

    url = get_current_settings().api.url
    if url is None:  # a run then has a server of its own
        return
    error = get_client(sync_client=True).api_healthcheck()
    if error is not None:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise SettingsError(
            f"Prefect's server at {urlsplit(url).hostname} (PREFECT_API_URL) does not answer: {reason}; start it with "
            "prefect server start, or unset PREFECT_API_URL, so that this run has one of its own"
        )


def require_known_server() -> None:
    """Refuse what needs a server that others know, too.

    Raises:
        SettingsError: Prefect is told of none, or as `require_prefect`.
    """
    require_prefect()
    from prefect.settings import get_current_settings  # noqa: PLC0415 - as above

    if get_current_settings().api.url is None:
        raise SettingsError(
            "no Prefect server is known; start one with aerie server, and set PREFECT_API_URL to what it says"
        )


def tie_server() -> None:
    """Have Prefect's temporary server, where there is no other, left alone by Ctrl-C and end with this process."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - the command line often does without prefect

    if get_current_settings().api.url is None:
        from flows.prefect_server import TiedServer  # noqa: PLC0415 - imports Prefect's server, two seconds

        TiedServer()


def quiet_console() -> None:
    """Keep Prefect's log off the terminal, where progress and one-line errors go; its server still gets it."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
