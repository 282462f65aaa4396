"""The state of a cluster is one object of the archive, which the commit that ends the run names."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state, state_path
from logkeep_engine.archive.catalog.commits import dump_commit, load_commit
from logkeep_engine.archive.catalog.facts import ClusterStateEntry, RunOutcome
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.view import ends_of_runs
from logkeep_engine.cli import app
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin

STATE = ClusterState(
    "run-1",
    1_795_434_362_000,
    acls=(("TOPIC", "orders", "PREFIXED", "User:alice", "*", "READ", "ALLOW"),),
    quotas=(((("user", "alice"), ("client-id", None)), "producer_byte_rate", 1e6),),
    users=None,
    reasons={"scramUsers": "CLUSTER_AUTHORIZATION_FAILED: no"},
    defaults={"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "604800000"},
    configs=(
        ("CLIENT_METRICS", "slow", "interval.ms", "60000"),
        ("GROUP", "queue", "share.auto.offset.reset", "earliest"),
    ),
    settings={"log.retention.hours": "720"},
    features={"metadata.version": 33, "share.version": 1},
    left_out=(("queue\n", "share", "switched off"),),
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def archive(storage: Storage) -> Archive:
    data = STATE.to_json()
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS])
        storage.put(state_path("run-1"), data)
        writer.end(RunOutcome.SUCCEEDED, cluster_state=STATE.entry(data))
    return Archive.open(storage)


def test_a_state_is_read_as_it_was_written() -> None:
    assert ClusterState.from_json(STATE.to_json(), "x") == STATE
    bare = ClusterState("run-1", 1, configs=(), settings={})
    assert ClusterState.from_json(bare.to_json(), "x") == bare
    nothing = ClusterState("run-1", 1)
    assert ClusterState.from_json(nothing.to_json(), "x") == nothing
    everything = replace(STATE, users=(("alice", "SCRAM-SHA-512", 4096),), reasons={}, authorizer=False)
    assert ClusterState.from_json(everything.to_json(), "x") == everything


@pytest.mark.parametrize(
    "change",
    [
        {"acls": [["TOPIC", "orders", "LITERAL", 7, "*", "READ", "ALLOW"]]},
        {"acls": [["TOPIC", "orders", "LITERAL", None, "*", "READ", "ALLOW"]]},
        {"acls": [["TOPIC", "o" * 40_000, "LITERAL", "User:a", "*", "READ", "ALLOW"]]},
        {"quotas": [[[["user", 7]], "producer_byte_rate", 1.0]]},
        {"quotas": [[[["user", None]], None, 1.0]]},
        {"configs": [["GROUP", "queue", "share.auto.offset.reset", None]]},
        {"groupsLeftOut": [["queue", 7, "no"]]},
    ],
)
def test_words_that_are_none_are_damage(change: dict[str, list[object]]) -> None:
    document = json.loads(STATE.to_json())
    for key, rows in change.items():
        document[key]["rows"] = rows
    with pytest.raises(ArchiveDamaged, match="a word is not text, or too long"):
        ClusterState.from_json(json.dumps(document).encode(), "x")


@pytest.mark.parametrize(
    "defaults",
    [
        {"retention.ms": 7},
        {"retention.ms": "long"},
        {"retention.bytes": ""},
        {"min.insync.replicas": "2"},
        {"cleanup.policy": None},
        {"cleanup.policy": "x" * 40_000},
        [1],
        "retention.ms",
        None,
    ],
)
def test_defaults_that_no_broker_has_are_damage(defaults: object) -> None:
    document = json.loads(STATE.to_json())
    document["topicDefaults"] = defaults
    with pytest.raises(ArchiveDamaged):
        ClusterState.from_json(json.dumps(document).encode(), "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerSettings", {"log.retention.hours": 7}),
        ("brokerSettings", {"log.retention.hours": None}),
        ("brokerSettings", [1]),
        ("features", {"metadata.version": "33"}),
        ("features", {"metadata.version": True}),
        ("features", None),
        ("configs", {"columns": ["resource", "name", "key", "value"], "rows": [["TOPIC", "t", "retention.ms", "1"]]}),
    ],
)
def test_what_no_cluster_has_is_damage(key: str, value: object) -> None:
    document = json.loads(STATE.to_json())
    document[key] = value
    with pytest.raises(ArchiveDamaged):
        ClusterState.from_json(json.dumps(document).encode(), "x")


def test_the_end_of_a_run_names_what_it_has_archived(archive: Archive) -> None:
    end = next(ends_of_runs(archive, archive.load().commit))
    assert end.cluster_state is not None
    assert (end.cluster_state.acls, end.cluster_state.quotas, end.cluster_state.users) == (1, 1, None)
    assert load_commit(dump_commit(end), "x") == end
    assert read_cluster_state(archive, end) == STATE
    assert verify(archive).whole


def test_a_run_that_fails_names_nothing(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.end(RunOutcome.FAILED, "no", cluster_state=STATE.entry(STATE.to_json()))
    archive = Archive.open(storage)
    assert archive.read_commit(archive.load().commit).cluster_state is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda storage: storage.delete([state_path("run-1")]), "it is missing"),
        (lambda storage: storage.put(state_path("run-1"), STATE.to_json() + b" "), "its SHA-256 is not the one"),
    ],
)
def test_damage_is_found(archive: Archive, storage: Storage, damage: object, said: str) -> None:
    assert callable(damage)
    damage(storage)
    with pytest.raises(ArchiveDamaged, match=said):
        read_cluster_state(archive, next(ends_of_runs(archive, archive.load().commit)))
    (fault,) = verify(archive).faults
    assert "runs/run-1/cluster-state.json" in str(fault)
    assert said in fault.what


def test_an_object_of_a_newer_version_is_refused() -> None:
    newer = json.dumps({**json.loads(STATE.to_json()), "tokens": []}).encode()
    with pytest.raises(ArchiveMismatch, match="unknown keys tokens"):
        ClusterState.from_json(newer, "x")
    with pytest.raises(ArchiveDamaged, match="runId"):
        ClusterState.from_json(b'{"format":1}', "x")


@pytest.mark.parametrize("entry", [("short", 1, 1, 1), ("0" * 64, -1, 0, 0)])
def test_an_impossible_entry_is_refused(entry: tuple[str, int, int, int]) -> None:
    with pytest.raises(ValueError, match="is not the state of a cluster"):
        ClusterStateEntry(*entry)


def test_inspect_shows_it(archive: Archive, storage: Storage) -> None:
    shown = CliRunner().invoke(app, ["inspect", storage.uri, "--cluster-state"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "1 ACL, 1 client quota, SCRAM users not archived, at 2026-11-23T" in shown.output
    assert "PREFIXED" in shown.output
    assert "user alice, client-id <default>" in shown.output
    assert "not archived: scramUsers: CLUSTER_AUTHORIZATION_FAILED: no" in shown.output
    for word in ("604800000", "share.auto.offset.reset", "log.retention.hours", "share.version", "switched off"):
        assert word in shown.output
    found = json.loads(CliRunner().invoke(app, ["inspect", storage.uri, "--output", "json"]).stdout)
    assert found["clusterState"]["topicDefaults"]["retention.ms"] == "604800000"
    assert found["clusterState"]["configs"][1] == ["GROUP", "queue", "share.auto.offset.reset", "earliest"]
    assert found["clusterState"]["features"] == {"metadata.version": 33, "share.version": 1}
    assert found["clusterState"]["brokerSettings"] == {"log.retention.hours": "720"}
    assert found["clusterState"]["groupsLeftOut"] == [["queue\n", "share", "switched off"]]
    assert found["clusterState"]["acls"] == [["TOPIC", "orders", "PREFIXED", "User:alice", "*", "READ", "ALLOW"]]
    storage.delete([state_path("run-1")])
    without = CliRunner().invoke(app, ["inspect", storage.uri], env={"COLUMNS": "200"})
    assert without.exit_code == 0
    assert "cluster-state.json: it is missing" in without.output
