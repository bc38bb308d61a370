# Two commands do everything on a machine with python3, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
SECONDS ?= 60

# What needs no framework and no waiting: the pure rooms, the walkers, the decoders, the engine.
FAST := tests/sampling tests/decoding tests/formats tests/reading tests/engine tests/test_*.py \
	tests/loader/test_options.py tests/loader/test_row_plan.py tests/measure/test_runs.py \
	tests/measure/test_verdict.py tests/catalog/test_splits.py tests/catalog/test_table.py

.PHONY: help demo test test-fast check docs fuzz bench clean

help:
	@echo "make demo       generate 29 datasets, index them, look at them: no GPU, no TensorFlow, no torch"
	@echo "make test       the whole test suite (installs TensorFlow Datasets to compare with)"
	@echo "make test-fast  the pure and small tests, in under a minute, without TensorFlow and torch"
	@echo "make check      ruff and mypy"
	@echo "make docs       the docs as a site, in site/"
	@echo "make fuzz       coverage-guided fuzzing of the wire walker for SECONDS=$(SECONDS)"
	@echo "make bench      the index benchmark (benchmarks/index.py)"
	@echo "make clean      remove .venv and the demo's data"

# Stamps: each is one layer of the environment and is renewed when pyproject.toml changes.
$(VENV)/.core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	touch $@

$(VENV)/.plots: $(VENV)/.core
	$(PIP) install -e '.[plots]'
	touch $@

$(VENV)/.dev: $(VENV)/.core constraints-dev.txt
	$(PIP) install -c constraints-dev.txt hypothesis mypy pytest pytest-xdist ruff
	touch $@

$(VENV)/.tf: $(VENV)/.dev
	$(PIP) install -c constraints-dev.txt -e '.[jax,plots,tf,train,tune]' importlib_resources grain array-record webdataset
	touch $@

$(VENV)/.docs: $(VENV)/.core constraints-dev.txt
	$(PIP) install -c constraints-dev.txt -e '.[docs]'
	touch $@

demo: $(VENV)/.plots
	PATH="$(BIN):$$PATH" sh docs/demo.sh

test: $(VENV)/.tf
	$(BIN)/python -m pytest -m 'not alone' -n 2 --dist worksteal
	$(BIN)/python -m pytest -m alone

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 -m 'not tfds' $(FAST)

check: $(VENV)/.tf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The variable leaves out the theme's notice about MkDocs 2, which is not a warning about these pages.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html; to search as well: python3 -m http.server --directory site"

fuzz: $(VENV)/.dev
	$(PIP) install atheris
	$(BIN)/python tests/formats/fuzz_example.py -max_total_time=$(SECONDS)

bench: $(VENV)/.tf
	$(BIN)/python benchmarks/index.py

clean:
	rm -rf $(VENV) demo build site src/*.egg-info
