"""The questions of the planner to brokers that do not know all topics."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from logkeep_engine.backup.planning.planner import BackupPlanner
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.topics import TopicInfo

SPEC = {
    "cluster": {"bootstrapServers": ["127.0.0.1:1"]},
    "topics": {"include": [".*"]},
    "storage": {"uri": "file:///archive"},
}


class Knowing:
    """It knows these topics alone."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: {} for name in names if name in self.known}


@pytest.mark.parametrize(("known", "silent"), [(("a", "b"), []), (("a",), ["b"])])
def test_only_topics_without_a_configuration_are_reported(
    known: tuple[str, ...], silent: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    connection = KafkaConnection(("127.0.0.1:1",))
    planner = BackupPlanner("run-1", parse_backup(SPEC), cast(Any, None), cast(Any, Knowing(*known)), connection)
    found = planner._configs([TopicInfo(name, f"id-{name}", (), 1, False) for name in ("a", "b")])
    assert sorted(found) == sorted(known)
    lines = [f"topic {name!r} does not answer: no broker reports its configuration" for name in silent]
    assert caplog.messages == lines
