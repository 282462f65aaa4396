"""Tests of Logkeep: beside real brokers, API servers, object storage and nodes wherever that is possible."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("logkeep_kernel") is None:  # a plain pytest: the Makefile names the module's folder
    sys.path.append(str(Path(__file__).parents[1] / "kernel" / "built"))
