#!/usr/bin/env bash
# Make .venv ready: `setup.sh cpu` for running, `setup.sh test` for tests and checks too. Nothing to do: a few milliseconds.
#
# A stamp in .venv holds the hash of what it was made from; it is removed first and written last. No stamp, or another
# interpreter: .venv is made anew. Another hash: pip brings .venv up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
log=$venv/pip.log

main() {
  exec 9<requirements/setup.sh
  flock 9 # two makes at once: the second waits, then has nothing to do
  refuse_other_platforms
  forget_other_interpreter
  stage cpu make_runnable requirements/cpu.txt pyproject.toml
  if [ "$1" = test ]; then
    stage test make_testable requirements/cpu.txt pyproject.toml requirements/test.txt
  fi
}

refuse_other_platforms() {
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "error: requirements/cpu.txt is for Linux x86_64, this is $(uname -sm)" >&2
    exit 1
  fi
}

forget_other_interpreter() {
  local ours
  ours=$(interpreter "$venv/bin/python")
  [ -z "${PYTHON:-}" ] || bash requirements/find_python.sh >/dev/null # a slip of the pen must not cost a .venv
  if [ -z "$ours" ] || { [ -n "${PYTHON:-}" ] && [ "$(interpreter "$PYTHON")" != "$ours" ]; }; then
    rm -f "$venv"/ready-*
  fi
}

interpreter() { # PYTHON: what it is, or nothing
  "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null || true
}

stage() { # NAME COMMAND FILE...: run COMMAND unless it ran to its end with these files before
  local stamp=$venv/ready-$1 command=$2 key
  shift 2
  key=$(sha256sum requirements/setup.sh "$@" | sha256sum)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$key" ]; then
    "$command"
    echo "$key" >"$stamp"
  fi
}

make_runnable() {
  if [ ! -f "$venv/ready-cpu" ]; then
    make_venv
  fi
  rm -f "$venv"/ready-*
  install "what Aerie runs with" "$(count requirements/cpu.txt)" -r requirements/cpu.txt
  install "Aerie" 1 --no-build-isolation --editable .
}

make_testable() {
  rm -f "$venv/ready-test"
  # Forced, since an interrupted pip can leave a package that looks whole; these are small.
  install "test tools" "$(count requirements/test.txt)" --force-reinstall -r requirements/test.txt
}

make_venv() {
  local python
  python=$(bash requirements/find_python.sh)
  echo "setup: a new $venv with $("$python" --version); about 4 minutes and 6.3 GB, once"
  rm -rf "$venv"
  "$python" -m venv "$venv"
}

install() { # WHAT NUM_PACKAGES PIP_ARGUMENT...: pip install, its output in the log, a line now and then here
  local what=$1 total=$2 pid
  shift 2
  # Of 25,000 files most are never imported; Python compiles those that are when they are, which takes a minute less.
  "$venv/bin/python" -m pip install --no-input --no-compile --no-deps --disable-pip-version-check "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  trap 'kill '"$pid"' 2>/dev/null' EXIT
  report_progress "$what" "$total" "$pid"
  trap - EXIT
  if ! wait "$pid"; then
    tail -n 15 "$log" >&2
    echo "error: pip could not install $what; its whole output is in $log; the next make begins anew" >&2
    exit 1
  fi
}

report_progress() { # WHAT TOTAL PID
  local since=$SECONDS next=0
  while kill -0 "$3" 2>/dev/null; do
    if ((SECONDS >= next)); then
      echo "setup: $1: $(progress "$2"), $((SECONDS - since)) s"
      next=$((SECONDS + 10))
    fi
    sleep 0.2
  done
}

progress() { # TOTAL
  if grep -qs '^Installing collected' "$log"; then
    echo "unpacking, $(du -sh "$venv" | cut -f1) so far"
  else
    echo "collecting, $(grep -cs '^Collecting' "$log") of $1"
  fi
}

count() { # REQUIREMENTS_FILE
  grep -c '^[^#]' "$1"
}

main "$@"
