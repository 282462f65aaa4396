"""The status of a restore of everything says what became of ACLs, quotas and users."""

import json
from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import ClusterStateFacts, LossFact
from logkeep_engine.contract.facts.values import shortened
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import documents
from tests.unit.operator.test_reconcile import started

FACTS = ClusterStateFacts(
    source_run="backup-1",
    acls=41,
    acls_added=40,
    acls_refused=1,
    acls_held_back=3,
    held_back_list=tuple(f"ALLOW User:m{number} from *: ALL on TOPIC *" for number in range(20)),
    quotas=5,
    quotas_added=3,
    quotas_refused=1,
    quotas_kept=1,
    users_total=30,
    users_to_create=tuple(f"user-{number} (SCRAM-SHA-512, 4096 iterations)" for number in range(20)),
    report="s3://backups/runs/r/cluster-state-restored.json",
)


def test_the_status_has_what_the_result_says() -> None:
    world = started("KafkaRestore")
    world.reports(result=world.result(cluster_state=FACTS))
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    found = world.status.to_dict()["clusterState"]
    assert len(found.pop("usersToCreate")) == len(found.pop("heldBackList")) == 20
    assert found == {
        "sourceRun": "backup-1",
        "acls": 41,
        "aclsAdded": 40,
        "aclsRefused": 1,
        "aclsHeldBack": 3,
        "quotas": 5,
        "quotasAdded": 3,
        "quotasRefused": 1,
        "quotasKept": 1,
        "usersTotal": 30,
        "report": "s3://backups/runs/r/cluster-state-restored.json",
    }


def test_a_status_is_bounded_whatever_a_result_says_of_users_and_losses() -> None:
    said = "\U0001f600" * 3000
    world = started("KafkaRestore")
    world.reports(
        result=world.result(
            cluster_state=replace(FACTS, held_back_list=(said,) * 20, users_to_create=(said,) * 20),
            loss=(LossFact(topic="t" * 249, partition=0, start=0, end=1, reason=said),) * 20,
            loss_total=20,
        )
    )
    world.settle()
    assert len(json.dumps(world.status.to_dict(), ensure_ascii=False).encode()) < 128 << 10


def test_the_status_has_no_number_of_what_was_not_archived() -> None:
    world = started("KafkaRestore")
    world.reports(result=world.result(cluster_state=ClusterStateFacts(source_run="backup-1", quotas=0, quotas_added=0)))
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    assert world.status.to_dict()["clusterState"].keys() - {"report"} == {"sourceRun", "quotas", "quotasAdded"}


@pytest.mark.parametrize(
    "change",
    [
        {"aclsAdded": -1},
        {"report": 5},
        {"usersToCreate": [7]},
        {"quotas": "many"},
        {"aclsHeldBack": "3"},
        {"heldBackList": [7]},
    ],
)
def test_a_result_that_lies_is_not_believed(change: dict[str, Any]) -> None:
    world = started("KafkaRestore")
    reported = json.loads(world.result(cluster_state=FACTS).to_json())
    text = json.dumps({**reported, "clusterState": {**reported["clusterState"], **change}})
    metadata = {"name": "c-progress", "labels": {"logkeep.dev/run": world.run_id}}
    found = documents([{"metadata": metadata, "data": {"result.json": text}}])[world.run_id]
    assert found.result is None
    assert found.unreadable


def test_a_result_comes_back_from_json_as_it_was() -> None:
    result = RunResult(
        run_id="r",
        kind="KafkaRestore",
        outcome="Succeeded",
        exit_code=0,
        start_time=1.0,
        end_time=2.0,
        cluster_state=FACTS,
    )
    assert RunResult.from_json(result.to_json()) == result
    short = RunResult.from_json(result.to_termination_message(900))
    assert short.cluster_state == shortened(FACTS, 0, 2000)
    assert RunResult.from_json(replace(result, cluster_state=None).to_json()).cluster_state is None
