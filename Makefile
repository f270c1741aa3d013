# `make demo` and `make test` need Python >= 3.11 with pip, and nothing else: they make .venv themselves.
#   PYTHON=python3.12   the interpreter that .venv is made from
#   ARGS="-k tree"      handed on to pytest, the demo or the benchmarks
#   JOBS=2              test processes

PYTHON ?= python3
ARGS   ?=
JOBS   ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
DOCS  := $(VENV)/.ready-docs
PIP   := $(BIN)/python -m pip --disable-pip-version-check

# torch is asked for by its exact version on the command line: a range would let pip choose another build.
TORCH   := $(shell sed -n 's/^\(torch==[0-9.]*\).*/\1/p' constraints.txt)
# Modules are compiled when they are first imported: most of what comes never is. What was compiled is kept, whatever the
# environment says; else every process would compile PyTorch anew.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(PIP) install -qq --no-compile -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-all mutants check bench docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

install: $(READY) ## Make .venv with catnat, all its extras and what the tests need

demo: $(READY) ## Softmax and catnat in two trainings with discrete latents; it writes into demo-output/
	$(BIN)/catnat demo $(ARGS)

# mypy has one core for most of a minute, so the tests begin beside it. A file goes to one process as a whole: what it compiles
# is then compiled once.
test: $(READY) ## Lint, check types and run every test that is not slow
	$(BIN)/ruff check
	@echo "$(BIN)/mypy & $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)"
	@$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS); tests=$$?; \
	wait $$types && exit $$tests

test-all: $(READY) ## Run every test, the slow ones too
	$(BIN)/python -m pytest -n $(JOBS) -m "" $(ARGS)

mutants: $(READY) ## See whether the tests catch faults made by hand; ARGS="--only triton" for some
	$(BIN)/python tests/mutants/run.py $(ARGS)

check: $(READY) ## Lint, check the formatting and the types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(READY) ## Run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(DOCS) ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W docs docs/_build/html

clean: ## Remove everything that make has made, .venv too
	rm -rf $(VENV) demo-output build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks docs examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Some systems ship Python without ensurepip; there the interpreter's own pip fills the environment. An old pip takes twice
# as long for the rest.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: catnat needs Python >= 3.11, and '$(PYTHON)' is $$(command -v $(PYTHON) >/dev/null && $(PYTHON) -V 2>&1 || echo 'not found'); try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	  $(PYTHON) -m venv $(VENV); \
	else \
	  $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install -qq pip; \
	fi
	@$(INSTALL) --upgrade pip

$(READY): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Setting up $(VENV) (some minutes the first time) ..."
	@$(INSTALL) $(TORCH) -e '.[torch,jax,lab,dev]'
	@touch $@

# The API pages import both backends; of the rest the documentation needs nothing.
$(DOCS): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing the documentation tools ..."
	@$(INSTALL) $(TORCH) -e '.[torch,jax,docs]'
	@touch $@
