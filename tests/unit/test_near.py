"""Which tests are near which package."""

import subprocess

import pytest

from tests.lanes.plan import test_files as list_test_files
from tests.near import EVERYWHERE, PACKAGES, ROOT, fitting, main

FILES = list_test_files(ROOT)


def test_every_test_is_near_a_package() -> None:
    patterns = [pattern for near in PACKAGES.values() for pattern in (*near.unit, *near.parts)]
    forgotten = sorted(set(FILES) - set(fitting([*patterns, EVERYWHERE], FILES)))
    assert forgotten == [], "name them in tests/near.py"


def test_every_pattern_fits_a_test() -> None:
    """A test that moves away from its pattern would be forgotten where another package still names it."""
    patterns = {pattern for near in PACKAGES.values() for pattern in (*near.unit, *near.parts)}
    assert sorted(pattern for pattern in patterns if not fitting([pattern], FILES)) == [], (
        "change them in tests/near.py"
    )


def test_every_package_is_there() -> None:
    patterns = [pattern for near in PACKAGES.values() for pattern in near.code]
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    code = {_package(path) for path in listed.stdout.split() if path.startswith(("engine/", "operator/", "bench/"))}
    forgotten = sorted(path for path in code if path and not fitting(patterns, [path]))
    assert forgotten == [], "name them in tests/near.py"


def _package(path: str) -> str:
    """The folder or module that a file belongs to; none for what only makes a folder a package."""
    parts = path.split("/")
    if parts[0] == "bench":
        return "bench"
    if parts[:2] == ["engine", "logkeep_engine"]:
        return "" if parts[2] == "__init__.py" else "/".join(parts[:3])
    return "/".join(parts[:2])


@pytest.mark.parametrize("package", PACKAGES)
def test_the_files_of_a_package_are_there(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    near = PACKAGES[package]
    assert main([package]) == 0
    unit = capsys.readouterr().out.split()
    assert unit
    assert {path.split("/")[1] for path in unit} == {"unit"}
    assert main([package, "--parts"]) == 0
    parts = capsys.readouterr().out.split()
    assert bool(parts) == bool(near.parts)
    assert not set(parts) & set(unit)


def test_a_name_that_is_no_package_is_answered_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["achive"]) == 2
    assert "there is no package 'achive': P=one of archive, backup" in capsys.readouterr().err
    assert main([]) == 2
    assert "name a package: P=one of archive, backup" in capsys.readouterr().err
