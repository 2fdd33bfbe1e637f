"""The command `aerie` with the engines of tests/faulty_worker.py."""

import sys

from flows.cli import main
from tasks.engine_process import EngineProcess

if __name__ == "__main__":
    EngineProcess.MODULE = "faulty_worker"
    sys.exit(main())
