"""The files of a release: the node and its users run on them."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from logkeep_engine import __version__
from tests.cluster import chart, images, names, plugin, publish, release, system, tools
from tests.cluster.logkeep import Installation
from tests.cluster.process import wait_until

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all files of a release of this checkout."""
    folder = tmp_path_factory.mktemp("release") / __version__
    release.make(folder, cross=False)
    return folder


def test_the_checksums_are_those_of_all_files(files: Path) -> None:
    listed = (files / release.SUMS).read_text()
    assert {line.split()[1] for line in listed.splitlines()} == {path.name for path in files.iterdir()} - {release.SUMS}
    checked = system.run(["sha256sum", "--check", "--strict", release.SUMS], cwd=files).stdout
    assert checked.count(": OK") == len(listed.splitlines())


def test_pods_run_the_images_of_the_archives_and_helm_has_installed_the_package(
    files: Path, logkeep: Installation
) -> None:
    (installed,) = json.loads(logkeep.helm("list", "--output", "json"))
    assert (installed["chart"], installed["app_version"]) == (f"logkeep-{__version__}", __version__)
    archive = images.archives()["operator"]
    assert (files / archive.path.name).read_bytes() == archive.path.read_bytes()
    pods = logkeep.operator_pods()
    for pod in pods:
        (status,) = pod["status"]["containerStatuses"]
        assert status["image"] == names.image("operator")
        assert status["imageID"].rpartition("@")[2] in archive.digests
    (container,) = pods[0]["spec"]["containers"]
    assert {"name": "LOGKEEP_ENGINE_IMAGE", "value": names.image("engine")} in container["env"]


def test_the_crds_are_those_that_the_chart_installs(files: Path, logkeep: Installation) -> None:
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", files / release.CRDS)
    printed = logkeep.node.kubectl(*apply).stdout
    assert printed.count("serverside-applied") == len(list((names.ROOT / "crds").glob("*.yaml")))


def test_krew_installs_the_plugin_and_kubectl_runs_it(files: Path, logkeep: Installation, tmp_path: Path) -> None:
    """The plugin has with it all that it imports: nothing of the tests' environment is on its path."""
    archive = files / plugin.file_name(images.architecture())
    environment = {"KREW_ROOT": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": "", "KREW_NO_UPGRADE_CHECK": "1"}
    environment["PATH"] = f"{tmp_path}/bin:{tools.kubectl().parent}:/usr/local/bin:/usr/bin:/bin"
    install = (tools.krew(), "install", f"--manifest={files / release.KREW}", f"--archive={archive}")
    system.run(install, env=environment)
    kubectl = (tools.kubectl(), "logkeep")
    place = ("--kubeconfig", logkeep.node.kubeconfig, "-n", "kube-system")
    assert system.run([*kubectl, "--version"], env=environment).stdout == f"logkeep {__version__}\n"
    done = system.run([*kubectl, "topics", *place], env=environment)
    assert done.stderr == "There is no KafkaBackup in namespace kube-system.\n"


def test_images_have_debians_security_updates() -> None:
    """A base of debootstrap alone has Debian's point releases, months apart. Images have what apt asks for."""
    for target, archive in images.archives().items():
        sources = archive.read("etc/apt/sources.list").decode().splitlines()
        assert [line.split()[2] for line in sources] == ["bookworm", "bookworm-updates", "bookworm-security"], target
        (base,) = json.loads(archive.read("usr/share/logkeep/sbom.cdx.json"))["metadata"]["component"]["properties"]
        assert base == {"name": "logkeep:base", "value": images.BASE}


def test_what_is_in_a_file_is_listed_beside_it(files: Path) -> None:
    listed = {path.name.removesuffix(".cdx.json"): path.read_text() for path in files.glob("*.cdx.json")}
    here = images.architecture()
    (wheel,) = files.glob("*.whl")
    archives = {Path(images.file_name(target)).stem for target in images.TARGETS}
    assert set(listed) == archives | {wheel.name, plugin.file_name(here)}
    purls = {}
    for name, text in listed.items():
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None, name
        purls[name] = {component["purl"].partition("@")[0] for component in json.loads(text)["components"]}
    assert "pkg:deb/debian/tini" in purls[f"logkeep-engine-linux-{here}"]
    assert purls[wheel.name] >= {"pkg:cargo/pyo3", "pkg:cargo/logkeep-kernel"}
    assert purls[plugin.file_name(here)] >= purls[wheel.name] | {"pkg:pypi/botocore", "pkg:pypi/pydantic-core"}


def test_pip_takes_the_wheel_where_the_c_library_is_as_new(files: Path, tmp_path: Path) -> None:
    (wheel,) = files.glob("*.whl")
    platform = ("--platform", f"manylinux_2_36_{plugin.ARCHITECTURES[images.architecture()]}")
    install = ("-m", "pip", "install", "--no-index", "--no-deps", "--only-binary=:all:", "--python-version", "3.13")
    system.run([sys.executable, *install, *platform, "--target", tmp_path, wheel])
    module = (tmp_path / "logkeep_kernel.abi3.so").read_bytes()
    assert module == images.KERNEL.read_bytes()
    versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(\d+\.\d+)\b", module)}
    assert (2, 17) <= max(versions) <= (2, 36)


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry on loopback, with nothing in it."""
    address = f"127.0.0.1:{system.free_ports(1)[0]}"
    command = [str(tools.crane()), "registry", "serve", "--address", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        host, _, port = address.partition(":")
        wait_until(lambda: system.accepts(host, int(port)), 60, "the registry to answer")
        yield address
        child.terminate()


def test_helm_installs_from_the_registry_what_was_published_there(registry: str, tmp_path: Path) -> None:
    """Its images here are a small one: a push is the same for all."""
    small = images.base_images()[0]
    for target in images.TARGETS:
        with (tmp_path / images.file_name(target)).open("wb") as out:
            small.write_archive(out)
    shutil.copy(chart.packaged(), tmp_path)
    pushed = publish.publish(tmp_path, __version__, registry, tls=False)
    assert [name.partition("@")[0] for name in pushed] == [
        f"{registry}/logkeep-operator", f"{registry}/logkeep-engine", f"{registry}/charts/logkeep",
    ]  # fmt: skip
    index = json.loads(system.run([tools.crane(), "manifest", pushed[1]]).stdout)
    assert [one["platform"] for one in index["manifests"]] == [{"architecture": images.architecture(), "os": "linux"}]
    assert system.run([tools.crane(), "digest", f"{registry}/logkeep-engine:{__version__}"]).stdout.strip() in pushed[1]
    shown = ("show", "chart", f"oci://{registry}/charts/logkeep", "--version", __version__, "--plain-http")
    assert f"appVersion: {__version__}" in system.run([tools.helm(), *shown]).stdout
    with pytest.raises(publish.Published, match=f"logkeep-operator:{__version__} is published already"):
        publish.publish(tmp_path, __version__, registry, tls=False)


def test_a_registry_that_does_not_answer_is_no_empty_one(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{system.free_ports(1)[0]}"
    with pytest.raises(system.CommandFailed, match="connection refused"):
        publish.publish(tmp_path, __version__, nobody, tls=False)
