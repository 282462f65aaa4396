"""The wheel: operator, engine and the compiled kernel in one. `python -m tests.cluster.wheel dist` makes it. And the
archive of sources that a release has beside it.
"""

import shutil
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster import cache, chart, kernel, system

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "operator", "engine")
"""The parts of the checkout that the wheel is made of, beside the kernel."""

EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}
"""The time of all that is made: 1980, the first that a wheel can say. So the same sources make the same file."""

PLATFORM = "manylinux_2_36"
"""The C library that Debian 12 has. The module needs nothing else of the machine."""

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
        system.run(
            [*within, *pip, folder.absolute(), project], env={**EPOCH, **where, **(environment or {})}, timeout=1800
        )
    (made,) = folder.glob("logkeep-*.whl")
    return made


def made() -> Path:
    """Return the wheel of this checkout, made if it is missing."""

    def produce(folder: Path) -> None:
        build(folder)

    key = cache.digest(*(ROOT / name for name in (*PARTS, "docs/conditions")), kernel.key())
    (found,) = cache.build("wheel", key, produce, keep=3).iterdir()
    return found


def released(wheel: Path, module: Path, machine: str, folder: Path) -> Path:
    """Write the wheel with a module that Debian 12's compiler has made for a machine, such as aarch64, and say so: pip
    then installs it where the C library is not older."""
    here = wheel.stem.rpartition("-")[2]
    there = f"{PLATFORM}_{machine}"
    target = folder / wheel.name.replace(here, there)
    lines: list[str] = []
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename == module.name:
                content = module.read_bytes()
            elif item.filename.endswith(".dist-info/WHEEL"):
                content = content.replace(here.encode(), there.encode())
            elif item.filename.endswith(".dist-info/RECORD"):
                content = "".join([*lines, f"{item.filename},,\n"]).encode()
            new.writestr(item, content)
            digest = urlsafe_b64encode(sha256(content).digest()).decode().rstrip("=")
            lines.append(f"{item.filename},sha256={digest},{len(content)}\n")
    return target


def sources(folder: Path) -> Path:
    """Make the archive of the sources that pip builds a wheel of, on any platform with a Rust compiler."""
    with TemporaryDirectory() as scratch, _copied() as project:
        code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
        settings = Path(scratch) / "settings.cfg"
        settings.write_text(f"[egg_info]\negg_base = {scratch}\n")
        where = {"DIST_EXTRA_CONFIG": str(settings), "PYTHONPATH": ""}
        system.run([sys.executable, "-c", code, scratch], cwd=project, env={**EPOCH, **where})
        (made,) = Path(scratch).glob("*.tar.gz")
        target = folder / made.name
        target.write_bytes(chart.repacked(made))
    return target


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
