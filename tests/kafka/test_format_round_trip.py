"""Whatever a topic holds: backed up in any format, converted through all of them and restored, it is the same.

broker -> backup in each format -> conversions -> restore -> broker
"""

import secrets
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from logkeep_engine.contract.model import replace
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import create_topic
from tests.examples import scaled
from tests.kafka.restores import (
    ThreadRunner,
    all_committed,
    back_up,
    backup_spec,
    bring_back,
    restore_spec,
    without_offsets,
)
from tests.kafka.test_round_trip_property import PARTITIONS, Example, examples, send
from tests.unit.convert.converting import Seen, contents, converted

FORMATS = ("Kafka", "Records", "Avro")


def written(example: Example) -> Example:
    """The example without compaction: the cleaner would come between two backups."""
    return replace(example, compacted=False)


def archived(root: Path, topic: str) -> list[list[Seen]]:
    """The records that a committed reader sees of an archive, by partition."""
    found = contents(open_uri(root.as_uri()))
    return [found.get((topic, partition), []) for partition in range(PARTITIONS)]


@settings(
    max_examples=scaled(8),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # each example takes seconds: shrinking would take minutes
    suppress_health_check=list(HealthCheck),
)
@given(example=examples().map(written), chain=st.permutations(FORMATS))
def test_a_topic_comes_back_the_same_through_every_format(
    kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory, example: Example, chain: list[str]
) -> None:
    topic = f"formats-{secrets.token_hex(4)}"
    root: Path = tmp_path_factory.mktemp(topic)
    kind = "LogAppendTime" if example.append_time else "CreateTime"
    create_topic(kafka.bootstrap, topic, PARTITIONS, {"message.timestamp.type": kind})
    for write in example.writes:
        send(kafka, topic, write)
        if write.backup_after:
            back_up_in_each(kafka, root, topic)
    back_up_in_each(kafka, root, topic)
    source = list(all_committed(kafka, {topic: PARTITIONS}).values())
    note(f"{topic} {chain}")

    expected = archived(root / "Kafka", topic)
    assert [[record[0] for record in partition] for partition in expected] == [
        [record[0] for record in partition] for partition in source
    ]
    for name in FORMATS:
        assert archived(root / name, topic) == expected, name
    here = root / chain[0]
    for number, name in enumerate([*chain[1:], chain[0]]):
        there = root / f"{number}-{name}"
        converted(open_uri(here.as_uri()), open_uri(there.as_uri()), name)
        assert archived(there, topic) == expected, name
        here = there
        suffix = f"-{number}"
        result = bring_back(
            restore_spec(kafka, here, suffix=suffix, allowEmpty=True), f"restore-{number}", ThreadRunner()
        )
        assert (result.outcome, result.records) == ("Succeeded", sum(map(len, source))), result.message
        copies = list(all_committed(kafka, {topic + suffix: PARTITIONS}).values())
        assert [*map(without_offsets, copies)] == [*map(without_offsets, source)], name


def back_up_in_each(kafka: KafkaBroker, root: Path, topic: str) -> None:
    selection = {"include": [topic], "exclude": ["_.*"]}
    for name in FORMATS:
        spec = backup_spec(kafka, root / name, topics=selection, format=name)
        back_up(spec, f"backup-{secrets.token_hex(4)}")
