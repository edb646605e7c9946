# Everything starts here; `make` alone lists the commands. Nothing has to be installed by hand first: the
# commands make .venv and fetch what they need, once, and again when pyproject.toml changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# More arguments for the program that runs: make test ARGS="-k lease"
ARGS ?=
# The interpreter to build .venv with; by default the newest one that works.
PYTHON ?=
# Test processes at once. Two per core: many tests wait for processes and clocks more than they compute.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2))

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Three stamps: the empty environment, what users install, and the tools to work on Ropeway as well.
MADE := $(VENV)/.ropeway-made
LIGHT := $(VENV)/.ropeway-light
FULL := $(VENV)/.ropeway-full

.PHONY: help
help: ## This list
	@printf 'Ropeway: durable background jobs for Python.\n\n'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | while IFS= read -r line; do \
	  printf '  make %-10s %s\n' "$${line%%:*}" "$${line##*## }"; done
	@printf '\nARGS="..." is handed on: make test ARGS="-k lease -x"\n'

.PHONY: demo
demo: $(LIGHT) ## See it work: a small run on SQLite, needs no service
	@$(BIN)/ropeway demo $(ARGS)

.PHONY: test
test: $(FULL) ## All tests but the slow ones; gets PostgreSQL, PgBouncer, Chromium, Node and curl if missing
	@$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --maxprocesses 8 $(ARGS)

# Exit code 5 is "no test selected": fine for a set that may be empty, and said aloud. Whoever is done takes tests
# from the others: three of these take minutes each and stand side by side.
.PHONY: test-slow
test-slow: $(FULL) ## The tests that take minutes
	@$(BIN)/python -m pytest -m slow -n $(WORKERS) --maxprocesses 8 --dist worksteal $(ARGS) || { code=$$?; \
	  if [ $$code -eq 5 ]; then echo 'There was no slow test to run.'; else exit $$code; fi; }

.PHONY: lint
lint: $(FULL) ## Check style, types and who imports whom
	@echo 'ruff check'; $(BIN)/ruff check --quiet .
	@echo 'ruff format --check'; $(BIN)/ruff format --quiet --check .
	@echo 'mypy'; $(BIN)/mypy
	@echo 'import-linter'; $(BIN)/lint-imports --no-logo

.PHONY: format
format: $(FULL) ## Put the code into the house style
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

.PHONY: bench
bench: $(FULL) ## Ropeway and its peers side by side, 15 minutes; other measurements: ARGS="--help"
	@$(BIN)/python -m bench $(or $(ARGS),peers --quick --check)

.PHONY: bench-full
bench-full: $(FULL) ## The same at length, for hours: bench/RESULTS.md, results.json and charts; ARGS=--resume goes on
	@$(BIN)/python -m bench peers $(ARGS)
	@$(BIN)/python -m bench growth $(filter --resume,$(ARGS))

.PHONY: chaos
chaos: $(FULL) ## Fault experiments on real processes, ten minutes; one: ARGS="run E01 --engine postgres --seed 7"
	@$(BIN)/python -m chaos $(or $(ARGS),run selection)

.PHONY: setup
setup: $(FULL) ## Make .venv with everything needed to work on Ropeway
	@echo "Ready: $(BIN)/python is $$($(BIN)/python --version), Ropeway is installed in place."

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@PYTHON='$(PYTHON)' devtools/make_venv.sh $(VENV)
	@touch $@

$(LIGHT): pyproject.toml | $(MADE)
	@echo 'Installing Ropeway into $(VENV) (once)'
	@$(PIP) install --editable '.[server]'
	@touch $@

# The pip that comes with Python 3.11 knows no dependency groups; 25.1 does.
$(FULL): pyproject.toml | $(MADE)
	@echo 'Installing Ropeway and its tools into $(VENV) (once, a minute or so)'
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable '.[all]' --group dev
	@touch $(LIGHT) $@
