"""Input that cannot work fails once, with a message in status and event that says what to change."""

from typing import Any

import pytest

from logkeep_engine.storage import open_uri
from tests.cluster.logkeep import Resource, backup, restore
from tests.cluster.process import wait_until
from tests.data.topics import NO_RETENTION, Record, create_topic, end_offsets, produce
from tests.e2e.home import Home
from tests.unit.archive.build import archive_of, chunk

pytestmark = pytest.mark.timeout(900)


def _check_refused(resource: Resource, reason: str, *words: str) -> None:
    """Fail unless the run ended at the first try for this reason, and status and event both have the words."""
    status = resource.wait("Failed")
    assert status["run"]["outcome"] == "Failed"
    ready = resource.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", reason), ready
    assert resource.condition("Stalled")["status"] == "True"
    wait_until(lambda: "RunFailed" in str(resource.events()), 60, "the event of the failed run")
    (event,) = (event for event in resource.events() if event.startswith("RunFailed: "))
    assert event.startswith(f"RunFailed: {reason}: "), event
    for word in words:
        assert word in ready["message"], ready
        assert word in status["run"]["message"], status
        assert word in event, event
    wait_until(lambda: _has_failed(resource), 120, "the Job to be over")
    (job,) = resource.jobs()
    assert job["status"]["failed"] == 1, f"a refused run must not be tried again: {job['status']}"
    assert not [event for event in resource.events() if event.startswith("Retrying")], resource.events()


def _has_failed(resource: Resource) -> bool:
    conditions = [c for job in resource.jobs() for c in job["status"].get("conditions", [])]
    return any(condition["type"] == "Failed" and condition["status"] == "True" for condition in conditions)


def _saved(home: Home, topics: str, **changes: Any) -> Resource:
    document = backup("saved", home.broker.bootstrap, home.s3, home.uri, [topics], spark={})
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = document["spec"]
        for parent in parents:
            place = place[parent]
        place[last] = value
    return home.apply(document)


def _restored(home: Home) -> Resource:
    """A restore of the archive at this place, which no backup here has made."""
    document = restore("again", home.broker.bootstrap, "unused", spark={})
    storage = backup("unused", home.broker.bootstrap, home.s3, home.uri)["spec"]["storage"]
    document["spec"]["source"] = {"storage": storage}
    return home.apply(document)


def test_wrong_keys_of_the_object_store(home: Home) -> None:
    home.fill("any-a", 1, 1)
    keys = {"accessKeyId": home.s3.access_key, "secretAccessKey": "not-the-right-one"}
    home.logkeep.create_secret(home.namespace, "archive-s3", keys)

    _check_refused(_saved(home, "any-a"), "StorageRefused", home.uri)


def test_a_bucket_that_is_not_there(home: Home) -> None:
    home.fill("any-b", 1, 1)

    _check_refused(_saved(home, "any-b", storage__uri="s3://no-such-bucket/archive"), "BucketMissing", "no-such-bucket")


def test_a_pattern_that_matches_no_topic(home: Home) -> None:
    _check_refused(_saved(home, "there-is-no-such-topic"), "NoTopicMatches", "there-is-no-such-topic")


def test_a_target_topic_that_exists(home: Home) -> None:
    keys = {"AWS_ACCESS_KEY_ID": home.s3.access_key, "AWS_SECRET_ACCESS_KEY": home.s3.secret_key}
    storage = open_uri(home.uri, home.s3.endpoint, home.s3.region, keys)
    archive_of(storage, chunk(storage, 0, 50))
    create_topic(home.broker.bootstrap, "restored.orders")

    _check_refused(_restored(home), "TopicExists", "restored.orders")

    assert end_offsets(home.broker.bootstrap, "restored.orders") == {0: 0}, "nothing may be written"


def test_records_that_the_format_cannot_hold(home: Home) -> None:
    create_topic(home.broker.bootstrap, "with-tombstones", 1, NO_RETENTION)
    records = [Record(b"k", None if number % 2 else b"v", 1_700_000_000_000 + number) for number in range(10)]
    produce(home.broker.bootstrap, "with-tombstones", records)
    strict = {"format": "Avro", "formatOptions": {"compatibility": "strict"}, "topics__exclude": ["__.*"]}

    _check_refused(_saved(home, "with-tombstones", **strict), "FormatLoss", "with-tombstones", "5", "allowLoss")

    assert not [name for name in home.objects() if name.endswith(".data")], "nothing may be written"


def test_an_archive_that_is_not_there(home: Home) -> None:
    _check_refused(_restored(home), "ArchiveMissing", home.uri)


def test_a_broker_that_cannot_be_reached_fails_with_its_address_when_the_tries_are_used_up(home: Home) -> None:
    address = f"{home.broker.host}:9"
    changes = {"cluster__bootstrapServers": [address], "runPolicy": {"backoffLimit": 0}}
    saved = _saved(home, "any", **changes)

    status = saved.wait("Failed")

    assert saved.condition("Ready")["reason"] == "BrokerUnavailable", status
    assert address in saved.condition("Ready")["message"], status
    wait_until(lambda: address in str(saved.events()), 60, "the event of the failed run")
