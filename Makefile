# All targets for developers and CI; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Without the development extras, and with those of the documentation alone.
RUNNABLE := $(VENV)/.runnable
DOCUMENTABLE := $(VENV)/.documentable
# A test process that dies fails the run at once: xdist 3.8.0 waits for ever for the tests of one that it replaced
# (pytest-xdist issues 1323, 1327).
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --max-worker-restart=0 --durations=20 --durations-min=5
# `$(call limited,TIME)` ends a run that hangs, after LIMIT if it is set: SIGABRT makes Python print the stacks. In CI it
# goes to all processes of the run; elsewhere to the first one alone, so that a terminal's Ctrl-C reaches all.
limited = timeout $(if $(CI),,--foreground) --signal=ABRT --kill-after=30 $(or $(LIMIT),$(1))
# What `make gpu-bundle` gets: the machine has torch, NumPy and pytest.
GPU_PACKAGES := ale-py farama-notifications gymnasium hoptorch hydra-core hydra-submitit-launcher importlib_metadata \
	omegaconf orjson pyvers submitit tensordict torchrl
# The folder of the documentation's site; what it contained is deleted.
SITE ?= site
# Environments of `make bench-peers` (`make bench-replay` has one more), and packages whose own requirements exclude the
# versions in constraints.txt.
PEERS := gymnasium sb3 sample_factory rllib pufferlib
without_deps_sample_factory := sample-factory==2.1.1 numpy==1.26.4
without_deps_pufferlib := pufferlib-core==3.0.23
# More arguments for pytest, as in `make test ARGS="-k replay"`.
ARGS ?=

# A pipe fails with its first command.
SHELL := bash
.SHELLFLAGS := -o pipefail -c

# Otherwise every test process would compile the sources.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run config test test-ci test-nightly test-slurm test-gpu gpu-bundle bench bench-compare bench-peers bench-replay learning docs check format clean

help:  ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A newer pip installs twice as fast as Python 3.11's own.
define venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --upgrade pip $(if $(TORCH_BACKEND),uv)
endef

export UNREACHED := If uv found no host of PyTorch's builds, as behind a mirror of PyPI, type: make $(MAKECMDGOALS) (PyPI's own PyTorch is the one with CUDA, several GB)
export UNREACHED_CPU := No host of PyTorch's builds answers, but pip has a PyTorch without CUDA: installing that one

# uv has the indexes of PyTorch's builds: TORCH_BACKEND=cpu is the one without CUDA. A mirror of PyPI may be all that a machine
# reaches. There pip serves too, if the PyTorch that it finds does not require NVIDIA's packages.
pip_has_cpu = ! UV_HTTP_RETRIES=0 VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --dry-run --torch-backend cpu \
		--constraint constraints.txt torch 2>/dev/null \
	&& found=$$($(BIN)/pip install --quiet --dry-run --no-deps --report - --constraint constraints.txt torch 2>/dev/null) \
	&& ! grep --quiet '"nvidia' <<< "$$found" && echo "$$UNREACHED_CPU"

# `$(call installed,OPTIONS)`. Of some hundred lines of pip, large downloads and lost connections are shown, and all if it
# fails. pip compiles on one core; `compileall` fails for templates that are no Python.
define installed
	@$(or $(if $(TORCH_BACKEND),,true),$(if $(filter cpu,$(TORCH_BACKEND)),$(pip_has_cpu)),false) \
		&& serves=pip || serves=uv; \
	if [ $$serves = pip ]; then \
		$(BIN)/pip install --no-compile --constraint constraints.txt --editable $(1) 2>&1 | tee $(VENV)/pip.log \
			| { grep --line-buffered -E 'Downloading .*[0-9]{2}\.[0-9] MB|Retrying' || true; } || { cat $(VENV)/pip.log; exit 1; }; \
	else \
		VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --torch-backend $(TORCH_BACKEND) --constraint constraints.txt --editable $(1) \
			|| { echo "$$UNREACHED"; exit 1; }; \
	fi
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib 2>/dev/null || true
endef

install: $(INSTALLED)  ## Create .venv with pinned versions and install collectx, all extras and the development tools

$(INSTALLED): pyproject.toml constraints.txt
	$(venv)
	@echo "Installing collectx, all extras and the development tools: 3 GB or more, some minutes"
	$(call installed,".[dev]")
	@touch $(RUNNABLE) $(DOCUMENTABLE) $@

$(RUNNABLE): pyproject.toml constraints.txt
	$(venv)
	@echo "Installing collectx and PyTorch in $(VENV): about a minute, more with a slow network"
	$(call installed,.)
	@touch $@

$(DOCUMENTABLE): pyproject.toml constraints.txt
	$(venv)
	@echo "Installing collectx, PyTorch and MkDocs in $(VENV): about a minute, more with a slow network"
	$(call installed,".[docs]")
	@touch $(RUNNABLE) $@

run: $(RUNNABLE)  ## Run the main job: PPO on CartPole-v1, two synchronous local workers
	$(BIN)/collectx run experiment=cartpole_ppo

test: install  ## Run the fast tests; ARGS="-k NAME" for some of them
	$(call limited,20m) $(PYTEST) $(ARGS)

test-ci: install  ## Run the additional tests of CI, also on a real SLURM of four nodes (as root, by apt-get)
	$(call limited,50m) $(PYTEST) --tier=ci $(ARGS)

test-nightly: install  ## Run all other tests: long ones, mutation tests, other installations (hours)
	$(call limited,4h) $(PYTEST) --tier=nightly $(ARGS)
	$(BIN)/python tests/mutants.py
	$(BIN)/python tests/installs.py

test-slurm: install  ## Run all tests on a real SLURM
	$(call limited,4h) $(BIN)/python -m pytest --tier=all tests/slurm $(ARGS)

test-gpu: install  ## Run the tests that need a GPU; DEVICE=cpu rehearses them
	COLLECTX_TEST_DEVICE=$(or $(DEVICE),cuda) $(BIN)/python -m pytest --tier=all tests/contract/test_on_gpu.py

gpu-bundle: install  ## Get into gpu-bundle/ what a GPU machine without network lacks; there: benchmarks/gpu.sh RESULTS
	rm -rf gpu-bundle build
	$(BIN)/pip download --quiet --constraint constraints.txt --no-deps --only-binary=:all: --implementation cp \
		--python-version 3.12 $(addprefix --platform manylinux_2_,28_x86_64 27_x86_64 24_x86_64 17_x86_64) \
		--dest gpu-bundle $(GPU_PACKAGES)
	$(BIN)/pip wheel --quiet --constraint constraints.txt --no-deps --wheel-dir gpu-bundle antlr4-python3-runtime .

bench: install  ## Benchmark against the bare loop and TorchRL (ten minutes), and rewrite the tables of the documentation
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.tables

bench-compare: install  ## Compare the speed with that of the revision REV; ARGS="--only CASE" for some cases
	$(BIN)/python -m benchmarks.compare $(REV) $(ARGS)

bench-peers: install $(PEERS:%=.bench/%/.installed)  ## Compare with other libraries, which get environments in .bench/
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-replay: install .bench/cpprb/.installed  ## Compare replay buffers with those of other libraries (three minutes)
	$(BIN)/python -m benchmarks.replay $(ARGS)

# A peer that cannot be installed is left out.
.bench/%/.installed: benchmarks/peers/%.txt constraints.txt
	@echo "Installing $* in .bench/$*: with torch 2 GB or more, some minutes"
	$(PYTHON) -m venv .bench/$*
	-.bench/$*/bin/pip install --quiet --constraint constraints.txt --requirement $< \
		$(if $(without_deps_$*),&& .bench/$*/bin/pip install --quiet --no-deps $(without_deps_$*)) && touch $@

learning: install  ## Train the learning curves of the documentation, five seeds each (nights); ARGS="--only CASE" for some
	$(BIN)/python -m benchmarks.learning $(ARGS)
	$(BIN)/python -m benchmarks.tables

docs: $(DOCUMENTABLE)  ## Build the site of the documentation in SITE (site/), with warnings as errors
	@# With --quiet, warnings would be no errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --site-dir $(SITE)
	@echo "Open $(SITE)/index.html in a browser"

config: install  ## Write the options in conf/ from the dataclasses, and the tables of docs/reference/combinations.md from the rules
	$(BIN)/python .ci/conf.py
	$(BIN)/python .ci/places.py

check: install  ## Lint, formatting, style, types, conf/, generated tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/style.py
	$(BIN)/mypy
	$(BIN)/python .ci/conf.py --check
	$(BIN)/python .ci/places.py --check
	$(BIN)/python -m benchmarks.tables --check

format: install  ## Format, and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the virtual environment and caches
	rm -rf .venv .bench .pytest_cache .mypy_cache .ruff_cache
