"""The wheel: operator, engine and the compiled kernel in one. `python -m tests.cluster.wheel dist` makes it."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster import cache, system

ROOT = Path(__file__).parents[2]
RUST = (ROOT / "tests" / "cluster" / "rust.sh",)


def builder() -> Path:
    """A folder with the packages that pyproject.toml names to build a wheel."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

    def produce(folder: Path) -> None:
        system.run([sys.executable, "-m", "pip", "install", "--target", folder, *requires], timeout=1800)

    return cache.build("wheel-builder", cache.digest(*requires, sys.version), produce, keep=1)


def build(folder: Path, within: Sequence[str | Path] = RUST, environment: Mapping[str, str] | None = None) -> Path:
    """Make the wheel of this checkout. What another build has left in the checkout is not used, nor is anything left.

    `within` is the command that calls pip. Raises CommandFailed with what pip says.
    """
    with TemporaryDirectory() as scratch:
        settings = Path(scratch) / "settings.cfg"
        settings.write_text(f"[build]\nbuild_base = {scratch}/build\n[egg_info]\negg_base = {scratch}\n")
        pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        where = {"DIST_EXTRA_CONFIG": str(settings), "PYTHONPATH": str(builder())}
        system.run([*within, *pip, folder.absolute(), ROOT], env={**where, **(environment or {})}, timeout=1800)
    (made,) = folder.glob("logkeep-*.whl")
    return made


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
