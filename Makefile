# demo: the whole flow on a real model and real chats, no GPU needed.   test: all tests.   check: style, types, import rules.
# Each makes .venv first when it is missing or out of date (requirements/setup.sh). Another Python: make PYTHON=... TARGET.

.PHONY: demo test check screenshots setup setup-test
export PYTHON
# A process a core, memory permitting, each with whole files, the longest first (tests/conftest.py). In one: make test IN_PARALLEL=
IN_PARALLEL = -n auto --dist loadfile --no-loadscope-reorder

demo: setup
	@.venv/bin/aerie demo

test: setup-test
	@.venv/bin/python -m pytest $(IN_PARALLEL)

check: setup-test
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

# For docs/: of Prefect's pages, of the command line, and of report.html; needs Debian's chromium.
screenshots: setup-test
	SCREENSHOTS=docs/images .venv/bin/python -m pytest tests/deployments/test_pages.py --basetemp=/tmp/aerie
	.venv/bin/python tests/screenshots.py docs/images

setup:
	@bash requirements/setup.sh cpu

setup-test:
	@bash requirements/setup.sh test
