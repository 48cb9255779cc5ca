# Everything a developer or CI runs. Needs git, make and Python 3.11 or newer with venv.
#
#   make demo     set up, train, serve, query, swap, roll back
#   make test     set up, then the whole test suite
#   make check    style, types, import contracts, generated code
#   make help     all targets
#
# Variables: PYTHON (which interpreter makes the environment), VENV (where it lies),
# TORCH_INDEX (index URL of torch's CPU builds), PIP_ARGS (more arguments for pip),
# PYTEST_ARGS, PYTEST_PROCESSES, SERVE_ARGS, BENCH_ARGS, COMPARE_ARGS, SIMULATE_ARGS,
# ENGINES (which tests of engines run).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(shell command -v python3.11 python3 2>/dev/null))
VENV ?= .venv
TORCH_INDEX ?=
PIP_ARGS ?=
PYTEST_ARGS ?=
# How many processes share the suite. A file's tests stay together, and nothing of them is
# tuned to be alone: PYTEST_PROCESSES=0 runs all in one process, as a debugger wants it.
# Three on two cores, because half of the time a test waits for processes that it started.
PYTEST_PROCESSES ?= 3
SERVE_ARGS ?=
BENCH_ARGS ?=
COMPARE_ARGS ?=
SIMULATE_ARGS ?=
ENGINES ?= postgres or envoy or xds or browser or ray or kubernetes

BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
BENCH_STAMP := $(VENV)/.stamp-bench
ENGINES_STAMP := $(VENV)/.stamp-engines
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PIP_INSTALL = $(PIP) install -c constraints.txt
BENCH_AREAS := batching layered runtime core rpc http swap
# Not part of `make bench`: it sets up other servers and takes up to an hour.
BENCH_APART := peers hosted

.PHONY: help venv demo demo-hosted serve test check format proto pages test-clients \
  test-engines simulate-hosted stress bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@printf '  make %-14s %s\n' 'bench-AREA' 'one of: $(BENCH_AREAS) $(BENCH_APART)'

venv: $(STAMP) ## the environment with everything pinned

# Three steps, because pip resolves no CPU build by itself, and because the packages
# that build ours have to come from constraints.txt too (pip constrains no build
# environment): they are installed first and used without isolation.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no python3 found; set PYTHON=" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than Python 3.11; set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/python || echo "==> creating $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "make: cannot make $(VENV); is python3-venv installed?" >&2; exit 1; }
	@echo "==> installing torch (CPU build where pip finds one)"
	@$(PIP_INSTALL) --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(PIP_ARGS) torch
	@echo "==> installing the pinned dependencies"
	@$(PIP_INSTALL) $(PIP_ARGS) hatchling editables
	@$(PIP_INSTALL) $(PIP_ARGS) --no-build-isolation -e '.[dev,demo]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	@echo "==> installing what only benchmarks need"
	@$(PIP_INSTALL) $(PIP_ARGS) --no-build-isolation -e '.[dev,demo,bench]'
	@touch $@

demo: $(STAMP) ## train on real digits, serve, query, swap under load, roll back
	@$(BIN)/python deploy/demo/main.py

demo-hosted: $(STAMP) ## a fleet of three servers under load: one killed, versions changed
	@$(BIN)/python deploy/demo/hosted.py

serve: $(STAMP) ## run a server: make serve SERVE_ARGS="--model_name=... --model_base_path=..."
	@$(BIN)/python -m tfs serve $(SERVE_ARGS)

# Bytecode is kept, whatever the environment says: half of what it takes to collect the tests
# is to compile them, in each process, and the servers that tests start are compiled as well.
test: $(STAMP) ## the whole suite, without the stress tests
	@echo "==> pytest"
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q \
	  --numprocesses=$(PYTEST_PROCESSES) --dist=loadfile --no-loadscope-reorder \
	  $(PYTEST_ARGS)

check: $(STAMP) ## style, types, import contracts, generated code
	@echo "==> ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@echo "==> mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "==> import contracts"
	@PYTHONPATH=. $(BIN)/lint-imports --no-logo
	@echo "==> generated code"
	@$(BIN)/python protos/generate.py --check

format: $(STAMP) ## let ruff rewrite what it can
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format .

proto: $(STAMP) ## regenerate tfs/proto from protos/
	@$(BIN)/python protos/generate.py

pages: $(STAMP) ## reprint the pages of docs/ that are printed from code
	@$(BIN)/python -m tests.cli.flags_page
	@$(BIN)/python -m tests.core.metrics_page
	@$(BIN)/python -m tests.managers.lifecycle_page
	@$(BIN)/python -m tests.frontends.features

test-clients: $(STAMP) ## clients that are not ours (pip, npm, curl, h2load), and every recipe of the docs
	@$(BIN)/python tests/clients/run.py
	@echo "==> the recipes of docs/recipes.md"
	@TFS_RECIPES=required $(BIN)/python -m pytest -q -rs tests/e2e/test_recipes.py

$(ENGINES_STAMP): $(STAMP)
	@echo "==> installing the engines' packages"
	@$(PIP_INSTALL) $(PIP_ARGS) --no-build-isolation -e '.[dev,demo,engines]'
	@# xds-protos has an old copy of it.
	@$(PIP_INSTALL) $(PIP_ARGS) --force-reinstall --no-deps opentelemetry-proto
	@touch $@

test-engines: $(ENGINES_STAMP) ## fleets on PostgreSQL, Envoy, Ray and Kubernetes, the page in Chromium (.ci/engines)
	@echo "==> pytest with engines"
	@TFS_ENGINES=required $(BIN)/python -m pytest -q tests/hosted \
	  tests/e2e/test_page_in_browser.py -k "$(ENGINES)" $(PYTEST_ARGS)

simulate-hosted: $(STAMP) ## ten thousand models on a thousand nodes in virtual time, in ten minutes
	@$(BIN)/python -m tests.hosted.simulation $(SIMULATE_ARGS)

stress: $(STAMP) ## the tests that hammer one mechanism: half an hour on two cores
	@echo "==> pytest -m stress, about half an hour on two cores; each test is told as it ends"
	@$(BIN)/python -m pytest -v -m stress --durations=15 \
	  --numprocesses=$(PYTEST_PROCESSES) --dist=loadfile $(PYTEST_ARGS)

bench: $(BENCH_AREAS:%=bench-%) ## every benchmark area, into bench-results/

bench-%:
	@test -n "$(filter $*,$(BENCH_AREAS) $(BENCH_APART))" || \
	  { echo "make: no benchmark area $*; one of: $(BENCH_AREAS) $(BENCH_APART)" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(BENCH_STAMP)
	@TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/python -m tests.benchmarks.$(subst -,_,$*) $(BENCH_ARGS)

clean: ## remove what these targets made, the environment included
	@rm -rf $(VENV) .tools bench-results build dist demo-models
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
