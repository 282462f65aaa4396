"""The pods of a restore get the archive, the place of its state, and what says which part of it is wanted."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.storage import ArchiveSpec
from logkeep_operator.api import Phase
from logkeep_operator.resources import RunToStart
from logkeep_operator.resources.credentials import KafkaAccess
from tests.unit.operator.test_resources import environment, pods_of, request_of
from tests.unit.operator.world import ENGINE, World, backup_spec, resource, restore_spec

READER = {"uri": "s3://archive", "credentials": {"secretRef": {"name": "reader"}}}
WRITER = {"uri": "s3://state", "credentials": {"secretRef": {"name": "writer"}}}


def run(archive: dict[str, Any], **spec: Any) -> RunToStart:
    wanted = restore_spec(**spec)
    made = resource("KafkaRestore", wanted)
    typed, place = parse_restore(wanted), ArchiveSpec.model_validate(archive)
    return RunToStart(made, "0123456789", typed, place, archive, ENGINE, KafkaAccess(typed.cluster))


def on_volume(uri: str, claim: str) -> dict[str, Any]:
    return {"uri": uri, "volume": {"claimName": claim}}


def test_archive_and_state_have_keys_of_their_own() -> None:
    made = run(READER, state=WRITER)
    for pod in pods_of(made):
        found = environment(pod)
        assert found["AWS_ACCESS_KEY_ID"] == {"secretKeyRef": {"name": "reader", "key": "accessKeyId"}}
        assert found["LOGKEEP_STATE_ACCESS_KEY_ID"] == {"secretKeyRef": {"name": "writer", "key": "accessKeyId"}}
        assert found["LOGKEEP_STATE_SECRET_ACCESS_KEY"] == {
            "secretKeyRef": {"name": "writer", "key": "secretAccessKey"}
        }
        assert found["LOGKEEP_STATE_SESSION_TOKEN"] == {
            "secretKeyRef": {"name": "writer", "key": "sessionToken", "optional": True}
        }
    assert request_of(made).spec["state"] == WRITER


def test_without_a_place_of_its_own_nothing_is_added_and_the_archive_is_mounted_writable() -> None:
    for pod in pods_of(run(on_volume("file:///archive", "backups"))):
        assert not any(name.startswith("LOGKEEP_STATE") for name in environment(pod))
        assert {"name": "archive", "mountPath": "/archive"} in pod["containers"][0]["volumeMounts"]
        assert {"name": "archive", "persistentVolumeClaim": {"claimName": "backups"}} in pod["volumes"]


def test_an_archive_beside_another_state_is_mounted_read_only() -> None:
    made = run(on_volume("file:///archive", "backups"), state=on_volume("file:///state/of/restores", "scratch"))
    for pod in pods_of(made):
        mounts = pod["containers"][0]["volumeMounts"]
        assert {"name": "archive", "mountPath": "/archive", "readOnly": True} in mounts
        assert {"name": "state", "mountPath": "/state/of/restores"} in mounts
        assert {"name": "archive", "persistentVolumeClaim": {"claimName": "backups", "readOnly": True}} in pod[
            "volumes"
        ]
        assert {"name": "state", "persistentVolumeClaim": {"claimName": "scratch"}} in pod["volumes"]


def test_one_claim_is_one_volume() -> None:
    for pod in pods_of(run(on_volume("file:///archive", "both"), state=on_volume("file:///state", "both"))):
        mounts = pod["containers"][0]["volumeMounts"]
        assert {"name": "archive", "mountPath": "/archive"} in mounts
        assert {"name": "archive", "mountPath": "/state"} in mounts
        claims = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
        assert claims == [{"name": "archive", "persistentVolumeClaim": {"claimName": "both"}}]


def test_the_archives_own_place_is_mounted_once() -> None:
    """The API server refuses a pod that mounts something at one path twice."""
    for pod in pods_of(run(on_volume("file:///archive", "both"), state=on_volume("file:///archive/", "both"))):
        paths = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert paths.count("/archive") == 1


@pytest.mark.parametrize("archive", ["file:///data", "file:///data/archive", "file:///data/archive/deep"])
@pytest.mark.parametrize("by_reference", [False, True])
def test_volumes_in_each_other_are_refused(archive: str, by_reference: bool) -> None:
    storage = on_volume(archive, "a")
    world = World("KafkaRestore", restore_spec(state=on_volume("file:///data/archive", "b")))
    if by_reference:
        world.backup = resource("KafkaBackup", backup_spec(storage=storage))
    else:
        world.edit(source={"storage": storage})
    world.settle()
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert world.message().startswith("spec.state.uri: a volume is mounted there and one at the archive's")
    assert world.jobs == {}


def test_a_state_needs_a_volume_for_files() -> None:
    world = World("KafkaRestore", restore_spec(state={"uri": "file:///state"}))
    world.settle()
    assert world.status.phase is Phase.INVALID
    assert world.message().startswith("spec.state.volume: required with a file:// uri")


def test_the_incarnations_that_were_chosen_reach_the_driver() -> None:
    wanted = {"orders": "4tYB2AxkRhSLhBXfMzPnZw"}
    for source in ({"backupRef": {"name": "nightly"}}, {"storage": READER}):
        made = run(READER, source={**source, "topicIds": wanted})
        assert request_of(made).spec["source"] == {"storage": READER, "topicIds": wanted}
