# `make run` and `make test` set up .venv/ by themselves, and only when something changed.

PYTHON   ?= $(shell command -v python3.11 || command -v python3)
MANIFEST ?= manifests/job.yaml
NPROC    ?= 1
ARGS     ?=
FAULTS   ?= 200
LISTS    ?= 20000
MANIFESTS?= 100000
RENDERS  ?= 500
SEED     ?= 1
BIN      := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-models models-table test-engines test-cluster chaos fuzz moves audit check style docs clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/runner  ## make the images of MANIFEST with NPROC processes
ifeq ($(NPROC),1)
	@$(BIN)/python -m runner $(MANIFEST) $(ARGS)
else
	@$(BIN)/torchrun --standalone --nproc-per-node $(NPROC) -m runner $(MANIFEST) $(ARGS)
endif

test: .venv/dev  ## all tests that need no extra service
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not gpu and not cluster and not engines and not models and not slow" $(ARGS)

test-slow: .venv/dev  ## tests of half a minute and more
	$(BIN)/python -m pytest -n 2 -m slow $(ARGS)

test-models: .venv/dev  ## every pipeline class, scheduler and strategy beside plain diffusers
	$(BIN)/python -m pytest -n 2 tests/models $(ARGS)

models-table: .venv/dev  ## write down what those tests find: runner/model/proven.json, docs/models.md
	$(BIN)/python tests/models/table.py $(ARGS)

test-engines: .venv-engines/dev  ## tests with the real xfuser and para-attn, in a .venv of their own
	.venv-engines/bin/python -m pytest -m "engines and not gpu" $(ARGS)

test-cluster: .venv/dev  ## tests on a real Slurm, network namespaces, disks; as root, on Debian or Ubuntu
	@tests/support/install.sh $@ slurmctld=slurm-wlm munged=munge ip=iproute2 \
		mkfs.btrfs=btrfs-progs fusermount3=fuse3
	$(BIN)/python -m pytest -m cluster -n 4 --dist worksteal tests/cluster/test_slurm.py tests $(ARGS)

moves: .venv/dev  ## kill runs while they move 1,000 finished images to new places in the list
	PYTHONPATH=tests $(BIN)/python tests/support/moving.py --seed $(SEED) $(ARGS)

chaos: .venv/dev  ## FAULTS random faults in a row, from SEED
	$(BIN)/python tests/chaos.py --faults $(FAULTS) --seed $(SEED)

fuzz: .venv/dev  ## MANIFESTS random manifests, RENDERS of them made, and LISTS odd lists, from SEED
	$(BIN)/python tests/fuzz_lists.py --files $(LISTS) --seed $(SEED)
	$(BIN)/python tests/fuzz.py --manifests $(MANIFESTS) --renders $(RENDERS) --seed $(SEED)

audit: .venv/dev  ## known weaknesses of what is installed
	$(BIN)/python -m pip install -q pip-audit
	$(BIN)/python -m pip_audit --skip-editable

check: .venv/dev  ## lint, format and types, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

style: .venv/dev  ## mend what `check` can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev  ## run the commands in the documents, write down what they print
	$(BIN)/python docs/keys.py
	$(BIN)/python docs/commands.py

clean:  ## remove .venv/ and caches
	rm -rf .venv .venv-engines build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/runner: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

.venv/dev: .venv/runner
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

.venv-engines/dev: pyproject.toml constraints.txt
	@test -x .venv-engines/bin/python || $(PYTHON) -m venv .venv-engines
	.venv-engines/bin/python -m pip install -q -c constraints.txt -e '.[dev,xdit,para-attn]'
	@touch $@
