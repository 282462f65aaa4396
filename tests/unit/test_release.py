"""A release: what it refuses, what its notes say, and that nothing in its files tells when they were made."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from logkeep_engine import __version__
from tests.cluster import chart, names, plugin, release, system, tools, wheel


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("", "VERSION=: it must be like 1.2.3, or 1.2.3-rc.1"),
        ("1.2", "VERSION=1.2: it must be like"),
        ("99.0.0", f"engine/logkeep_engine/__init__.py has {__version__}, .*python -m tests.cluster.version 99.0.0"),
    ],
)
def test_a_version_that_is_wrong_or_not_that_of_the_code_ends_the_command(version: str, message: str) -> None:
    done = system.run([sys.executable, "-m", "tests.cluster.release", version], cwd=names.ROOT, check=False)
    assert done.returncode == 1
    assert re.search(message, done.stderr)


FILES = [
    *("logkeep-operator-linux-amd64.tar", "logkeep-engine-linux-amd64.tar", "logkeep-crds.yaml", "logkeep-1.2.3.tgz"),
    *(
        "logkeep-examples.tar.gz",
        "kubectl-logkeep-linux-amd64.tar.gz",
        "kubectl-logkeep-linux-arm64.tar.gz",
        "kubectl-logkeep.krew.yaml",
    ),
    *("logkeep-1.2.3-cp311-abi3-manylinux_2_36_aarch64.whl", "logkeep-1.2.3.tar.gz", "logkeep-1.2.3.tar.gz.cdx.json"),
]


def test_the_notes_say_what_is_new_and_what_each_file_is_and_what_is_missing_for_which_architecture() -> None:
    notes = release.notes(FILES)
    assert notes.startswith(f"# Logkeep {__version__}\n\n")
    section = (names.ROOT / "CHANGELOG.md").read_text().partition(f"\n## {__version__}")[2]
    fragments = [path.read_text() for path in (names.ROOT / "changes").glob("+*.md")]
    for text in (section, *fragments):
        assert set(re.findall(r"`[^`\n]+`", text)[:1]) <= set(re.findall(r"`[^`\n]+`", notes)), text
    assert f"helm install logkeep {names.CHART} --version {__version__} " in notes
    assert "| `logkeep-engine-linux-amd64.tar` | image of the engine for amd64, an OCI archive |" in notes
    assert "| `logkeep-examples.tar.gz` | the folder `examples`, with the script of the quick start |" in notes
    assert "| `logkeep-1.2.3-cp311-abi3-manylinux_2_36_aarch64.whl` | Python wheel for aarch64:" in notes
    assert "- **amd64**: images, wheel and plugin.\n" in notes
    assert "- **arm64**: wheel and plugin, cross-compiled and not run. No images: " in notes
    assert "](docs/" not in notes, "a page of a release has no folder docs beside it"
    assert f"]({names.HOME}/docs/guides/schedule.html)" in notes


def test_what_was_built_for_no_architecture_is_said_too() -> None:
    assert release.architectures([])[1].startswith("- **arm64**: nothing was built")
    assert release.architectures(["logkeep-engine-linux-arm64.tar"])[1] == "- **arm64**: images, wheel and plugin."


def test_a_file_that_nobody_has_described_is_no_part_of_a_release() -> None:
    with pytest.raises(ValueError, match=r"core\.1234: the release notes do not know what this file is"):
        release.notes([*FILES, "core.1234"])


def test_the_chart_makes_the_same_package_each_time_which_passes_helm(tmp_path: Path) -> None:
    made = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        made.append(chart.package(folder))
    assert made[0].read_bytes() == made[1].read_bytes()
    assert made[0].name == f"logkeep-{__version__}.tgz"
    system.run([tools.helm(), "lint", "--strict", made[0]])
    with tarfile.open(made[0]) as archive:
        assert {"logkeep/README.md", "logkeep/values.schema.json", "logkeep/crds/kafkabackups.yaml"} <= set(
            archive.getnames()
        )
        assert {member.mtime for member in archive} == {0}
    about = yaml.safe_load(system.run([tools.helm(), "show", "chart", made[0]]).stdout)
    assert {"home", "icon", "sources", "maintainers", "kubeVersion"} <= about.keys()


def test_the_wheel_of_another_machine_differs_in_its_module_and_says_whose_it_is(tmp_path: Path) -> None:
    old = tmp_path / "logkeep-1.2.3-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(old, "w") as made:
        made.writestr("logkeep_kernel.abi3.so", "of x86")
        made.writestr("logkeep_engine/__init__.py", "")
        made.writestr("logkeep-1.2.3.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp311-abi3-linux_x86_64\n")
        made.writestr("logkeep-1.2.3.dist-info/METADATA", "Metadata-Version: 2.1\nName: logkeep\nVersion: 1.2.3\n")
        made.writestr("logkeep-1.2.3.dist-info/RECORD", "stale")
    module = tmp_path / "logkeep_kernel.abi3.so"
    module.write_text("of arm64")
    (tmp_path / "new").mkdir()
    new = wheel.released(old, module, "aarch64", tmp_path / "new")
    assert new.name == "logkeep-1.2.3-cp311-abi3-manylinux_2_36_aarch64.whl"
    with zipfile.ZipFile(new) as found:
        assert found.read("logkeep_kernel.abi3.so") == b"of arm64"
        assert b"Tag: cp311-abi3-manylinux_2_36_aarch64\n" in found.read("logkeep-1.2.3.dist-info/WHEEL")
        digest = urlsafe_b64encode(sha256(b"of arm64").digest()).decode().rstrip("=")
        assert f"logkeep_kernel.abi3.so,sha256={digest},8\n" in found.read("logkeep-1.2.3.dist-info/RECORD").decode()
    platform = ("--platform", "manylinux_2_36_aarch64", "--python-version", "3.12", "--only-binary=:all:")
    install = ("-m", "pip", "install", "--no-index", "--no-deps", "--target", tmp_path / "there")
    system.run([sys.executable, *install, *platform, new])


def test_the_archive_of_the_sources_has_all_that_compiles(tmp_path: Path) -> None:
    made = wheel.sources(tmp_path)
    assert made.name == f"logkeep-{__version__}.tar.gz"
    with tarfile.open(made) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "LICENSE", "kernel/Cargo.lock", "kernel/core/Cargo.toml", "kernel/python/src/lib.rs"}
    assert wanted | {"engine/logkeep_engine/__init__.py", "operator/logkeep_operator/__init__.py"} <= inside
    assert not [name for name in inside if "/target/" in name or name.endswith((".so", ".pyc"))]


def test_the_manifest_names_each_archive_by_its_hash(tmp_path: Path) -> None:
    archives = {}
    for architecture in plugin.ARCHITECTURES:
        archives[architecture] = tmp_path / plugin.file_name(architecture)
        archives[architecture].write_text(architecture)
    spec = yaml.safe_load(plugin.manifest(archives))["spec"]
    assert spec["version"] == f"v{__version__}"
    assert [(one["selector"]["matchLabels"]["arch"], one["uri"], one["sha256"]) for one in spec["platforms"]] == [
        (name, names.file(plugin.file_name(name)), sha256(name.encode()).hexdigest()) for name in ("amd64", "arm64")
    ]


def test_the_plugin_says_which_python_it_misses(tmp_path: Path) -> None:
    launcher = tools.FILES / plugin.NAME
    (tmp_path / "bin").mkdir()
    for program in ("sh", "dirname", "readlink"):
        (tmp_path / "bin" / program).symlink_to(f"/usr/bin/{program}")
    old = tmp_path / "bin/python3"  # one that is too old, as on RHEL 9
    old.write_text("#!/bin/sh\necho cp39\n")
    old.chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path / "bin")}
    done = subprocess.run([launcher, "status"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "kubectl-logkeep: there is no Python 3.11, 3.12 or 3.13 on PATH (python3, python3.13, python3.12, python3.11)\n"
    )


def test_the_plugin_is_for_all_versions_of_python_that_the_wheel_is_for() -> None:
    listed = (names.ROOT / "pyproject.toml").read_text()
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', listed) == list(plugin.PYTHONS)
