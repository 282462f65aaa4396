"""The endpoints of object stores that an installation allows, wherever a resource names them."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import parse_backup
from logkeep_operator.api import Phase, Status
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.reconcile.plan import Plan
from logkeep_operator.reconcile.reconcile import reconcile
from logkeep_operator.resources import NotAllowed, check_allowed
from logkeep_operator.settings import EngineSettings
from tests.unit.operator.world import ENGINE, START, World, backup_spec, resource, restore_spec

STRICT = EngineSettings("engine:1", allowed_endpoints=("https://minio.storage:9000", "http://old:9000"))


def at(endpoint: str | None) -> dict[str, Any]:
    place: dict[str, Any] = {"uri": "s3://bucket/prefix", "credentials": {"secretRef": {"name": "s3"}}}
    return place if endpoint is None else {**place, "endpoint": endpoint}


def refused(spec: dict[str, Any], engine: EngineSettings = STRICT) -> list[str]:
    parse = parse_backup if "storage" in spec else parse_restore
    try:
        check_allowed(parse(spec), engine)
    except NotAllowed as error:
        return [path for path, _ in error.problems]
    return []


@pytest.mark.parametrize(
    ("endpoint", "allowed"),
    [
        (None, True),
        ("https://minio.storage:9000", True),
        ("https://Minio.storage:9000/", True),
        ("http://old:9000", True),
        ("http://minio.storage:9000", False),
        ("https://minio.storage", False),
        ("https://minio.storage.evil.example:9000", False),
        ("http://127.0.0.1:9000", False),
    ],
)
def test_every_storage_of_a_resource_is_bound(endpoint: str | None, allowed: bool) -> None:
    assert refused(backup_spec(storage=at(endpoint))) == ([] if allowed else ["spec.storage.endpoint"])
    source = restore_spec(source={"storage": at(endpoint)})
    assert refused(source) == ([] if allowed else ["spec.source.storage.endpoint"])
    state = {**at(endpoint), "uri": "s3://other/state"}
    assert refused(restore_spec(state=state)) == ([] if allowed else ["spec.state.endpoint"])


@pytest.mark.parametrize(
    ("endpoint", "allowed"),
    [
        ("https://minio.storage:9000/realms/x/token", True), ("http://old:9000/token", True),
        ("http://minio.storage:9000/token", False), ("https://evil.example/realms/minio.storage:9000/token", False),
    ],
)  # fmt: skip
def test_who_gives_tokens_is_bound_by_its_origin(endpoint: str, allowed: bool) -> None:
    sasl = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "c"}, "oauth": {"tokenEndpoint": endpoint}}
    cluster = {"bootstrapServers": ["k:1"], "security": {"protocol": "SASL_SSL", "sasl": sasl}}
    expected = [] if allowed else ["spec.cluster.security.sasl.oauth.tokenEndpoint"]
    assert refused(backup_spec(cluster=cluster)) == expected
    assert refused(restore_spec(cluster=cluster, source={"storage": at(None)})) == expected


def test_without_a_word_no_endpoint_is_allowed_but_amazons_own() -> None:
    default = EngineSettings("engine:1")
    assert refused(backup_spec(storage=at("https://minio.storage:9000")), default) == ["spec.storage.endpoint"]
    assert refused(backup_spec(storage=at(None)), default) == []


def test_nothing_is_made_for_a_resource_whose_endpoint_is_not_allowed() -> None:
    world = World(spec=backup_spec(storage=at("https://evil.example")))
    plan = reconcile(Observed(world.resource), START, STRICT)
    assert plan.actions == ()
    assert plan.status is not None
    ready = plan.status.condition("Ready")
    assert ready is not None
    assert (plan.status.phase, ready.reason) == (Phase.INVALID, "NotAllowed")
    assert ready.message.startswith(
        "spec.storage.endpoint: the endpoint https://evil.example is not in the chart's engine.allowed.endpoints; ask "
        "the administrator of Logkeep"
    )


def test_a_restore_is_bound_by_the_endpoint_of_its_backup() -> None:
    backup = resource("KafkaBackup", backup_spec(storage=at("https://evil.example")))
    backup = replace(backup, status=Status(last_success_time="2026-11-20T00:00:00Z"))
    restore = resource("KafkaRestore", restore_spec())

    def plan(engine: EngineSettings) -> Plan:
        return reconcile(Observed(restore, backup=backup), START, engine)

    waiting = plan(STRICT)
    assert waiting.actions == ()
    assert waiting.status is not None
    found = waiting.status.condition("Ready")
    assert found is not None
    assert found.reason == "NotAllowed"
    assert (
        "spec.source.backupRef: KafkaBackup 'nightly' is not allowed: spec.storage.endpoint: the endpoint "
        "https://evil.example is not in the chart's engine.allowed.endpoints" in found.message
    )
    assert waiting.requeue_after == 15.0, "the installation may allow it meanwhile"
    assert [type(action).__name__ for action in plan(ENGINE).actions].count("Create") > 0
