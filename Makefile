# make demo   set up and run the first experiment (embedded data, no download)
# make test   set up, then lint, types and tests
# make docs   the documentation site, into out/docs
# make bench  speed and memory as ratios against plain autograd (about 15 minutes; leave the machine alone meanwhile)

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test docs bench clean

demo: $(VENV)/.lab
	$(BIN)/elign toy --seeds 3

test: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

docs: $(VENV)/.installed
	scripts/build-docs

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/align.py
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/nms.py

# Each process would compile torch again (15 s) where this is set and nothing was compiled by the installation.
unexport PYTHONDONTWRITEBYTECODE

# --no-compile: Python compiles what is really imported; compiling all of torch takes a third of the installation.
PIP = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

$(VENV)/.lab: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'elign needs Python 3.11 or newer: make PYTHON=python3.12 ...'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[lab]'
	@touch $@

$(VENV)/.installed: $(VENV)/.lab
	$(PIP) -e '.[lab,dev]'
	@touch $@

clean:
	rm -rf $(VENV) out
