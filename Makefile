# The two commands are `make train` and `make test`. Both set up .venv first; all of it can be repeated.
VENV        ?= .venv
PYTHON      ?= python3
TORCH       ?= torch==2.13.0
TORCH_INDEX ?=
ARGS        ?=
PYTEST_ARGS ?= -n 2

export TORCH TORCH_INDEX VENV PYTHON

.PHONY: setup train test test-full lint clean

setup:
	@scripts/setup.sh

train: setup
	$(VENV)/bin/python -m agentrl_trainer.run $(ARGS)

test: setup
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VENV)/bin/python -m pytest -m "not full" $(PYTEST_ARGS)

# What is too long for every change: whole replays, big builds, long runs.
test-full: setup
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VENV)/bin/python -m pytest --timeout 3600 $(PYTEST_ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache
