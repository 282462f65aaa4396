"""The crates that the kernel is made of: pinned, and for every compiler that we promise."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import kernel, system, wheel

MANIFESTS = sorted(kernel.FOLDER.glob("*/Cargo.toml"))


def read(manifest: Path) -> dict[str, Any]:
    return tomllib.loads(manifest.read_text())


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_every_crate_compiles_with_the_oldest_rust() -> None:
    """cargo tells it only if it is as old itself."""
    platform = "--filter-platform=x86_64-unknown-linux-gnu"
    reported = system.run([*kernel.RUST, "cargo", "metadata", "--locked", "--format-version=1", platform]).stdout
    packages = json.loads(reported)["packages"]
    oldest = version(read(kernel.FOLDER / "Cargo.toml")["workspace"]["package"]["rust-version"])
    assert len(packages) > 20
    assert [each["id"] for each in packages if version(each["rust_version"] or "1.0") > (*oldest, 99)] == []


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.parent.name)
def test_every_crate_is_pinned(manifest: Path) -> None:
    said = read(manifest)
    wanted = said.get("dependencies", {}) | said.get("dev-dependencies", {}) | said.get("build-dependencies", {})
    versions = {name: crate if isinstance(crate, str) else crate.get("version") for name, crate in wanted.items()}
    assert versions
    assert {name: pin for name, pin in versions.items() if pin and not pin.startswith("=")} == {}


def test_the_wheel_asks_for_the_rust_that_the_kernel_needs() -> None:
    (extension,) = read(wheel.ROOT / "pyproject.toml")["tool"]["setuptools-rust"]["ext-modules"]
    needed = read(kernel.FOLDER / "Cargo.toml")["workspace"]["package"]["rust-version"]
    assert extension["rust-version"] == f">={needed}"
