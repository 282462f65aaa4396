"""Generations of compacted topics: read again from the log start, active when whole, healed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.kafka import KafkaBroker
from tests.kafka.keyed import Keyed

FORMATS = ["Kafka", "Records", "Avro"]
MakeKeyed = Callable[..., Keyed]


@pytest.fixture
def keyed(kafka: KafkaBroker, unique: str, tmp_path: Path) -> MakeKeyed:
    """Makes `Keyed`."""
    return lambda format_name="Kafka", **config: Keyed(kafka, unique, tmp_path / "archive", format_name, **config)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_tombstone_that_was_cleaned_before_it_was_archived_is_healed_by_a_new_generation(
    keyed: MakeKeyed, format_name: str
) -> None:
    topic = keyed(format_name)
    topic.put({"a": "1", "b": "1", "c": "1"})
    topic.back_up()
    first = topic.generation
    assert (first.number, first.passive, first.exact) == (1, None, 3)
    topic.put({"a": None})
    topic.clean_until_gone(3)
    topic.back_up()
    assert topic.archived[b"a"] == b"1", "nobody has told the archive that it is gone"

    topic.back_up(again=True)

    assert topic.archived == topic.live
    assert b"a" not in topic.archived
    second = topic.generation
    assert (second.number, second.passive, second.last) == (2, None, 2)
    assert second.began > first.began
    report = topic.verified()
    assert report.orphans == []
    topic.put({"b": "2"})
    topic.back_up()
    assert topic.archived == topic.live == topic.restored()
    assert topic.generation == second
