#!/usr/bin/env bash
# Runs a tool of the locked Python environment on this repository: tests/cluster/tool.sh ruff check. `make lint` and the
# hooks of pre-commit call it.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(tests/cluster/bootstrap.sh)
# mypy's cache lies with the packages that it has read, so that a new clone does not begin anew. Clones take turns at it.
export MYPY_CACHE_DIR=$venv/mypy
if [[ ${1:-} == mypy ]]; then
  . tests/cluster/lock.sh
  exec 9>>"$venv/mypy.lock"
  take 9 "$venv/mypy.lock"
fi
PATH=$venv/bin:$PATH PYTHONPATH=operator:engine:.:kernel/built exec "$@"
