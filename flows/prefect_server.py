"""Prefect's temporary server, kept away from Ctrl-C and never left behind.

Prefect starts one where no server is configured: in our process group, so that Ctrl-C ends it before it can take our
last states and the run hangs; and with nothing that ends it when we are killed.
"""

import os
import subprocess
import sys
from typing import Any

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

from tasks.lifeline import watch_parent


class TiedServer(SubprocessASGIServer):
    """The temporary server in a session of its own, which ends when this process does.

    The first instance is the one that Prefect uses: the base class keeps one a port (read in Prefect 3.9.1).
    """

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        marks = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", "flows.prefect_server", str(self.port), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # ours may be read by a program
            start_new_session=True,
            env=os.environ | marks | settings,
        )


def main() -> None:
    """Serve on the port given first, until the process given second ends."""
    import uvicorn  # noqa: PLC0415 - only the server needs it

    port, parent_pid = map(int, sys.argv[1:])
    watch_parent(parent_pid)
    uvicorn.run("prefect.server.api.server:create_app", factory=True, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
