# Targets for people and for CI; `make help` lists them. What a target needs is built on first use into ~/.cache/logkeep
# (tests/cluster). ARGS goes to pytest, as in make test-kafka ARGS='-k fence -x'. The target bench gives ARGS to its own
# program: make bench ARGS='--quick --only backup'

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
export PYTHONPATH := operator:engine:.:kernel/built
export KEEP
# The tests' servers and commands in Go (a Kubernetes API, etcd, S3, kubectl) collect garbage when they have so much
# memory, and not when it is twice what is in use: the machine has more memory than processors.
export GOGC ?= off
export GOMEMLIMIT ?= 700MiB
# Hundreds of processes of the tests import the code: it is compiled once, also where the machine asks for no bytecode.
unexport PYTHONDONTWRITEBYTECODE

venv = $(shell tests/cluster/bootstrap.sh $(BOOTSTRAP))
python = $(if $(venv_path),$(venv_path),$(eval venv_path := $(venv))$(or $(venv_path),$(error bootstrap failed)))/bin/python
ARGS ?=

.PHONY: help setup check test-near lint kernel-arm64 format test test-deep test-unit test-kafka test-apiserver test-e2e simulate \
  histories ledger bench demo demo-stop docs changelog wheel release publish chart crds lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r name does; do \
	  printf '  make %-15s %s\n' "$$name" "$$does"; done

setup:  ## build all parts that the tests need, ahead of them
	$(python) -m tests.cluster.prepare

# This takes less than a minute when mypy's cache is warm, and says how long it took. Lanes and CI do not use it.
check: began := $(shell date +%s)
check:  ## lint, types and unit tests of a package: make check P=archive
	@$(python) -m tests.near $(P) >/dev/null
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	tests/cluster/tool.sh mypy
	tests/cluster/rust.sh cargo fmt --check
	$(python) -m pytest -q $$($(python) -m tests.near $(P)) $(ARGS)
	@echo "make check P=$(P): $$(($$(date +%s) - $(began))) s"

test-near: check  ## check, then the package's tests with real parts: make test-near P=restore
	files=$$($(python) -m tests.near $(P) --parts); [[ -z $$files ]] || $(python) -m pytest $$files $(ARGS)

lint:  ## ruff, mypy, the import rules, rustfmt and clippy, over everything; the fuzzers compile
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	tests/cluster/tool.sh mypy
	PATH=$$(dirname $(python)):$$PATH lint-imports
	tests/cluster/rust.sh cargo fmt --check
	if tests/cluster/rust.sh cargo clippy --version &>/dev/null; then \
	  tests/cluster/rust.sh cargo clippy --quiet --locked --all-targets; fi
	tests/cluster/rust.sh cargo fmt --check --manifest-path fuzz/Cargo.toml
	tests/cluster/rust.sh cargo check --quiet --locked --manifest-path fuzz/Cargo.toml --no-default-features

# Debian 12 on x86; the first time it fetches 180 MB of compilers.
kernel-arm64:  ## see the kernel compile for arm64 (nothing is linked or run)
	$(python) -m tests.cluster.arm64

format:  ## let ruff and rustfmt mend what they can
	$(python) -m ruff check --fix .
	$(python) -m ruff format .
	tests/cluster/rust.sh cargo fmt

# With ARGS this is one pytest. Without, it runs every test, in lanes side by side. Each lane's output and the duration
# of each test are in test-logs/. RECORD=1 keeps the durations in tests/durations.json, by which lanes choose what they
# take next. With AGAIN=1, as CI has it, one or two tests with real parts that failed run a second time, alone.
LANES ?= 5
RECORD ?=
AGAIN ?=
test: setup lint  ## set up, lint, every test: LANES=5 side by side; RECORD=1 keeps their durations
	$(python) -m $(if $(ARGS),pytest $(ARGS),tests.lanes --lanes $(LANES) $(if $(RECORD),--record) \
	  $(if $(AGAIN),--again))

test-deep:  ## tests with random examples, seeds and rounds, with many more; broker tests on older Kafkas (hours)
	$(python) -m pytest tests -m 'hypothesis or deep' --hypothesis-profile=deep --timeout=7200 $(ARGS)
	failed=; for version in $$($(python) -m tests.cluster.versions); do \
	  LOGKEEP_KAFKA=$$version $(python) -m pytest tests/kafka --timeout=7200 $(ARGS) || failed+=" $$version"; done; \
	[[ -z $$failed ]] || { echo "tests with a broker failed on Kafka$$failed"; exit 1; }

test-unit:  ## tests that start nothing (minutes)
	$(python) -m pytest tests/unit $(ARGS)

test-kafka:  ## tests with a real broker and S3 server
	$(python) -m pytest tests/kafka $(ARGS)

test-apiserver:  ## tests with a real Kubernetes API
	$(python) -m pytest tests/apiserver $(ARGS)

test-e2e:  ## tests on a real node (root)
	$(python) -m pytest tests/e2e $(ARGS)

N ?= 1000
SEED ?= 0
PROCESSES ?= 2
simulate:  ## clusters that lie, runs that die: N=10000 schedules from SEED=0 on, PROCESSES=2; SEED=7 N=1 shows one
	$(python) -m tests.simulation.run --processes $(PROCESSES) $(if $(filter 1,$(N)),--seed $(SEED),--seeds $(N) --first $(SEED)) $(ARGS)

histories:  ## an archive's histories against a model: N=1000 of them from SEED=0 on; SEED=7 N=1 shows one, made short
	$(python) -m tests.model.play $(if $(filter 1,$(N)),--seed $(SEED),--count $(N) --first $(SEED)) $(ARGS)

# The seed decides everything in a round. A round that fails prints its history.
ROUNDS ?= 20
ledger:  ## producers, killed runs and moved leaders on three brokers: ROUNDS=20 rounds from SEED=0 on
	$(python) -m tests.ledger --rounds $(ROUNDS) --seed $(SEED)

# Nothing else should run on the machine: it would be in the figures.
bench:  ## speed and memory beside other tools (docs/benchmarks.md); PEER=/path/to/binary puts one beside ours
	$(python) -m bench $(if $(PEER),--peer $(PEER)) $(ARGS)

demo: BOOTSTRAP := demo
demo:  ## a backup and a restore to watch; KEEP=1 leaves the node up
	$(python) -m tests.demo

demo-stop:  ## take down what make demo KEEP=1 left up
	$(python) -m tests.demo stop

docs:  ## make the site of the docs in build/docs/site, and the page of metrics
	$(python) -m tests.cluster.docs

changelog:  ## what the next release would say, by the fragments in changes/
	$(python) -m tests.cluster.docs changelog

wheel:  ## the wheel of operator, engine and kernel, into dist/
	$(python) -m tests.cluster.wheel dist

VERSION ?=
release:  ## all files of a release into dist/VERSION: make release VERSION=0.1.0 (root)
	$(python) -m tests.cluster.release '$(VERSION)' $(ARGS)

publish:  ## push images and chart of dist/VERSION to the registry of names.toml: make publish VERSION=0.1.0
	$(python) -m tests.cluster.publish '$(VERSION)'

chart:  ## write the README of the chart from the comments in its values
	$(python) -m tests.cluster.chart

crds:  ## write the CRDs, their copy in the chart and their reference from the models
	$(python) -m tests.crds

lock:  ## renew requirements.lock from pyproject.toml, with hashes: ARGS='--upgrade-package pyarrow'
	$(python) -m tests.cluster.lock $(ARGS)

clean:  ## end what killed runs left behind and forget everything that was built
	$(python) -m tests.cluster.prepare --clean
