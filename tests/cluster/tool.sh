#!/usr/bin/env bash
# Runs a tool of the locked Python environment on this repository: tests/cluster/tool.sh ruff check. Hooks of pre-commit call it.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(tests/cluster/bootstrap.sh)
PATH=$venv/bin:$PATH PYTHONPATH=operator:engine:. exec "$@"
