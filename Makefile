# Targets for people and for CI. Everything a target needs is built on first use into ~/.cache/logkeep (see tests/cluster).
#   make test            set up, lint, every test                 make demo [KEEP=1]   a backup and a restore to watch
#   make test-unit       seconds                                  make test-kafka      with a real broker and S3 server
#   make test-apiserver  with a real Kubernetes API               make test-e2e        on a real node (root)
#   make ledger           producers, killed runs and moved leaders on three brokers: ROUNDS=20 rounds from SEED=0 on
#   make simulate        clusters that lie, runs that die: N=10000 schedules from SEED=0 on, PROCESSES=2 at once; SEED=7 N=1 shows one
#   make bench           speed and memory beside other tools (docs/benchmarks.md); PEER=/path/to/binary puts one beside ours
# ARGS goes to pytest: make test-kafka ARGS='-k fence -x'; of bench to its program: make bench ARGS='--quick --only backup'

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
export PYTHONPATH := operator:engine:.
export KEEP

venv = $(shell tests/cluster/bootstrap.sh)
python = $(if $(venv_path),$(venv_path),$(eval venv_path := $(venv))$(or $(venv_path),$(error bootstrap failed)))/bin/python
ARGS ?=

.PHONY: setup lint format test test-unit test-kafka test-apiserver test-e2e simulate ledger bench demo demo-stop clean

setup:
	$(python) -m tests.cluster.prepare

lint:
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	PATH=$$(dirname $(python)):$$PATH lint-imports

format:
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

# With ARGS it is one pytest; without, every test, in two lanes side by side.
test: setup lint
	$(python) -m $(if $(ARGS),pytest $(ARGS),tests.lanes)

test-unit:
	$(python) -m pytest tests/unit $(ARGS)

test-kafka:
	$(python) -m pytest tests/kafka $(ARGS)

test-apiserver:
	$(python) -m pytest tests/apiserver $(ARGS)

test-e2e:
	$(python) -m pytest tests/e2e $(ARGS)

N ?= 1000
SEED ?= 0
PROCESSES ?= 2
simulate:
	$(python) -m tests.simulation.run --processes $(PROCESSES) $(if $(filter 1,$(N)),--seed $(SEED),--seeds $(N) --first $(SEED)) $(ARGS)

# Real brokers; each round is told by its seed, and a failing one prints its history.
ROUNDS ?= 20
ledger:
	$(python) -m tests.ledger --rounds $(ROUNDS) --seed $(SEED)

# Alone on the machine: everything else that runs is in the figures.
bench:
	$(python) -m bench $(if $(PEER),--peer $(PEER)) $(ARGS)

demo: setup
	$(python) -m tests.demo

# Takes down what `make demo KEEP=1` left up.
demo-stop:
	$(python) -m tests.demo stop

# Ends what killed runs left behind and forgets everything that was built.
clean:
	$(python) -m tests.cluster.prepare --clean
