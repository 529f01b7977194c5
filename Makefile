# Every command of the project. `make demo` and `make test` do all the set-up on a fresh machine with Python 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
KERNELS := $(VENV)/.kernels

# What kernels are checked with. It is not part of the package: any torch from 2.4 on will do for users. On a machine
# without a GPU, TORCH="torch --index-url https://download.pytorch.org/whl/cpu" saves gigabytes.
TORCH  ?= torch<2.14
# The table of docs/kernel-triton.md is of Triton 3.7.
TRITON ?= triton<3.8

.PHONY: demo test check lint types docs bench clean

demo: $(READY)          ## explain the bundled traces
	@$(BIN)/sublight demo

test: $(READY)          ## the tests that take seconds
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not heavy"

check: $(KERNELS) lint types   ## what CI runs: lint, types, every test, the examples of the docs
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY)          ## make the pictures and pages that come from the program itself
	$(BIN)/python docs/make_docs.py

bench: $(READY)         ## how to measure our own speed against peers; see bench/README.md
	@cat bench/README.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(KERNELS): $(READY)    # torch and triton: for the tests of kernels, which take minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(findstring <,$(TORCH)),'$(TORCH)',$(TORCH))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,triton]' '$(TRITON)'
	@touch $@
