# All targets for developers and CI; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --durations=20 --durations-min=5

# Otherwise every test process would compile the sources.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run test test-ci test-nightly test-slurm test-gpu bench check format clean

help:  ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## Create .venv with pinned versions and install collectx

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

run: install  ## Run the main job: PPO on CartPole-v1, two synchronous local workers
	$(BIN)/collectx run experiment=cartpole_ppo

test: install  ## Run the fast tests (a minute)
	$(PYTEST)

test-ci: install  ## Run the additional tests of CI, also on a real SLURM of three nodes (as root, by apt-get)
	$(PYTEST) --tier=ci

test-nightly: install  ## Run all other tests: long ones, mutation tests, other installations (hours)
	$(PYTEST) --tier=nightly
	$(BIN)/python tests/mutants.py --whole
	$(BIN)/python tests/installs.py

test-slurm: install  ## Run all tests on a real SLURM
	$(BIN)/python -m pytest --tier=all tests/slurm

test-gpu: install  ## Run the tests that need a GPU
	$(BIN)/python -m pytest --tier=all tests/contract/test_on_gpu.py

bench: install  ## Benchmark against the bare loop and TorchRL (about half an hour)
	$(BIN)/python -m benchmarks

check: install  ## Lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## Format, and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
