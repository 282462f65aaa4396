"""The real parts as session fixtures, and what is kept of them when a test fails.

A part starts when the first test asks for it. Tests share it, so each test makes topics, buckets and namespaces of
its own (fixture `unique`). A test that kills or reconfigures a part starts one for itself: `with
KafkaBroker(overrides=...) as broker`.
"""

import gc
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
import typer.testing
import yaml

from logkeep_engine.contract.values import so_many
from tests import examples
from tests.as_it_was import process_as_it_was
from tests.cluster import images, state, system, versions
from tests.cluster.apiserver import ApiServer
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.node import Node
from tests.cluster.s3 import S3Server
from tests.data.topics import delete_topics, topic_names

examples.register_profiles()

# A fork must not collect what it has from here: a client of librdkafka that is taken apart where its threads are not
# ends the process with SIGSEGV.
os.register_at_fork(after_in_child=gc.freeze)

# The parser of libyaml: the one in Python takes ten times as long.
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[misc,assignment]

# Commands are made of an app's functions in 0.05 CPU seconds, and tests run hundreds of them in this process.
typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]


_NOT_RUN = pytest.StashKey[Counter[str]]()


@pytest.fixture(scope="session", autouse=True)
def _leftovers() -> None:
    """Clean up after earlier runs that were killed."""
    state.sweep()


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with process_as_it_was():
        yield


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name for this test's topics, buckets or namespaces: letters, digits and dashes, at most 40 characters."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    return f"{words[:33].strip('-')}-{secrets.token_hex(3)}"


@pytest.fixture(scope="session")
def _kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker(overrides=STEADY) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafka(_kafka: KafkaBroker) -> Iterator[KafkaBroker]:
    """A broker on loopback. Without topics at first: each that is there costs it something, and each client that asks
    for all of them."""
    yield _kafka
    delete_topics(_kafka.bootstrap, topic_names(_kafka.bootstrap))


@pytest.fixture(scope="session")
def _three_brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three_brokers(_three_brokers: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers whose leaders may be killed and moved: a test calls `restore` at its end. Without topics at first.

    Its users are one bed in `tests.lanes.plan`, so that it starts once.
    """
    yield _three_brokers
    _three_brokers.restore()
    delete_topics(_three_brokers.bootstrap, topic_names(_three_brokers.bootstrap))


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server on loopback."""
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, unique: str) -> str:
    """A new bucket of this test's own."""
    return s3.create_bucket(unique)


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """A Kubernetes API without anything that runs pods."""
    with ApiServer() as server:
        yield server


@pytest.fixture(scope="session")
def _root() -> None:
    """Nothing, where a Kubernetes node can run."""
    if not system.is_root():
        reason = "a Kubernetes node needs root"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def node(_root: None) -> Iterator[Node]:
    """A Kubernetes node that runs pods, with the images of a release of the code as it is."""
    with Node() as started:
        for image in images.archives().values():
            started.load(image)
        yield started


@pytest.fixture
def namespace(node: Node, unique: str) -> Iterator[str]:
    """A Kubernetes namespace of this test's own, deleted after it."""
    node.connection.create_namespace(unique)
    yield unique
    node.connection.delete_namespace(unique)


@pytest.fixture(scope="session")
def node_s3(node: Node) -> Iterator[S3Server]:
    """An S3 server on the node's address, for pods and for the test process."""
    with S3Server(host=node.ip, netns=node.netns) as server:
        yield server


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what came with a newer Kafka than the one that runs. With the newest, which runs by default, every test
    is there."""
    newer = {item: marker.args[0] for item in items if (marker := item.get_closest_marker("since"))}
    out = [item for item, version in newer.items() if not versions.at_least(versions.DEFAULT, version)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]
        config.stash[_NOT_RUN] = Counter(f"{newer[item]}: {item.location[0]}" for item in out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests were left out, so that nobody takes a run on an older Kafka for all of them."""
    for name, count in sorted(config.stash.get(_NOT_RUN, Counter[str]()).items()):
        terminalreporter.write_line(f"not run on Kafka {versions.DEFAULT}, came with {name} ({so_many(count, 'test')})")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of the parts a failed test used, under `test-logs/` in the repository."""
    report = yield
    parts = getattr(item, "funcargs", {}).values()
    collectors = [part.collect_logs for part in parts if hasattr(part, "collect_logs")]
    if report.failed and collectors:
        folder = item.config.rootpath / "test-logs" / re.sub(r"[^\w.-]+", "_", item.nodeid)[-120:]
        folder.mkdir(parents=True, exist_ok=True)
        for collect in collectors:
            _collect(collect, folder)
        report.sections.append(("logs of the test bed", str(folder)))
    return report


def _collect(collect: Callable[[Path], None], folder: Path) -> None:
    try:
        collect(folder)
    except Exception as problem:  # logs must not hide the failure they explain
        (folder / "collecting-failed").write_text(repr(problem))
