# make demo   the whole path on the bundled model; needs no torch
# make quick  the same without simulation; needs no compiler
# make test   every test but those of a minute or more each
# make test-bare   those, with every optional tool hidden, as on a fresh machine
# make test-rest   what test-bare had to leave out
# make test-long   of those, one of each file
# make test-all    all of those
# make test-changed  those that a change since the commit SINCE can break, the nearest first
# make test-browser  those of the page, in Chromium
# make test-triton  the kernels for GPUs, without a GPU: interpreted, and compiled
# make lint   static checks
# make setup  the virtual environment alone, with everything
# make docs   the documentation as a site, in build/docs; docs-links tries its outside links
# make notebooks  the scripts of examples/ as notebooks, in build/notebooks
# make prove  the array computes what it must, for all inputs, by SAT
# make mutate how many changes of one bit in a netlist the benches of units notice
# make clean  removes build products and the virtual environment

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# See cli/__init__.py.
export OPENBLAS_NUM_THREADS := 1
# Tests at a time; two cores are assumed.
JOBS   ?= 2
SINCE  ?= HEAD
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal
# What the kernels for GPUs and their tests are made of.
TRITON := $(sort $(wildcard model/torch/triton_kernels/*.py tests/test_triton_*.py benchmarks/triton_*.py))
TRITON_SUM = (cat $(TRITON); grep -E '^(torch|triton)==' constraints.txt) | sha256sum
SPHINX := $(BIN)/sphinx-build -q -c docs/site

.PHONY: setup demo quick test test-bare test-rest test-changed test-fast test-long test-all test-browser test-triton triton-passed lint docs docs-links notebooks prove mutate clean python tools
.DEFAULT_GOAL := demo

setup: $(VENV)/.test

demo: $(VENV)/.demo
	$(BIN)/sterna demo -o build/demo

quick: $(VENV)/.quick
	$(BIN)/sterna demo --quick -o build/quick

test: $(VENV)/.test
	$(PYTEST) -m "not long"

test-bare: $(VENV)/.test
	$(PYTEST) --bare -m "not long"

test-rest: $(VENV)/.test
	$(PYTEST) --rest -m "not long"

test-long: $(VENV)/.test
	$(PYTEST) --sample

test-all: $(VENV)/.test
	$(PYTEST) -m long

# One at a time, or each worker would begin with a part of its own.
test-changed: $(VENV)/.test
	$(BIN)/pytest -n $(JOBS) --dist load --maxschedchunk 1 --changed $(SINCE)

test-fast: $(VENV)/.test
	$(PYTEST) -m "not slow and not long"

test-browser: $(VENV)/.test
	$(PYTEST) -m browser

# With the interpreter there is no compiler, so the tests need two processes.
test-triton: $(VENV)/.triton
	TRITON_INTERPRET=1 PYTHONPATH=$(CURDIR)/$(VENV)/triton $(PYTEST) tests/test_triton_kernels.py
	PYTHONPATH=$(CURDIR)/$(VENV)/triton $(PYTEST) tests/test_triton_compile.py
	$(TRITON_SUM) > tests/data/triton.sha256

# Whether test-triton passed with what these files hold now.
triton-passed:
	@$(TRITON_SUM) | cmp -s - tests/data/triton.sha256

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(SPHINX) -W --keep-going . build/docs
	@echo "build/docs/index.html"

docs-links: $(VENV)/.docs
	$(SPHINX) -b linkcheck . build/docs-links

notebooks: $(VENV)/.docs
	$(BIN)/python docs/site/notebooks.py build/notebooks

prove: $(VENV)/.demo
	$(BIN)/python verify/prove.py --jobs $(JOBS)

mutate: $(VENV)/.demo
	$(BIN)/python verify/mutate.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache

# What pip cannot bring. One line says what to install.
tools: python
	@for tool in g++ perl; do command -v $$tool >/dev/null || { \
	  echo "sterna needs $$tool: install it first (Debian and Ubuntu: apt-get install $$tool)" >&2; \
	  exit 2; }; done

python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "sterna needs Python 3.11 or newer: install python3 and python3-venv" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "sterna needs Python 3.11 or newer; $(PYTHON) is older: try make PYTHON=python3.11" >&2; \
	  exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "sterna needs Python's venv: install it first (Debian and Ubuntu: apt-get install python3-venv)" >&2; \
	  exit 2; }

# The stamp comes last, so that an interrupted step is done again.
$(VENV)/.made: | python
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.quick: pyproject.toml setup.py constraints.txt $(VENV)/.made | python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[hw]'
	@touch $@

$(VENV)/.demo: pyproject.toml setup.py constraints.txt $(VENV)/.made | tools
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[hw,sim]'
	@touch $@ $(VENV)/.quick

$(VENV)/.test: pyproject.toml setup.py constraints.txt $(VENV)/.made | tools
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,hw,sim,dev]'
	@touch $@ $(VENV)/.demo $(VENV)/.docs $(VENV)/.quick

# In a folder of its own, where only what asks for it finds it: torch uses Triton if it sees one.
$(VENV)/.triton: $(VENV)/.test
	rm -rf $(VENV)/triton
	$(BIN)/python -m pip install --quiet --no-deps --no-compile -c constraints.txt \
	  --target $(VENV)/triton triton
	@touch $@

# The pages of the API are made by importing every part.
$(VENV)/.docs: pyproject.toml setup.py constraints.txt $(VENV)/.made | tools
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,hw,sim,docs]'
	@touch $@ $(VENV)/.demo $(VENV)/.quick
