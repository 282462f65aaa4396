"""Which events say something new of a resource."""

from __future__ import annotations

from logkeep_engine.contract.model import replace
from logkeep_operator.api import Condition, Phase, Resource, RunStatus, Status
from logkeep_operator.event_filter import EventFilter, News
from tests.unit.operator.world import backup_spec, resource

WRITTEN = Status(
    phase=Phase.PENDING,
    conditions=(
        Condition(
            type="Ready",
            status="False",
            reason="RunStarted",
            message="It is being created.",
            last_transition_time="2026-11-22T08:00:00Z",
            observed_generation=1,
        ),
    ),
    run=RunStatus(id="0123456789", key="0123456789"),
)


def stored(of: Resource, status: Status) -> Resource:
    """The resource as the API tells of it."""
    body = {
        "metadata": {"name": of.key.name, "namespace": of.key.namespace, "uid": of.uid, "generation": of.generation},
        "spec": dict(of.spec),
        "status": status.to_dict(),
    }
    return replace(Resource.from_object(of.key.kind, body), annotations=of.annotations)


def test_what_was_never_looked_at_is_news() -> None:
    assert EventFilter().news(resource("KafkaBackup", backup_spec())) is News.RESOURCE


def test_an_own_write_is_none_also_when_its_event_comes_before_its_answer() -> None:
    seen, made = EventFilter(), resource("KafkaBackup", backup_spec())
    seen.note(made)
    assert seen.news(made) is News.NOTHING
    seen.note(made, WRITTEN)
    assert seen.news(stored(made, WRITTEN)) is News.NOTHING


def test_a_status_of_somebody_else_is_news_of_the_status() -> None:
    seen, made = EventFilter(), resource("KafkaBackup", backup_spec())
    seen.note(made, WRITTEN)
    assert seen.news(stored(made, Status())) is News.STATUS


def test_what_the_user_asks_for_is_news_of_the_resource() -> None:
    seen, made = EventFilter(), resource("KafkaBackup", backup_spec())
    seen.note(made, WRITTEN)
    now = stored(made, WRITTEN)
    for change in (
        replace(now, generation=2),
        replace(now, annotations={"logkeep.dev/run": "2"}),
        replace(now, deleting=True),
        replace(now, uid="another"),
    ):
        assert seen.news(change) is News.RESOURCE
    seen.forget(made.key)
    assert seen.news(now) is News.RESOURCE
