"""The benchmark's topics: the same bytes each time, batches that the engine itself takes for sound."""

from itertools import islice

import pytest

from bench import topics
from bench.topics import FIRST_MS, TOPICS, Topic
from logkeep_engine.log.batch import check_crc, parse_header
from logkeep_engine.log.records import decode


@pytest.fixture
def _few_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a topic of 200 kB come again and again all the same."""
    monkeypatch.setattr(topics, "POOL_BATCHES", 8)


def small(topic: Topic) -> Topic:
    return topic.shrunk(topic.records * topic.record_bytes // 200_000)


@pytest.mark.usefixtures("_few_templates")
@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_batches_hold_the_records_of_the_partition(topic: Topic) -> None:
    topic = small(topic)
    templates = topics.pool(topic)
    for partition in range(min(topic.partitions, 4)):
        total = 0
        for batch in topics.batches(topic, templates, partition):
            header = parse_header(batch)
            check_crc(batch, 0, header)
            assert (header.base_offset, header.base_sequence) == (0, total)
            assert header.codec == topic.codec
            assert header.is_transactional == bool(topic.transactions)
            assert header.base_timestamp == FIRST_MS + total
            records = decode(batch)
            assert len(records) == header.record_count
            assert {len(record.value or b"") for record in records} == {topic.record_bytes}
            total += header.record_count
        assert total == topic.shares[partition]


@pytest.mark.parametrize(("name", "count"), [("single-100", 1), ("single-2m", 1), ("five-100", 5)])
def test_batches_of_services_that_do_not_wait_are_tiny_and_few_are_distinct(name: str, count: int) -> None:
    (topic,) = topics.named([name])
    templates = topics.pool(topic)
    assert {template.records for template in templates} == {count}
    assert 1_000 < len(templates) < 20_000


@pytest.mark.usefixtures("_few_templates")
def test_a_topic_has_the_same_bytes_each_time() -> None:
    topic = small(TOPICS[1])
    once, again = (list(islice(topics.batches(topic, topics.pool(topic), 0), 5)) for _ in range(2))
    assert once == again


def test_shares_add_up_and_may_be_skewed() -> None:
    for topic in TOPICS:
        assert sum(topic.shares) == topic.records
        assert len(topic.shares) == topic.partitions
    (skewed,) = topics.named(["skewed"])
    assert skewed.shares[0] == int(skewed.records * 0.9)


def test_values_compress_as_the_topic_says() -> None:
    plain, noise = topics.named(["plain-1k", "random-10k"])
    assert b"." not in topics.Values(plain).next()[:430]
    value = topics.Values(noise).next()
    assert len(set(value)) > 200


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(KeyError, match="no topic 'none': there are five-100,"):
        topics.named(["none"])
