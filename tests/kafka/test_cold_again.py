"""Restores of cold objects that begin again, or that see the archive change while they wait."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ObjectCold
from logkeep_engine.restore.planning import cold_objects as waking
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.cluster.s3_cold import ColdObjects
from tests.cluster.s3_proxy import S3Proxy
from tests.data.topics import NO_RETENTION, Record, create_topic, delete_topics, produce, topic_names
from tests.kafka.raw import eventually
from tests.kafka.restores import back_up, bring_back, committed
from tests.kafka.test_cli import resource
from tests.kafka.test_cold_objects import NOW, RETRIEVAL, Dies, Seen, World

AS_OF = {"point": {"asOf": "2023-11-14T22:13:21.005Z"}}
pytestmark = pytest.mark.usefixtures("storage_environment")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "POLL_SECONDS", 0.05)


@pytest.fixture
def world(kafka: KafkaBroker, s3: S3Server, bucket: str, proxy: S3Proxy, unique: str) -> World:
    return World(kafka, s3, bucket, proxy, unique)


@contextmanager
def warming(cold: ColdObjects) -> Iterator[None]:
    """A store that retrieves what it is asked for."""
    stop = threading.Event()

    def warm() -> None:
        while not stop.wait(0.1):
            cold.warm()

    thread = threading.Thread(target=warm)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def renamed(**more: Any) -> dict[str, Any]:
    return {"topics": {"rename": [{"from": "(.*)", "to": r"\1-copy"}], **more}}


# ---- a restore that has begun


@pytest.mark.parametrize(
    ("more", "records", "asked"),
    [({}, 60, 9), (AS_OF, 25, 6), (renamed(partitionCount=3), 60, 9)],
    ids=["whole", "asOf", "divided"],
)
def test_a_restore_that_has_begun_retrieves_again_what_is_cold_again(
    world: World, more: dict[str, Any], records: int, asked: int
) -> None:
    with pytest.raises(ConnectionAbortedError):
        bring_back(world.spec(RETRIEVAL, **more), runner=Dies())
    world.cold.freeze("/topics/")
    with warming(world.cold):
        assert world.restore(Seen(), RETRIEVAL, **more).records == records
    assert len(world.cold.asked) == asked
    count = 3 if "topics" in more else 1
    assert sum(len(committed(world.kafka, f"{world.topic}-copy", part)) for part in range(count)) == records


@pytest.mark.parametrize("more", [{}, AS_OF], ids=["whole", "asOf"])
def test_a_restore_that_has_ended_needs_no_object_again(world: World, more: dict[str, Any], tmp_path: Path) -> None:
    more = {**renamed(retention="Hold"), **more}
    first = world.restore(Seen(), RETRIEVAL, **more)
    world.cold.freeze("/topics/")
    again = world.restore(Seen(), RETRIEVAL, **more)
    assert (again.outcome, again.records) == ("Succeeded", first.records)
    file = tmp_path / "restore.yaml"
    file.write_text(resource("KafkaRestore", world.spec(RETRIEVAL, **more)))
    released = CliRunner().invoke(app, ["release", "-f", str(file), "--run-id", "restore-1"])
    assert released.exit_code == 0, released.output
    assert world.cold.asked == []


# ---- which objects


def in_two_partitions(world: World, topic: str, run: str, times: Iterable[int]) -> None:
    create_topic(world.kafka.bootstrap, topic, 2, NO_RETENTION)
    produce(world.kafka.bootstrap, topic, [Record(b"k", b"v", NOW + at, [], part) for part in range(2) for at in times])
    back_up({**world.backed_up, "topics": {"include": [topic]}}, run)


def first_partition(topic: str) -> dict[str, Any]:
    return {**renamed(include=[topic], partitions=[{"topic": topic, "partition": 0}]), **AS_OF}


def retrieved_partitions(world: World) -> set[str]:
    return {key.split("/")[-2] for key, _ in world.cold.asked}


def test_partitions_that_are_not_chosen_stay_where_they_are(world: World, unique: str) -> None:
    topic = f"{unique}-two"
    in_two_partitions(world, topic, "two", (0, 2000))
    world.cold.freeze("/topics/")
    with warming(world.cold):
        assert world.restore(Seen(), RETRIEVAL, **first_partition(topic)).records == 1
    assert retrieved_partitions(world) == {"partition=0"}


def test_what_tells_the_incarnation_is_retrieved_of_other_partitions_too(world: World, unique: str) -> None:
    topic = f"{unique}-two"
    in_two_partitions(world, topic, "first", range(20))
    delete_topics(world.kafka.bootstrap, [topic])
    eventually(lambda: topic not in topic_names(world.kafka.bootstrap))
    in_two_partitions(world, topic, "second", (0, 2000))
    world.cold.freeze("/topics/")
    with warming(world.cold):
        assert world.restore(Seen(), RETRIEVAL, **first_partition(topic)).records == 1
    assert retrieved_partitions(world) == {"partition=0", "partition=1"}


# ---- the archive continues


def while_it_waits(world: World, action: Callable[[], Any], **more: Any) -> RunResult:
    """The result of a restore that waits for cold objects while something is done."""
    world.cold.freeze("/topics/")
    seen, found = Seen(), list[RunResult]()
    thread = threading.Thread(target=lambda: found.append(world.restore(seen, RETRIEVAL, **more)))
    thread.start()
    try:
        wait_until(lambda: bool(seen.waits), 60, "the restore has told that it waits")
        action()
    finally:
        with warming(world.cold):
            thread.join()
    return found[0]


def retain(world: World) -> None:
    """Let retention remove all that the archive had."""
    produce(world.kafka.bootstrap, world.topic, [Record(b"k", b"new", int(time.time() * 1000))])
    spec = {**world.backed_up, "retention": {"maxAge": "30d", "grace": "0s"}}
    for run in ("retain-1", "retain-2"):
        back_up(spec, run)


@pytest.mark.parametrize("more", [{}, AS_OF], ids=["whole", "asOf"])
def test_what_retention_removes_while_a_restore_waits_for_it_comes_all_the_same(
    world: World, more: dict[str, Any]
) -> None:
    result = while_it_waits(world, lambda: retain(world), **more)
    assert world.restored() == result.records == (25 if more else 60)


def test_what_is_deleted_while_a_restore_waits_for_it_is_reported(world: World, tmp_path: Path) -> None:
    """The state lies elsewhere, so nobody saw that the restore waits."""
    result = while_it_waits(world, lambda: retain(world), state={"uri": tmp_path.as_uri()})
    assert world.restored() == result.records == 1
    assert any("some that it would have read were deleted from the archive" in reported for reported in result.warnings)


# ---- what retrieval cannot help


def test_an_object_that_the_store_calls_readable_and_does_not_give_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cold.freeze("/topics/")
    headed = ColdObjects._headed
    monkeypatch.setattr(ColdObjects, "_headed", lambda self, data, _: headed(self, data, "warm"))
    with pytest.raises(ObjectCold, match=r"is in GLACIER.*all segments that the restore reads can be read"):
        world.restore(Seen(), RETRIEVAL)
    assert world.cold.asked == []


@pytest.mark.parametrize("part", ["/catalog/", "archive.json"])
def test_a_cold_catalog_is_reported_as_a_wrong_rule(world: World, part: str) -> None:
    world.cold.freeze(part)
    with pytest.raises(
        ObjectCold,
        match=r"Only objects in topics/ and packs/ may be moved to such a class: correct the life-cycle rule",
    ):
        world.restore(Seen(), RETRIEVAL)
    assert world.cold.asked == []
