"""The archive of the plugin `kubectl logkeep` for Linux, and its manifest for krew.

The archive needs a Python on the machine and nothing else: it has the code, the compiled kernel, and the libraries for
each Python that we support. Those that fit all of them are there once. Their wheels are compared with the lock.
"""

import re
import shutil
import sys
import tempfile
import zipfile
from hashlib import sha256
from pathlib import Path

import yaml

from logkeep_engine import __version__
from tests.cluster import cache, chart, images, names, system, tools

NAME = "kubectl-logkeep"
PYTHONS = ("3.11", "3.12", "3.13")
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Names of Docker and krew, and those of Python's wheels."""
_ROOT = names.ROOT
_ENGINE = _ROOT / "engine" / "logkeep_engine"
_LAUNCHER = tools.FILES / NAME
_GLIBC = range(36, 4, -1)  # a wheel for an older one fits, too; Debian 12, where the kernel is compiled, has 2.36


def file_name(architecture: str) -> str:
    """Return the name of the archive in a release."""
    return f"{NAME}-linux-{architecture}.tar.gz"


def archive(architecture: str, module: Path) -> Path:
    """Return the archive with this compiled kernel, made if it is missing. Raises CommandFailed with what pip says."""
    wheels = _locked()
    sources = (_ENGINE, _ROOT / "docs" / "conditions", _ROOT / "LICENSE", _LAUNCHER, Path(__file__), module)
    key = cache.digest(*sources, wheels, architecture, *PYTHONS)

    def produce(folder: Path) -> None:
        home = folder / NAME
        _unpack_libraries(home / "lib", wheels, architecture)
        shutil.copytree(_ENGINE, home / "lib/common" / _ENGINE.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(module, home / "lib/common/logkeep_kernel.abi3.so")
        for file in (_LAUNCHER, _ROOT / "LICENSE"):
            shutil.copy(file, home)
        (folder / file_name(architecture)).write_bytes(chart.packed(_files(home)))

    return cache.build("plugin", key, produce, keep=4) / file_name(architecture)


def of_this_machine() -> Path:
    """Return the archive with the kernel of these tests."""
    return archive(images.architecture(), images.KERNEL)


def unpacked(folder: Path) -> Path:
    """Unpack the archive of this machine there; return the folder with the program, for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    system.run(["tar", "-xzf", of_this_machine(), "-C", folder])
    return folder


def libraries(architecture: str, module: Path) -> list[Path]:
    """Return the folders with the libraries that are in the archive."""
    return sorted((archive(architecture, module).parent / NAME / "lib").iterdir())


def _files(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            mode = 0o755 if path.name == NAME else 0o644
            found[str(path.relative_to(folder))] = (path.read_bytes(), mode)
    return found


def _locked() -> str:
    """Return what the lock has of the plugin's extra, with hashes."""
    program = _ROOT / "docker" / "requirements.py"
    files = (_ROOT / "pyproject.toml", _ROOT / "requirements.lock")
    return system.run([sys.executable, program, *files, "kubectl"]).stdout


def _unpack_libraries(folder: Path, wheels: str, architecture: str) -> None:
    wanted = re.split(r"^(?=\S)", wheels, flags=re.MULTILINE)[1:]
    with tempfile.TemporaryDirectory() as scratch:
        for python in PYTHONS:
            here = Path(scratch) / python
            _download(here, "".join(wanted), python, architecture)
            own = "cp" + python.replace(".", "")
            (folder / own).mkdir(parents=True)
            for wheel in sorted(here.iterdir()):
                _unpack(wheel, folder / (own if f"-{own}-{own}-" in wheel.name else "common"))
            # For the next Python only what fits no other is fetched.
            special = {_project(wheel.name) for wheel in here.iterdir() if f"-{own}-{own}-" in wheel.name}
            wanted = [entry for entry in wanted if _project(entry.partition("==")[0] + "-") in special]


def _project(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"-\d|-$", name)[0]).lower()


def _download(folder: Path, wheels: str, python: str, architecture: str) -> None:
    machine = ARCHITECTURES[architecture]
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC] + [f"manylinux2014_{machine}"]
    options: list[str | Path] = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
    ]
    options += ["--python-version", python, "--find-links", cache.root() / "packages" / "current"]
    options += [f"--platform={platform}" for platform in platforms]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(wheels)
        requirements.flush()
        download = ("-m", "pip", "download", *options, "--dest", folder, "-r", requirements.name)
        system.run([sys.executable, *download], timeout=1800)


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack what a wheel has for Python's path: no programs and no headers."""
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            inner = re.sub(r"^[^/]+\.data/(?:purelib|platlib)/", "", name)
            if not name.endswith("/") and ".data/" not in inner.partition("/")[0] + "/":
                target = folder / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(packed.read(name))


def manifest(archives: dict[str, Path]) -> str:
    """Return krew's manifest for the archives, which are by architecture."""
    platforms = [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
            "uri": names.file(path.name),
            "sha256": sha256(path.read_bytes()).hexdigest(),
            "bin": NAME,
        }
        for architecture, path in sorted(archives.items())
    ]
    spec = {
        "version": f"v{__version__}",
        "homepage": names.HOME,
        "shortDescription": "Back up and restore Apache Kafka",
        "description": "Shows backups and restores of Apache Kafka that Logkeep makes in a Kubernetes cluster, "
        "asks for runs, makes restores, and reads archives.",
        "caveats": "The plugin needs Python 3.11, 3.12 or 3.13 and a C library of glibc 2.36 or newer.",
        "platforms": platforms,
    }
    about = {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin"}
    return yaml.safe_dump({**about, "metadata": {"name": "logkeep"}, "spec": spec}, sort_keys=False, width=120)
