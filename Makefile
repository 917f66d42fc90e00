# Every target sets up what it needs: a virtual environment with pip and the pinned constraints.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test check check-full lint types layers doctest bench contest contest-quick clean

help:
	@echo "make demo        a first result on real data"
	@echo "make test        the test suite"
	@echo "make check       everything a commit must pass (lint, types, layers, doctests, tests)"
	@echo "make check-full  make check, and what is long or needs more"
	@echo "make bench       speed against cross-entropy"
	@echo "make contest     our classifiers against the others; contest-quick is a slice (both need STEPLESS_DATA)"

# The stamp is newer than what it was made from, or the environment is brought up to date.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[all,test,lint,bench]"
	touch $@

demo: $(VENV)/ready
	$(BIN)/python examples/first_result.py

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

doctest: $(VENV)/ready
	$(BIN)/python -m pytest --doctest-modules src -q --ignore-glob='*/triton_*.py' # these need Triton

check: lint types layers doctest test

check-full: check
	$(BIN)/python -m pytest -m full
	$(MAKE) bench

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

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
