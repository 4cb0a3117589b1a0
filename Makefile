# Two commands set everything up on a fresh machine: make demo, make test.
# PYTHON is any Python 3.10 or newer; all that is installed goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
SERVE_PORT ?= 4200
NIGHTLY ?=
.PHONY: help install demo serve stop automations test test-slow lint schema clean

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python 3.10 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

install: $(STAMP) ## Make .venv and install into it

demo: $(STAMP) ## Find the planted fault of profiles/demo.yaml
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python .ci/demo.py

serve: $(STAMP) ## Start a server with its page, a worker and the deployments (SERVE_PORT, NIGHTLY="a.yaml b.yaml")
	@$(BIN)/python -m flows.station start --port $(SERVE_PORT) --nightly "$(NIGHTLY)"

stop: $(STAMP) ## End what make serve started
	@$(BIN)/python -m flows.station stop

automations: $(STAMP) ## Notify of bad nights and try crashed checks again, on the server of make serve
	@$(BIN)/python -m flows.automations --port $(SERVE_PORT)

test: $(STAMP) lint ## Lint, types and the tests that take minutes
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist worksteal

test-slow: $(STAMP) ## The long tests
	$(BIN)/python -m pytest -m slow --numprocesses 2 --dist worksteal

lint: $(STAMP) ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

schema: $(STAMP) ## Write the profiles' JSON schema anew
	$(BIN)/python -m probe.config

clean: ## Remove what make made
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
