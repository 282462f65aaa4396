"""Build everything the test bed needs ahead of the tests: `python -m tests.cluster.prepare`.

The tests would build it too, on first use; here it is seen what takes how long. The demo builds its own part of it
(`DEMO`) before it begins. `--clean` ends what killed runs left and removes the cache of built things (not the Python
environment this runs in).
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cluster import (
    cache,
    chart,
    containerd,
    images,
    kafka,
    kernel,
    plugin,
    progress,
    state,
    streams,
    system,
    tools,
    versions,
)


@dataclass(frozen=True)
class Part:
    """Something that is built in one thread, and the kinds of entries of the cache that it consists of."""

    name: str
    build: Callable[[], object]
    kinds: tuple[str, ...]


def _images() -> None:
    containerd.seed()
    images.archives()


def _kafka() -> None:
    tools.kafka_jars()
    kafka.formatted()


def _kafka_classes() -> None:
    tools.broker_classes()
    if kafka.has_cache(versions.DEFAULT):
        kafka.class_cache()


def _other_kafkas() -> None:
    for version in (versions.TIERED, *versions.BESIDES):
        tools.kafka_jars(version)
        if versions.has_kraft(version):
            kafka.formatted(version)
    streams.program()


def _of_others() -> None:
    for release in tools.STRIMZI:
        tools.strimzi_crds(release)
    tools.strimzi_oauth_jars()
    tools.velero_crds()


def _go_programs(*programs: Callable[[], object]) -> None:
    for program in programs:  # one compiler at a time: each uses all cores
        program()


def _programs_of_the_demo() -> None:
    _go_programs(tools.kube, tools.kubectl, tools.helm_4)
    chart.packaged()


def _programs_of_tests() -> None:
    as_root = [tools.netpol] if system.is_root() else []
    _go_programs(tools.helm, tools.helm_unittest, tools.fake_gcs, tools.kfake, tools.promtool, *as_root)
    _go_programs(tools.actionlint, tools.crane, tools.krew, tools.gitops)


DEMO = (
    Part("images", _images, ("images", "image-archives", "containerd-seed")),
    Part("Kubernetes, Helm", _programs_of_the_demo, ("go", "kube", "compiled", "helm-4", "chart")),
    Part("S3 server", tools.versitygw, ("versitygw",)),  # it has the core on which the one above is linked
    Part("Kafka", _kafka, ("java", "kafka-jars", "kafka-formatted")),
)
"""The parts that `make demo` runs, the longest first. Neither it nor its build may ask for anything else."""

KEPT = Part("kubectl logkeep", plugin.of_this_machine, ("plugin",))
"""The part that a demo runs only if it stays up (`KEEP=1`)."""

_SERVERS = ("helm", "helm-unittest", "fake-gcs-server", "kfake", "promtool", "netpol")

TESTS = (
    Part("Kafka's classes", _kafka_classes, ("broker-classes", "kafka-classes", "kafka-test-jars")),
    Part("other Kafkas", _other_kafkas, ("streams-classes", "streams-jars")),
    Part("CRDs and logins of Strimzi and Velero", _of_others, ("strimzi-crds", "strimzi-oauth", "velero-crds")),
    Part("builder of the site", tools.docs, ("docs",)),
    Part("Azurite", tools.azurite, ("azurite", "node-js")),
    Part("kernel's tests", kernel.compile_tests, ("kernel-tests",)),
    Part("other servers and tools", _programs_of_tests, (*_SERVERS, "actionlint", "crane", "krew", "gitops")),
)
"""The parts that only tests run."""


def kinds(parts: Sequence[Part]) -> list[str]:
    """Return the kinds of entries of the cache that these parts consist of."""
    return [kind for part in parts for kind in part.kinds]


def prepare(parts: Sequence[Part]) -> None:
    """Build what is missing; what waits for the network goes beside what computes."""
    state.sweep()
    if not system.is_root():
        progress.note("not root: no images and no node, tests of them are skipped")
        parts = [part for part in parts if part.build is not _images]
    progress.here.parts(len(parts))
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(_build, part) for part in parts]
    for job in done:
        job.result()


def _build(part: Part) -> None:
    started = time.monotonic()
    try:
        part.build()
    except Exception as problem:
        why = str(problem).strip().rpartition("\n")[2]
        progress.note(f"{part.name} failed: {why}. The other parts come to their end, then you see all of it")
        raise
    progress.here.ready(part.name, time.monotonic() - started)


@contextmanager
def demo(kept: bool) -> Iterator[None]:
    """Build what the demo runs, and refuse anything else until it is over."""
    parts = (*DEMO, KEPT) if kept else DEMO
    with cache.only(kinds(parts)):
        prepare(parts)
        yield


def clean() -> None:
    """Remove every built thing but Python's."""
    state.sweep()
    for entry in cache.root().iterdir():
        if entry.name == "buildah" and system.is_root():
            subprocess.run(["buildah", *images.storage_options(), "rmi", "--all", "--force"], check=False)
        if entry.name not in ("locks", "packages", "run", "venv"):
            shutil.rmtree(entry, ignore_errors=True)


if __name__ == "__main__":
    clean() if "--clean" in sys.argv[1:] else prepare((*DEMO, KEPT, *TESTS))
