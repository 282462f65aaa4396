"""Build everything the test bed needs ahead of the tests: `python -m tests.cluster.prepare`.

The tests would build it too, on first use; here it is seen what takes how long. `--clean` ends what killed runs left
and removes the cache of built things (not the Python environment this runs in).
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import cache, containerd, images, kafka, kernel, state, streams, system, tools, versions


def _timed(name: str, work: Callable[[], object]) -> str:
    started = time.monotonic()
    work()
    return f"{name} {time.monotonic() - started:.1f} s"


def _images() -> None:
    containerd.seed()
    images.logkeep_images()


def _kafka() -> None:
    tools.broker_classes()
    if kafka.has_cache(versions.DEFAULT):
        kafka.class_cache()
    kafka.formatted()


def _other_kafkas() -> None:
    for version in (versions.TIERED, *versions.BESIDES):
        tools.kafka_jars(version)
        if versions.has_kraft(version):
            kafka.formatted(version)
    streams.program()


def _strimzi() -> None:
    for release in tools.STRIMZI:
        tools.strimzi_crds(release)


def _go_programs() -> None:
    tools.kube()  # one compiler at a time: each uses all cores
    tools.versitygw()
    tools.fake_gcs()
    tools.helm()
    tools.health()
    tools.kfake()
    if system.is_root():
        tools.netpol()


def prepare() -> None:
    """Build what is missing; what waits for the network goes beside what computes."""
    state.sweep()
    work: dict[str, Callable[[], object]] = {
        "kafka jars": _kafka,
        "other kafkas": _other_kafkas,
        "Strimzi's CRDs": _strimzi,
        "builder of the site": tools.docs,
        "Azurite": tools.azurite,
        "kernel's tests": kernel.compile_tests,
        "kubernetes, S3, helm": _go_programs,
    }
    if system.is_root():
        work["images"] = _images
    else:
        cache.note("not root: no images and no node, tests of them are skipped")
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(_timed, name, build) for name, build in work.items()]
        cache.note("ready: " + ", ".join(job.result() for job in done))


def clean() -> None:
    """Remove every built thing but Python's."""
    state.sweep()
    for entry in cache.root().iterdir():
        if entry.name == "buildah" and system.is_root():
            subprocess.run(["buildah", *images.storage_options(), "rmi", "--all", "--force"], check=False)
        if entry.name not in ("locks", "packages", "run", "venv"):
            shutil.rmtree(entry, ignore_errors=True)


if __name__ == "__main__":
    clean() if "--clean" in sys.argv[1:] else prepare()
