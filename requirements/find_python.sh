#!/usr/bin/env bash
# Print the Python that .venv is made with: $PYTHON if given, else the first of python3.12, python3.11 and python3 that
# runs, is 3.11 or 3.12, and can make a virtual environment.
set -euo pipefail

fits() {
  # Run, not looked up: a pyenv shim exists for versions that are not selected, and fails.
  "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' >/dev/null 2>&1
}

candidates=${PYTHON:-python3.12 python3.11 python3}
for python in $candidates; do
  if fits "$python"; then
    echo "$python"
    exit 0
  fi
done
echo "error: Aerie needs Python 3.11 or 3.12 with venv; tried: $candidates;" \
  "install one (Debian: python3-venv too), or name it: make PYTHON=/path/to/python3.12" >&2
exit 1
