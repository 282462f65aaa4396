"""The names of what is released: `names.toml` has the places, and the code has the version."""

import tomllib
from pathlib import Path

from logkeep_engine import __version__

ROOT = Path(__file__).parents[2]
IMAGES = ("operator", "engine")

_SAID: dict[str, str] = tomllib.loads((ROOT / "names.toml").read_text())
HOME, SOURCE, FILES = _SAID["home"], _SAID["source"], _SAID["files"]
REGISTRY, CHART, PYPI = _SAID["registry"], _SAID["chart"], _SAID["pypi"]


def image(which: str, version: str = __version__) -> str:
    """Return the name of one of the `IMAGES`."""
    return f"{REGISTRY}/logkeep-{which}:{version}"


def file(name: str, version: str = __version__) -> str:
    """Return where a file of a release is downloaded."""
    return f"{FILES}/{version}/{name}"
