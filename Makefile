# `make` alone lists the tasks. Each does all of its own set-up; only Python ≥ 3.11, make and the package registries are needed.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export KUBERNETES
# Some machines set it. Then every process that a test starts would compile Carrel anew.
unexport PYTHONDONTWRITEBYTECODE

ARCH :=

.PHONY: help demo test test-fast check fmt sweep bench bench-e2e e2e testbed image reference walk lock stubs clean

help:  ## List the tasks
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY)  ## Run Carrel on an embedded Kubernetes API with simulated GPUs: who holds what, live
	@$(BIN)/carrel demo

test: $(READY)  ## Run the tests (nothing skipped)
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=10

test-fast: $(READY)  ## Run the tests of pure code and the scenarios, in a minute or so: after each change
	@$(BIN)/python -m pytest -q -n logical --dist worksteal --durations=10 \
		tests/unit packages/*/tests/unit tests/properties tests/scenarios

check: $(READY)  ## Check format, lint, types, imports, that everything is documented, and that unit tests are quick
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && \
		$(BIN)/python -m pytest -q -n logical tests/architecture tests/unit packages/*/tests/unit

fmt: $(READY)  ## Format the code and fix what the linter can
	@$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

sweep: $(READY)  ## Run the fault sweeps with 1,000 seeds each, and 10,000 poisoned objects (some hours)
	@CARREL_SWEEP=1000 CARREL_INPUTS=10000 $(BIN)/python -m pytest -q -n logical --dist worksteal --durations=10 \
		$(wildcard tests/scenarios/test_*sweep.py) tests/scenarios/test_one_poisoned_object.py

bench: $(READY)  ## Run the benchmarks: each figure beside its goal
	@$(BIN)/python -m benchmarks

bench-e2e: $(READY)  ## Measure pods per second through the real kube-scheduler, with Carrel and without (root is not needed; up to 20 minutes)
	@$(BIN)/python -m testbed prepare && $(BIN)/python -m benchmarks.end_to_end --keep

e2e: $(READY)  ## Run the end-to-end tests on a real Kubernetes (root; the first run builds it); KUBERNETES=1.35.4: on that release
	@$(BIN)/python -m testbed prepare && $(BIN)/python -m pytest -n 3 --dist loadfile --durations=10 tests/e2e

testbed: $(READY)  ## Start a real Kubernetes with simulated GPUs to try things
	@$(BIN)/python -m testbed up

image: $(READY)  ## Write Carrel's container image to dist/, without a container engine; ARCH=arm64: for that architecture
	@$(BIN)/python -m tools.image $(if $(ARCH),--architecture $(ARCH))

reference: $(READY)  ## Write docs/reference from the code, the table of the chart's values, and its dashboard
	@$(BIN)/python -m tools.reference && $(BIN)/python -m tools.chart_readme && $(BIN)/python -m tools.dashboard

walk: $(READY)  ## Count the functions and files that run for one pod, stage by stage, beside their goals
	@$(BIN)/python -m tools.walk

lock: $(READY)  ## Write requirements.lock and that of the image from pyproject.toml
	@$(BIN)/python -m pip install --quiet uv && $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --upgrade --group dev pyproject.toml --output-file requirements.lock
	@$(BIN)/uv pip compile --quiet --python-version 3.11.2 --python-platform x86_64-manylinux_2_36 --generate-hashes \
		--no-emit-index-url --no-header --constraint requirements.lock pyproject.toml --output-file tools/image/requirements.lock

stubs: $(READY)  ## Write the gRPC stubs of the kubelet's calls from our .proto files
	@$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src \
		src/carrel/node/kubelet/grpc_stubs/*.proto src/carrel/resource_claims/node/grpc_stubs/*.proto

clean:  ## Remove what the tasks created
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

# Created anew when the lock file or the project's metadata changes, and after a set-up that was interrupted: the stamp is written last.
# --no-deps: the lock is complete, and older pips choose a newer release where a package is needed with extras, then refuse it.
$(READY): requirements.lock pyproject.toml
	@tools/prepare_python $(PYTHON)
	@echo "Setting up $(VENV) …"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
