"""The questions of the planner to brokers that are slow to answer."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from logkeep_engine.backup.planning.planner import BackupPlanner
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.topics import TopicInfo

SPEC = {
    "cluster": {"bootstrapServers": ["127.0.0.1:1"]},
    "topics": {"include": [".*"]},
    "storage": {"uri": "file:///archive"},
}


class Slow:
    """Each of its answers comes when a topic may not be unknown any more."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: {} for name in names if name in self.known}


@pytest.mark.parametrize(("known", "silent"), [(("a", "b"), []), (("a",), ["b"])])
def test_only_topics_without_an_answer_are_told_when_the_answer_is_late(
    known: tuple[str, ...], silent: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    connection = KafkaConnection(("127.0.0.1:1",), limits=Limits(unknown=-1.0))
    planner = BackupPlanner("run-1", parse_backup(SPEC), cast(Any, None), cast(Any, Slow(*known)), connection)
    found = planner._configs([TopicInfo(name, f"id-{name}", (), 1, False) for name in ("a", "b")])
    assert sorted(found) == sorted(known)
    told = [f"topic {name!r} does not answer: no broker reports its configuration" for name in silent]
    assert caplog.messages == told
