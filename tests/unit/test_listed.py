"""The list of what an image holds (`docker/sbom.py`). tests/e2e/test_bed.py compares it with the images."""

import json
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

SBOM: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "docker" / "sbom.py"))


def purls(components: Any) -> list[str]:
    return [str(component.purl) for component in components]


def jar(path: Path, *coordinates: tuple[str, str, str]) -> Path:
    """A jar that tells these groups, artifacts and versions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", path.name)
        for group, artifact, version in coordinates:
            text = f"# made by hand\nversion={version}\ngroupId={group}\nartifactId={artifact}\n"
            archive.writestr(f"META-INF/maven/{group}/{artifact}/pom.properties", text)
    return path


@pytest.mark.parametrize(
    ("name", "coordinates", "purl"),
    [
        ("guava-33.jar", [("com.google", "guava", "33")], "pkg:maven/com.google/guava@33"),
        (
            "epoll-4.2.7.Final-linux-x86_64.jar",
            [("io.netty", "epoll", "4.2.7.Final")],
            "pkg:maven/io.netty/epoll@4.2.7.Final?classifier=linux-x86_64",
        ),
        ("shaded-1.jar", [("org.other", "inner", "7"), ("org", "shaded", "1")], "pkg:maven/org/shaded@1"),
        ("shaded-1.jar", [("org.other", "inner", "7")], "pkg:generic/shaded@1"),
        ("scala-library_2.13-2.13.17.jar", [], "pkg:generic/scala-library_2.13@2.13.17"),
        ("py4j0.10.9.jar", [], "pkg:generic/py4j0.10.9"),
    ],
)
def test_a_jar_is_named_by_its_coordinates_or_else_by_its_file(
    name: str, coordinates: list[tuple[str, str, str]], purl: str, tmp_path: Path
) -> None:
    path = jar(tmp_path / "jars" / name, *coordinates)
    (found,) = SBOM["jars"](tmp_path)
    assert str(found.purl) == purl
    assert [item.content for item in found.hashes] == [sha256(path.read_bytes()).hexdigest()]


def test_a_crate_is_listed_once() -> None:
    printed = (
        "logkeep-kernel v0.1.0 (/build/kernel/python)\npyo3 v0.30.1\nzstd-sys v2.1.3+zstd.1.5.7\npyo3 v0.30.1 (*)\n"
    )
    assert purls(SBOM["crates"](printed)) == [
        "pkg:cargo/logkeep-kernel@0.1.0", "pkg:cargo/pyo3@0.30.1", "pkg:cargo/zstd-sys@2.1.3%2Bzstd.1.5.7",
    ]  # fmt: skip


def test_packages_that_are_not_installed_any_more_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "installed\ttini\t0.19.0-1\tamd64\nconfig-files\tperl\t5.36\tamd64\n"
    answer: Callable[..., Any] = lambda *_, **__: subprocess.CompletedProcess([], 0, printed)  # noqa: E731
    monkeypatch.setattr(subprocess, "run", answer)
    assert purls(SBOM["debian_packages"]()) == ["pkg:deb/debian/tini@0.19.0-1?arch=amd64"]


def test_the_document_is_valid_and_names_the_image_and_its_base(tmp_path: Path) -> None:
    twice = [jar(tmp_path / folder / "guava-33.jar") for folder in ("one", "two")]
    components = [
        *SBOM["jars"](tmp_path),
        *SBOM["python_distributions"](Path(sys.prefix).glob("lib/python3*/site-packages")),
    ]
    assert len(components) > 50
    text = SBOM["document"]("logkeep-engine", "0.1.0", components, base="debian@sha256:12")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    image = document["metadata"]["component"]
    assert (image["name"], image["version"], image["type"]) == ("logkeep-engine", "0.1.0", "container")
    assert image["properties"] == [{"name": "logkeep:base", "value": "debian@sha256:12"}]
    assert len([one for one in document["components"] if one["name"] == "guava"]) in (1, len(twice))
