"""Configurations of topics and of brokers say which records Kafka deletes."""

import pytest

from logkeep_engine.log.cleanup import NO_LIMITS, LogLimits, least_kept, limits_of, topic_defaults


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"retention.ms": "1000", "retention.bytes": "-1"}, LogLimits(ms=1000)),
        ({"retention.ms": "-1", "retention.bytes": "5", "cleanup.policy": "delete"}, LogLimits(bytes=5)),
        ({"retention.ms": "7", "retention.bytes": "5", "cleanup.policy": "compact,delete"}, LogLimits(7, 5)),
        ({"retention.ms": "7", "retention.bytes": "5", "cleanup.policy": "compact, delete"}, LogLimits(7, 5)),
        ({"retention.ms": "7", "retention.bytes": "5", "cleanup.policy": "compact"}, NO_LIMITS),
        ({"retention.ms": "-1", "retention.bytes": "-1"}, NO_LIMITS),
        ({"retention.ms": "7"}, None),
        ({"retention.ms": "often", "retention.bytes": "5"}, None),
        ({}, None),
    ],
)
def test_limits_are_those_that_delete(values: dict[str, str], expected: LogLimits | None) -> None:
    assert limits_of(values) == expected


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ({}, {}),
        (
            {"log.retention.hours": "168", "log.retention.bytes": "-1", "log.cleanup.policy": "delete"},
            {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"},
        ),
        ({"log.retention.minutes": "2", "log.retention.hours": "168"}, {"retention.ms": "120000"}),
        ({"log.retention.ms": "5", "log.retention.minutes": "2", "log.retention.hours": "168"}, {"retention.ms": "5"}),
        ({"log.retention.hours": "-3", "log.retention.bytes": "-2"}, {"retention.ms": "-1", "retention.bytes": "-1"}),
        ({"log.retention.hours": "long", "log.retention.bytes": ""}, {}),
    ],
)
def test_brokers_give_topics_what_their_finest_key_says(brokers: dict[str, str], expected: dict[str, str]) -> None:
    assert topic_defaults(brokers) == expected


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ([], {}),
        ([{"log.retention.ms": "-1"}, {"log.retention.ms": "5"}, {"log.retention.ms": "30"}], {"retention.ms": "5"}),
        ([{"log.retention.ms": "5"}, {"log.retention.ms": "-1"}], {"retention.ms": "5"}),
        ([{"log.retention.bytes": "7"}, {"log.retention.ms": "5"}], {"retention.ms": "5", "retention.bytes": "7"}),
        ([{"log.cleanup.policy": "compact"}, {"log.cleanup.policy": "delete"}], {"cleanup.policy": "delete"}),
        ([{"log.cleanup.policy": "compact,delete"}, {"log.cleanup.policy": ""}], {"cleanup.policy": "compact,delete"}),
        ([{"log.cleanup.policy": "compact"}], {"cleanup.policy": "compact"}),
    ],
)
def test_where_brokers_differ_the_one_counts_that_keeps_least(
    brokers: list[dict[str, str]], expected: dict[str, str]
) -> None:
    assert least_kept(brokers) == expected
