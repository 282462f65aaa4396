"""What a file in the wrong place would break."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.lanes import LANES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["operator", "engine"])
def test_source_roots_are_not_packages(folder: str) -> None:
    """`operator/__init__.py` would shadow the standard library's `operator` for all that runs in here."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_lock_holds_every_declared_dependency() -> None:
    """Environment and images are installed from requirements.lock: a version that is only declared is not used."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    declared = {name.lower() for name in [*project["dependencies"], *(d for extra in extras.values() for d in extra)]}
    locked = set(re.findall(r"^(\S+==\S+)", (ROOT / "requirements.lock").read_text().lower(), re.MULTILINE))
    assert declared <= locked


def test_every_folder_of_tests_is_in_a_lane() -> None:
    """`make test` runs what `tests.lanes` names: a folder that is in none would never run."""
    folders = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in (ROOT / "tests").rglob("test_*.py")}
    in_lanes = [folder for lane in LANES for folder in lane]
    assert sorted(in_lanes) == sorted(folders)
