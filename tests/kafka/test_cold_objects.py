"""Objects in a class for archives: they are named, retrieved if a restore may, and never claimed to be whole."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ENV_S3_ACCESS_KEY, ENV_S3_SECRET_KEY
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import Progress, RunRequest, RunResult
from logkeep_engine.errors import ObjectCold, StorageRefused, StorageUnavailable
from logkeep_engine.report import Reporter
from logkeep_engine.restore.planning import cold_objects as waking
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.storage import ObjectInfo, Storage
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.cluster.s3_cold import ASKED, ColdObjects
from tests.cluster.s3_proxy import S3Proxy
from tests.command import logkeep
from tests.data.topics import NO_RETENTION, Record, create_topic, produce, topic_names
from tests.kafka.restores import ThreadRunner, back_up, bring_back, committed
from tests.kafka.test_storage_s3 import open_s3

NOW = 1_700_000_000_000
RETRIEVAL = {"tier": "Bulk", "days": 3}
pytestmark = pytest.mark.usefixtures("storage_environment")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore looks often whether objects can be read."""
    monkeypatch.setattr(waking, "POLL_SECONDS", 0.05)


# ---- the storage


class TestStorage:
    @pytest.fixture
    def storage(self, s3: S3Server, bucket: str, proxy: S3Proxy) -> Storage:
        found = open_s3(s3, bucket, endpoint=proxy.endpoint)
        for path in ("a/cold", "a/other", "a/warm"):
            found.put(path, b"content")
        return found

    def test_a_cold_object_is_named_with_its_class(self, storage: Storage, bucket: str, proxy: S3Proxy) -> None:
        ColdObjects(proxy, bucket, "DEEP_ARCHIVE").freeze("a/cold")
        text = rf"^s3://{bucket}/an/archive/a/cold is in DEEP_ARCHIVE and cannot be read before it is retrieved\."
        with pytest.raises(ObjectCold, match=text):
            storage.read("a/cold")
        with pytest.raises(ObjectCold, match=text) as cold:
            storage.read_range("a/cold", 2, 5)
        assert "spec.source.retrieval" in cold.value.hint
        assert storage.read("a/warm") == b"content"

    def test_what_is_cold_is_retrieved_once(self, storage: Storage, bucket: str, proxy: S3Proxy) -> None:
        cold = ColdObjects(proxy, bucket)
        cold.freeze("a/cold", "a/other")
        found = storage.cold(storage.list())
        assert [(str(item), item.retrieving) for item in found] == [
            ("a/cold (GLACIER)", False),
            ("a/other (GLACIER)", False),
        ]
        for _ in range(2):  # whoever has not seen that it was asked for asks again
            storage.retrieve(found[0], 5, "Bulk")
        key, body = cold.asked[0]
        assert key == "an/archive/a/cold"
        assert "<Days>5</Days>" in body
        assert "<Tier>Bulk</Tier>" in body
        assert [item.retrieving for item in storage.cold(storage.list())] == [True, False]
        cold.warm()
        assert [item.info.path for item in storage.cold(storage.list())] == ["a/other"]
        assert storage.read("a/cold") == b"content"

    def test_objects_come_back_from_archive_tiers_for_good(self, storage: Storage, bucket: str, proxy: S3Proxy) -> None:
        cold = ColdObjects(proxy, bucket, "INTELLIGENT_TIERING")
        cold.freeze("a/cold")
        (found,) = storage.cold(storage.list())
        storage.retrieve(found, 5, "Standard")
        assert "Days" not in cold.asked[0][1]
        cold.warm()
        assert storage.cold(storage.list()) == ()

    def test_a_retrieval_that_the_store_refuses_is_named(self, storage: Storage, bucket: str, proxy: S3Proxy) -> None:
        cold = ColdObjects(proxy, bucket, "DEEP_ARCHIVE")
        cold.freeze("a/cold")
        (found,) = storage.cold(storage.list())
        for refusal, reported in (
            (("403 Forbidden", "AccessDenied"), "cannot be retrieved with tier Expedited: .* denied access"),
            (("503 Unavailable", "GlacierExpeditedRetrievalNotAvailable"), "no room for an expedited retrieval"),
            (("400 Bad Request", "InvalidArgument"), "with tier Expedited: .* answered InvalidArgument"),
        ):
            cold.refuses = refusal
            with pytest.raises(StorageRefused, match=reported) as refused:
                storage.retrieve(found, 1, "Expedited")
            assert "s3:RestoreObject" in refused.value.hint

    def test_an_object_that_is_gone_is_not_cold(self, storage: Storage, bucket: str, proxy: S3Proxy) -> None:
        ColdObjects(proxy, bucket).freeze("a/")
        assert storage.cold([ObjectInfo("a/gone", 1, storage_class="GLACIER")]) == ()

    def test_objects_of_other_classes_are_not_asked_about(self, storage: Storage, proxy: S3Proxy) -> None:
        listed = [replace(info, storage_class="GLACIER_IR") for info in storage.list()]
        proxy.requests.clear()
        assert storage.cold(listed) == ()
        assert proxy.requests == []


# ---- a restore


class Seen:
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.phases: list[str] = []

    def progress(self, progress: Progress) -> None:
        self.phases.append(progress.phase)
        if progress.waits:
            self.waits.append(progress.waits)

    def result(self, result: RunResult) -> None:
        pass

    def emit(self, *_: Any) -> None:
        pass


class World:
    """A topic of three segments in an archive behind a proxy."""

    def __init__(self, kafka: KafkaBroker, s3: S3Server, bucket: str, proxy: S3Proxy, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self.place = {"uri": f"s3://{bucket}/kafka", "endpoint": proxy.endpoint, "region": s3.region}
        create_topic(kafka.bootstrap, topic, 1, NO_RETENTION)
        self.backed_up: dict[str, Any] = {
            "cluster": {"bootstrapServers": kafka.addresses},
            "topics": {"include": [topic]},
            "storage": self.place,
            "segment": {"packBelow": "0"},
        }
        for run in range(3):
            records = (Record(b"k%d" % at, b"v%d" % run, NOW + 1000 * run + at) for at in range(20))
            produce(kafka.bootstrap, topic, records)
            back_up(self.backed_up, f"backup-{run}")
        self.cold = ColdObjects(proxy, bucket)

    def spec(self, retrieval: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        source = {"storage": self.place, **({} if retrieval is None else {"retrieval": retrieval})}
        rename = {"rename": [{"from": "(.*)", "to": r"\1-copy"}]}
        return {"cluster": {"bootstrapServers": self.kafka.addresses}, "source": source, "topics": rename, **more}

    def restore(self, seen: Seen, retrieval: dict[str, Any], **more: Any) -> RunResult:
        spec, run = self.spec(retrieval, **more), "restore-1"
        reporter = Reporter(run, seen, interval=0.01)
        request = RunRequest(kind="KafkaRestore", name="test", namespace="", run_id=run, spec=spec)
        try:
            return run_of(request, parse_restore(spec), ThreadRunner, reporter, os.environ).perform_or_raise()
        finally:
            reporter.close()

    def restored(self) -> int:
        return len(committed(self.kafka, f"{self.topic}-copy", 0))

    def logs(self) -> list[str]:
        storage = self.archive().storage
        return [info.path for info in storage.list("topics/") if info.path.endswith(names.LOG)]

    def archive(self) -> Archive:
        from logkeep_engine.storage import open_uri

        return Archive.open(open_uri(self.place["uri"], self.place["endpoint"], self.place["region"]))


@pytest.fixture
def world(kafka: KafkaBroker, s3: S3Server, bucket: str, proxy: S3Proxy, unique: str) -> World:
    return World(kafka, s3, bucket, proxy, unique)


def test_a_restore_that_may_not_retrieve_names_what_is_cold(world: World) -> None:
    world.cold.freeze("/topics/")
    for more in ({}, {"point": {"asOf": "2023-11-14T22:13:21Z"}}):
        with pytest.raises(ObjectCold, match=r"cannot be read before it is retrieved.*GLACIER|is in GLACIER"):
            bring_back(world.spec(**more))
    assert world.cold.asked == []
    assert f"{world.topic}-copy" not in topic_names(world.kafka.bootstrap)


def waits(world: World, count: int) -> Callable[[], bool]:
    return lambda: list(world.cold.states().values()).count(ASKED) >= count


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("more", [{}, {"point": {"asOf": "2023-11-14T22:13:21.005Z"}}, {"verify": "Full"}])
def test_a_restore_waits_until_all_was_retrieved(world: World, more: dict[str, Any]) -> None:
    world.cold.freeze("/topics/")
    seen = Seen()

    def wake() -> None:
        wait_until(waits(world, 6), 20, "the objects were asked for")
        wait_until(lambda: bool(seen.waits), 60, "the restore has told that it waits")
        world.cold.warm()

    waking_up = threading.Thread(target=wake)
    waking_up.start()
    result = world.restore(seen, RETRIEVAL, **more)
    waking_up.join()
    assert result.outcome == "Succeeded"
    assert world.restored() == result.records == (25 if "point" in more else 60)
    assert "Retrieving" in seen.phases
    assert "in the storage class GLACIER: topics/" in seen.waits[0]
    keys = [key for key, _ in world.cold.asked]
    assert len(set(keys)) == len(keys), "nothing is asked for twice"
    assert all("<Days>3</Days>" in body and "<Tier>Bulk</Tier>" in body for _, body in world.cold.asked)
    if "point" in more:
        third = world.logs()[2].removesuffix(names.LOG)
        assert not any(third in key for key in keys), "what lies after the point stays where it is"


@pytest.mark.usefixtures("quick")
def test_a_driver_that_starts_again_waits_on_and_asks_for_nothing_twice(world: World) -> None:
    world.cold.freeze("/topics/")
    with pytest.raises(StorageUnavailable, match=r"maxWait. the store has not retrieved 9 objects .*nothing was"):
        world.restore(Seen(), {**RETRIEVAL, "maxWait": "1s"})
    asked = list(world.cold.asked)
    assert len(asked) == 9
    with pytest.raises(StorageUnavailable):
        world.restore(Seen(), {**RETRIEVAL, "maxWait": "1s"})
    world.cold.warm()
    assert world.restore(Seen(), RETRIEVAL).records == 60
    assert world.cold.asked == asked


class Dies(ThreadRunner):
    """Ends the driver when records are to be sent."""

    def perform(self, job: Any) -> None:
        if job.name == "restore_partitions":
            raise ConnectionAbortedError
        super().perform(job)


def test_a_dry_run_says_what_would_be_retrieved_and_asks_for_nothing(world: World) -> None:
    world.cold.freeze("/topics/")
    refused = bring_back(world.spec(dryRun=True)).dry_run
    assert refused is not None
    assert [item.reason for item in refused.refusals] == ["ObjectCold"]
    result = bring_back(world.spec(RETRIEVAL, dryRun=True))
    assert result.dry_run is not None
    assert (result.dry_run.refused, result.dry_run.records) == (0, 60)
    (lines,) = [warning for warning in result.warnings if "would have them retrieved" in warning]
    assert "9 objects (" in lines
    assert world.cold.asked == []


# ---- who reads the archive and waits for nothing


def test_a_verification_names_what_is_cold_and_claims_nothing_of_it(world: World, tmp_path: Path) -> None:
    first, second, _ = world.logs()
    world.cold.freeze(first, second.removesuffix(names.LOG) + names.TIMEINDEX)
    report = verify(world.archive())
    assert (report.faults, report.cold, report.whole) == ([], [first, second], False)
    assert (report.segments, report.records) == (1, 20)
    where = (world.place["uri"], "--endpoint", world.place["endpoint"], "--region", world.place["region"])
    keys = {name: os.environ[name] for name in (ENV_S3_ACCESS_KEY, ENV_S3_SECRET_KEY)}
    done = logkeep("verify", *where, environ=keys)
    assert done.returncode == 0, done.stderr
    assert "no fault in what was read: " in done.stdout
    assert "cold: 2 segments, whose objects exist" in done.stdout
    assert f"nothing proves them: {first}, {second}" in done.stdout
    reported = logkeep("verify", *where, "-o", "json", environ=keys)
    assert json.loads(reported.stdout)["whole"] is False


def test_a_cold_object_of_another_size_is_damage(world: World, s3: S3Server, bucket: str) -> None:
    first = world.logs()[0]
    file = s3.data_dir / bucket / "kafka" / first
    file.write_bytes(file.read_bytes() + b"more")
    world.cold.freeze(first)
    report = verify(world.archive())
    assert report.cold == [first]
    (fault,) = report.faults
    assert "bytes, the catalog says" in fault.what


def test_a_drill_leaves_out_what_is_cold_and_says_so(world: World) -> None:
    world.cold.freeze(world.logs()[1])
    spec = world.spec(drill={})
    spec["topics"] = {}
    result = bring_back(spec)
    assert result.drill is not None
    assert (result.outcome, result.records, result.drill.cold_segments) == ("Succeeded", 20, 2)
    (lines,) = [warning for warning in result.warnings if "the drill has left out" in warning]
    assert "left out 2 segments of 1 partition, which nothing proves: 1 object (" in lines
    assert world.logs()[1] in lines
    world.cold.freeze("/topics/")
    with pytest.raises(ObjectCold, match="All that the drill would restore is cold: 9 objects"):
        bring_back(spec, "restore-2")
    assert world.cold.asked == []


def test_merges_leave_out_what_is_cold_and_do_it_later(world: World) -> None:
    spec = {**world.backed_up, "segment": {"packBelow": "8Mi", "mergeCount": 0}}
    for run in range(3):
        produce(world.kafka.bootstrap, world.topic, [Record(b"k", b"%d" % run, NOW + 9000 + run)])
        back_up(spec, f"small-{run}")
    world.cold.freeze("/packs/")
    merging = {**spec, "segment": {"packBelow": "8Mi", "mergeCount": 2}}
    result = back_up(merging, "merge-1")
    (lines,) = [warning for warning in result.warnings if "merge" in warning]
    assert "of small segments left out, since objects are cold: first s3://" in lines
    assert "is in GLACIER" in lines
    assert world.cold.asked == []
    world.cold.freeze()
    assert "merged 3 small segments into 1" in back_up(merging, "merge-2").message


def test_a_partition_gets_no_snapshot_of_what_is_cold(
    kafka: KafkaBroker, s3: S3Server, bucket: str, proxy: S3Proxy, unique: str
) -> None:
    create_topic(kafka.bootstrap, unique, 1, {**NO_RETENTION, "cleanup.policy": "compact"})
    place = {"uri": f"s3://{bucket}/kafka", "endpoint": proxy.endpoint, "region": s3.region}
    spec = {
        "cluster": {"bootstrapServers": kafka.addresses},
        "topics": {"include": [unique]},
        "storage": place,
        "segment": {"packBelow": "0"},
        "snapshots": {"maxRecordBytesBetweenSnapshots": "1", "minCleanableRatio": 0},
    }
    produce(kafka.bootstrap, unique, [Record(b"k%d" % at, b"v", NOW + at) for at in range(20)])
    assert "made snapshots of 1 partition" in back_up(spec, "first").message
    cold = ColdObjects(proxy, bucket)
    cold.freeze("/snapshots/")
    produce(kafka.bootstrap, unique, [Record(b"k%d" % at, b"w", NOW + at) for at in range(20)])
    result = back_up(spec, "second")
    (lines,) = [warning for warning in result.warnings if "gets no snapshot" in warning]
    assert lines.startswith(f"topic {unique} partition 0 gets no snapshot: s3://{bucket}/kafka/topics/")
    cold.freeze()
    assert "made snapshots of 1 partition" in back_up(spec, "third").message
