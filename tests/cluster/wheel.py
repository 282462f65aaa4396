"""The wheel: operator, engine and the compiled kernel in one. `python -m tests.cluster.wheel dist` makes it."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster import cache, kernel, system

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "operator", "engine")
"""The parts of the checkout that the wheel is made of, beside the kernel."""

_MADE = ("built", ".built", "target")  # when the kernel is compiled in the checkout


def build(
    folder: Path, within: Sequence[str | Path] = kernel.RUST, environment: Mapping[str, str] | None = None
) -> Path:
    """Make the wheel of this checkout, with the builders that the lock names. What another build has left in it is not
    used, nor is anything left.

    `within` is the command that calls pip. Raises CommandFailed with what pip says.
    """
    with TemporaryDirectory() as scratch, _copied() as project:
        settings = Path(scratch) / "settings.cfg"
        settings.write_text(f"[build]\nbuild_base = {scratch}/build\n[egg_info]\negg_base = {scratch}\n")
        pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        where = {"DIST_EXTRA_CONFIG": str(settings), "PYTHONPATH": ""}
        system.run([*within, *pip, folder.absolute(), project], env={**where, **(environment or {})}, timeout=1800)
    (made,) = folder.glob("logkeep-*.whl")
    return made


@contextmanager
def _copied() -> Iterator[Path]:
    """The parts of the checkout, in a folder of the cache that only the kernel's sources decide.

    cargo compiles again what lies in another folder or has become younger. Here it does so for other sources only.
    """
    sources = [source.relative_to(ROOT) for source in kernel.sources()]

    def produce(folder: Path) -> None:
        for source in sources:
            _copy(source, folder)

    project = cache.build("wheel-sources", kernel.key(), produce, keep=5)
    beside = [path.relative_to(ROOT) for path in kernel.FOLDER.iterdir() if path.name not in _MADE]
    with cache.locked("wheel-sources"):
        for name in (*map(Path, PARTS), *(name for name in beside if name not in sources)):
            _copy(name, project)
        yield project


def _copy(name: Path, project: Path) -> None:
    """Put a file or a folder of the checkout into the project, in the place of what was there."""
    source, target = ROOT / name, project / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
