# Two commands do everything on a machine with python3 (3.11 or later), a C++17 compiler and make:
#
#   make demo    set up, build ggml, generate, compile and run the embedded target and drafter
#   make test    the same set-up, then the tests
#
# Both may be run again at any time; what is done already is not done again.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test gold lint setup ggml clean

demo: ggml
	@$(BIN)/draftsmith demo

test: ggml
	@$(BIN)/python -m pytest

# every recorded case of the reference data beside the project; the tests replay one of each kind
gold: ggml
	@$(BIN)/python -m tests.gold $(or $(GOLD),../shared/gold ../shared/models)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/python tools/typecheck.py

ggml: setup
	@$(BIN)/draftsmith ggml build

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "draftsmith needs Python 3.11 or later, $(PYTHON) is %d.%d (make PYTHON=python3.12 ...)" % v[:2])'
	@echo "== Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .typecheck *.egg-info
