"""The files of a release: `make release VERSION=0.1.0` puts them into `dist/0.1.0`.

Images are built for the architecture of this machine. On x86 the kernel is also cross-compiled for arm64, so wheel and
plugin are for both; with `--native` it is not. What is made lies in the cache, so that tests, `make demo` and a release
of the same sources make it once. `--together FOLDER` writes the files about all others again, after those that were
made on another machine have come into the folder.
"""

import argparse
import os
import re
import runpy
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any

from logkeep_engine import __version__
from tests.cluster import arm64, chart, docs, images, kernel, names, plugin, progress, system, version, wheel

ROOT = names.ROOT
SUMS = "SHA256SUMS"
NOTES = "release-notes.md"
CRDS = "logkeep-crds.yaml"
KREW = "kubectl-logkeep.krew.yaml"
EXAMPLES = "logkeep-examples.tar.gz"
_ABOUT = (SUMS, NOTES, KREW)
_WHAT = {
    r"logkeep-operator-linux-(\w+)\.tar": "image of the operator for {0}, an OCI archive",
    r"logkeep-engine-linux-(\w+)\.tar": "image of the engine for {0}, an OCI archive",
    r"logkeep-\S+\.tgz": "Helm chart",
    r"logkeep-crds\.yaml": "the CRDs of the chart, to apply before an upgrade",
    r"kubectl-logkeep-linux-(\w+)\.tar\.gz": "plugin `kubectl logkeep` for {0}",
    r"kubectl-logkeep\.krew\.yaml": "krew's manifest of the plugin",
    r"logkeep-examples\.tar\.gz": "the folder `examples`, with the script of the quick start",
    r"logkeep-\S+-manylinux_2_36_(\w+)\.whl": "Python wheel for {0}: command line, engine, operator",
    r"logkeep-\S+\.tar\.gz": "sources of the wheel, for other platforms",
    r"(\S+)\.cdx\.json": "list of what is in `{0}` (CycloneDX)",
}


def make(folder: Path, *, cross: bool = True) -> None:
    """Put all files of a release of this checkout into the folder, in the place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    here = images.architecture()
    with _step("chart, CRDs and examples"):
        _place(chart.packaged(), folder)
        (folder / CRDS).write_text(crds())
        (folder / EXAMPLES).write_bytes(examples())
    with _step(f"images for {here}"):
        for image in images.archives().values():
            _place(image.path, folder)
            listed = image.read("usr/share/logkeep/sbom.cdx.json")
            (folder / f"{image.path.stem}.cdx.json").write_bytes(listed)
    with _step(f"wheel and plugin for {here}"):
        made = wheel.made()
        wheel.released(made, images.KERNEL, plugin.ARCHITECTURES[here], folder)
        wheel.sources(folder)
        _plugin(folder, here, images.KERNEL)
    if cross and here == "amd64":
        with _step("wheel and plugin for arm64, compiled here and not run"):
            module = arm64.build()
            wheel.released(made, module, plugin.ARCHITECTURES["arm64"], folder)
            _plugin(folder, "arm64", module)
    for path in folder.glob("*.whl"):
        _list(path, list(_sbom()["crates"](kernel.crates())))
    with _step("manifest of krew, release notes, checksums"):
        describe(folder)


@contextmanager
def _step(what: str) -> Iterator[None]:
    started = time.monotonic()
    progress.note(f"release: {what}")
    yield
    progress.note(f"release: {what}: {time.monotonic() - started:.0f} s")


def _place(path: Path, folder: Path) -> None:
    """Link a file of the cache, which nobody changes, or copy it to another file system."""
    try:
        os.link(path, folder / path.name)
    except OSError:
        shutil.copy(path, folder)


def _plugin(folder: Path, architecture: str, module: Path) -> None:
    _place(plugin.archive(architecture, module), folder)
    libraries = plugin.libraries(architecture, module)
    found = {str(item.purl): item for item in _sbom()["python_distributions"](libraries)}
    _list(folder / plugin.file_name(architecture), [*found.values(), *_sbom()["crates"](kernel.crates())])


def _list(path: Path, components: list[Any]) -> None:
    """Write the list of what is in a file of the release beside it."""
    text = _sbom()["document"](path.name, __version__, components)
    path.with_name(f"{path.name}.cdx.json").write_text(text + "\n")


def _sbom() -> dict[str, Callable[..., Any]]:
    return runpy.run_path(str(ROOT / "docker" / "sbom.py"))


def crds() -> str:
    """Return the chart's CRDs as one document stream."""
    return "---\n".join(path.read_text() for path in sorted((chart.CHART / "crds").glob("*.yaml")))


def examples() -> bytes:
    """Return an archive of the folder with the examples: who installs from a release has no checkout."""
    listed = system.run(["git", "ls-files", "examples"], cwd=ROOT).stdout.split()
    return chart.packed({name: ((ROOT / name).read_bytes(), (ROOT / name).stat().st_mode & 0o755) for name in listed})


def describe(folder: Path) -> None:
    """Write what is about the other files in the folder: krew's manifest, the notes, the checksums."""
    archives = {name: path for name in plugin.ARCHITECTURES if (path := folder / plugin.file_name(name)).is_file()}
    (folder / KREW).write_text(plugin.manifest(archives))
    (folder / NOTES).write_text(notes(sorted(path.name for path in folder.iterdir() if path.name not in (SUMS, NOTES))))
    paths = sorted(path for path in folder.iterdir() if path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in paths))


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def notes(files: list[str]) -> str:
    """Return the release notes: what is new, how to install it, and what each file is."""
    lines = [f"# Logkeep {__version__}", "", *_changes(), "", "## Install", "", "```console"]
    lines += [f"helm install logkeep {names.CHART} --version {__version__} --namespace logkeep --create-namespace"]
    lines += ["```", "", f"Before an upgrade: `kubectl apply --server-side --force-conflicts -f {names.file(CRDS)}`."]
    lines += [f"[Install]({names.HOME}/docs/install.html) says how to check signatures, and how to install without"]
    lines += ["access to the registry.", "", "## Files", "", "| file | what it is |", "|---|---|"]
    lines += [f"| `{name}` | {_meaning(name)} |" for name in files]
    lines += ["", "## Architectures", "", *architectures(files), ""]
    return "\n".join(lines)


def _changes() -> list[str]:
    """Return the release's section of the changelog, and the fragments that are not in it yet."""
    found = re.search(
        rf"^## {re.escape(__version__)}\b.*?\n(.*?)(?=^## |\Z)",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    _, _, fragments = docs.changelog().partition("\n")
    new = [text.strip() for text in (fragments, found[1] if found else "") if "###" in text]
    return [re.sub(r"\]\(((?:docs|charts)/[^)#]+)\.md", rf"]({names.HOME}/\1.html", text) for text in new]


def _meaning(name: str) -> str:
    for pattern, meaning in _WHAT.items():
        if match := re.fullmatch(pattern, name):
            return meaning.format(*match.groups())
    raise ValueError(f"{name}: the release notes do not know what this file is")


def architectures(files: list[str]) -> list[str]:
    """Say for which architectures there is what."""
    said = []
    for architecture in plugin.ARCHITECTURES:
        if images.file_name("engine", architecture) in files:
            said.append(f"- **{architecture}**: images, wheel and plugin.")
        elif plugin.file_name(architecture) in files:
            said.append(
                f"- **{architecture}**: wheel and plugin, cross-compiled and not run. No images: building them runs "
                f"programs of {architecture}."
            )
        else:
            said.append(f"- **{architecture}**: nothing was built; the wheel builds from the archive of its sources.")
    return said


def main() -> None:
    """Make a release, or bring together what several machines have made."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.release")
    parser.add_argument("version")
    parser.add_argument("--native", action="store_true", help="compile nothing for another architecture")
    parser.add_argument("--together", action="store_true", help="only describe the files in dist/VERSION")
    given = parser.parse_args()
    try:
        version.check(given.version)
    except ValueError as refused:
        sys.exit(str(refused))
    if not system.is_root():
        sys.exit("A release needs root: it builds images.")
    folder = ROOT / "dist" / given.version
    if given.together:
        describe(folder)
    else:
        make(folder, cross=not given.native)
    print(*architectures([path.name for path in folder.iterdir()]), sep="\n")
    print(folder)


if __name__ == "__main__":
    main()
