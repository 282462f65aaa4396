"""A broker that has just started does not know all topics: what it does not say of them is not taken for nothing."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.kafka import topics
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.configs import DescribedConfigs, Resource, describe_configs
from logkeep_engine.kafka.encoding import Call, Reader
from logkeep_engine.restore.run.opening import open_run
from logkeep_engine.restore.run.releasing import release
from logkeep_engine.restore.topics import held_topics
from logkeep_engine.restore.topics.targets import CreatedTopics
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import create_topic, produce
from tests.kafka.restores import back_up, backup_spec, bring_back, restore_spec, topic_settings
from tests.kafka.test_restore_shape import numbered
from tests.kafka.test_restores_of_one_topic import killed


@pytest.fixture
def archived(kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
    create_topic(kafka.bootstrap, unique, 1)
    produce(kafka.bootstrap, unique, numbered(100))
    back_up(backup_spec(kafka, tmp_path, unique))
    return f"{unique}-copy"


def not_knowing(monkeypatch: pytest.MonkeyPatch, owner: Any, step: str) -> None:
    """The broker knows no topic when it is asked for configurations first in this step."""
    usual, left = getattr(owner, step), list[str]()

    def asked(wanted: Iterable[Resource]) -> Call[DescribedConfigs]:
        resources = list(wanted)
        call = describe_configs(resources)
        if not left:
            return call
        left.pop()

        def answer(read: Reader) -> DescribedConfigs:
            gone = dict.fromkeys(resources, (int(Code.UNKNOWN_TOPIC_OR_PARTITION), ""))
            return DescribedConfigs(call.read(read).throttle_ms, {}, gone)

        return replace(call, read=answer)

    def begun(*arguments: Any, **named: Any) -> Any:
        left.append(step)
        found = usual(*arguments, **named)
        assert not left
        return found

    monkeypatch.setattr(topics, "describe_configs", asked)
    monkeypatch.setattr(owner, step, begun)


def test_a_run_that_is_started_again_gives_its_topics_their_own_configuration(
    kafka: KafkaBroker, archived: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would keep all records for ever, and nobody would be told."""
    with monkeypatch.context() as patch:
        patch.setattr(CreatedTopics, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            bring_back(restore_spec(kafka, tmp_path))
    not_knowing(monkeypatch, CreatedTopics, "finish")
    bring_back(restore_spec(kafka, tmp_path))
    assert topic_settings(kafka, archived) == {}


def test_a_topic_that_was_held_has_its_retention_again(
    kafka: KafkaBroker, archived: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would delete what is older than the broker's default."""
    own = {"retention.ms": str(90 * 86_400_000)}
    create_topic(kafka.bootstrap, archived, 1, own)
    spec = restore_spec(kafka, tmp_path, ifTopicExists="Append")
    spec["topics"]["retention"] = "Hold"
    not_knowing(monkeypatch, held_topics, "note_held")
    bring_back(spec)
    with open_run(parse_restore(spec), "restore-1", os.environ) as context:
        release(context)
    assert topic_settings(kafka, archived) == own
