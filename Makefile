# Every target sets up what it needs: a virtual environment with pip and the pinned constraints.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test check check-full full docs browser lint types layers doctest bench contest contest-quick papers papers-quick clean

help:
	@echo "make demo        a first result on real data"
	@echo "make test        the test suite"
	@echo "make check       everything a commit must pass (lint, types, layers, doctests, tests)"
	@echo "make check-full  make check, and what is long or needs more"
	@echo "make bench       speed against cross-entropy"
	@echo "make docs        the documentation, in build/docs"
	@echo "make papers      the papers' tables again; papers-quick is a slice of each (both need STEPLESS_DATA)"
	@echo "make contest     our classifiers against the others; contest-quick is a slice (both need STEPLESS_DATA)"

# The stamp is newer than what it was made from, or the environment is brought up to date.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[all,test,lint,bench]"
	touch $@

# What only the long checks need: clusters, a browser, the libraries of some examples, the documentation.
$(VENV)/full: $(VENV)/ready
	$(PIP) --editable ".[full]"
	touch $@

# Any Chromium will do; where there is none and Debian's package can be had, it is installed.
browser:
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)

demo: $(VENV)/ready
	$(BIN)/stepless demo

# One thread a worker: two workers with two threads each wait for one another more than they work.
test: export OMP_NUM_THREADS = 1
test: $(VENV)/ready
	$(BIN)/python -m pytest -m "not full" -n 2

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/ready
	$(BIN)/mypy

layers: $(VENV)/ready
	$(BIN)/lint-imports

doctest: export KERAS_BACKEND = torch
doctest: $(VENV)/ready
	$(BIN)/python -m pytest --doctest-modules src -q --ignore-glob='*/triton_*.py' # these need Triton

check: lint types layers doctest test

full: export OMP_NUM_THREADS = 1
full: $(VENV)/full browser
	$(BIN)/python -m pytest -m full

# The slice of the papers needs the data, and is left out where STEPLESS_DATA does not say where they are.
check-full: check full docs $(if $(STEPLESS_DATA),papers-quick) bench

docs: $(VENV)/full
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

bench: $(VENV)/ready
	$(BIN)/python benchmarks/speed/cpu.py
	$(BIN)/python benchmarks/thresholds/speed.py
	$(BIN)/python benchmarks/ranking/speed.py
	$(BIN)/python benchmarks/estimator/members.py

contest contest-quick: export OMP_NUM_THREADS = 1
contest: $(VENV)/ready
	$(BIN)/python benchmarks/contest/run.py --jobs 2
	$(BIN)/python benchmarks/contest/page.py

contest-quick: $(VENV)/ready
	$(BIN)/python benchmarks/contest/run.py --quick --jobs 2
	$(BIN)/python benchmarks/contest/page.py

papers papers-quick: export OMP_NUM_THREADS = 1
papers: $(VENV)/ready
	$(BIN)/python benchmarks/papers/run.py --workers 2
	$(BIN)/python benchmarks/papers/page.py

papers-quick: $(VENV)/ready
	$(BIN)/python benchmarks/papers/run.py --quick --workers 2

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
