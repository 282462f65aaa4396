"""The version of a release: what it may be, and every place that types it.

`python -m tests.cluster.version 0.2.0` writes another one into all of them. Docs, examples and the chart type it in the
names of what is released: images, files, and what Helm is asked for.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster import names, system

ROOT = names.ROOT
CODE = "engine/logkeep_engine/__init__.py"
ALLOWED = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-rc\.[1-9]\d*)?")
"""Versions that both Python's packages (PEP 440) and Helm's charts (semantic versions) take."""

# Where it is typed besides in names, each time in the first group of the pattern.
FILES = {
    CODE: r'^__version__ = "(.*)"$',
    "charts/logkeep/Chart.yaml": r"^(?:v|appV)ersion: (\S+)$",
    "kernel/Cargo.toml": r'^version = "(.*)"$',
    "kernel/Cargo.lock": r'^name = "logkeep-kernel(?:-core)?"\nversion = "(.*)"$',
    "kernel/fuzz/Cargo.lock": r'^name = "logkeep-kernel-core"\nversion = "(.*)"$',
    "examples/quickstart/quickstart.sh": r"^version=(\S+)$",
}
_NUMBER = r"(\d+\.\d+\.\d+(?:-rc\.?\d+|rc\d+)?)(?!(?!\.tgz\b)[\w.]*\w)"
_IN_NAMES = (
    rf"\blogkeep-(?:operator|engine)[:-]{_NUMBER}",
    rf"\blogkeep-{_NUMBER}",
    rf"{re.escape(names.FILES)}/{_NUMBER}",
    rf"{re.escape(names.CHART)} --version {_NUMBER}",
    rf"@refs/tags/v{_NUMBER}",
)
_PAGES = (":(glob)*.md", "docs", "examples", "charts", ":!CHANGELOG.md", ":!docs/design")


def check(version: str) -> None:
    """Raise ValueError unless a release may have this version and all that types one has it."""
    if not ALLOWED.fullmatch(version):
        raise ValueError(f"VERSION={version}: it must be like 1.2.3, or 1.2.3-rc.1 before a release")
    stale = sorted({f"{path} has {found}" for path, found in typed() if found not in (version, canonical(version))})
    if stale:
        how = f"To write it everywhere: python -m tests.cluster.version {version}"
        raise ValueError(f"VERSION={version}, but {', '.join(stale)}. {how}")


def canonical(version: str) -> str:
    """Return it as names of wheels have it."""
    return version.replace("-rc.", "rc")


def typed(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield each place, by the path of its file, with the version there. A file that must have one yields some."""
    for path, patterns in _places(root):
        text = (root / path).read_text()
        found = [match[1] for pattern in patterns for match in re.finditer(pattern, text, re.MULTILINE)]
        if path in FILES and not found:
            raise ValueError(f"{path} has no version where tests/cluster/version.py looks for it")
        yield from ((path, version) for version in found)


def write(version: str, root: Path = ROOT) -> None:
    """Type this version in all places."""
    for path, patterns in _places(root):
        text = (root / path).read_text()
        for pattern in patterns:
            text = re.sub(pattern, lambda match: _with(match, version), text, flags=re.MULTILINE)
        (root / path).write_text(text)


def _with(match: re.Match[str], version: str) -> str:
    fits = canonical(version) if "rc" in canonical(version) and "-cp" in match.string[match.end() :][:4] else version
    start, end = (place - match.start() for place in match.span(1))
    return match[0][:start] + fits + match[0][end:]


def _places(root: Path) -> Iterator[tuple[str, Sequence[str]]]:
    yield from ((path, (pattern,)) for path, pattern in FILES.items())
    for path in system.run(["git", "ls-files", "--", *_PAGES], cwd=root).stdout.split():
        if path not in FILES and path.endswith((".md", ".yaml", ".txt", ".json", ".sh")):
            yield path, _IN_NAMES


if __name__ == "__main__":
    if not ALLOWED.fullmatch(sys.argv[1]):
        sys.exit(f"{sys.argv[1]}: a version is like 1.2.3, or 1.2.3-rc.1")
    write(sys.argv[1])
