"""An archive remembers of a topic what a run that sees it again does not say."""

from dataclasses import replace
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome, TopicEntry
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin

COMPACTED = replace(ORDERS, configs={"cleanup.policy": "compact"})
BOTH = replace(ORDERS, configs={"cleanup.policy": "compact,delete"})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def run(storage: Storage, number: int, topic: TopicEntry, outcome: RunOutcome = RunOutcome.SUCCEEDED) -> TopicEntry:
    """The topic in the archive when a run has seen it, as its commits and as a checkpoint have it."""
    with begin(storage, f"run-{number}") as writer:
        writer.commit(topics=[topic])
        writer.end(outcome)
        state = writer.state
    read = Archive.open(storage).load()
    assert read.same_facts(state)
    assert checkpoint.load(checkpoint.dump(state, "a"), "c")[1].same_facts(state)
    return read.topics[topic.topic_id]


def test_a_topic_that_is_no_longer_compacted_only_says_until_which_run_it_was(storage: Storage) -> None:
    assert run(storage, 1, COMPACTED).compacted_until == 0
    assert run(storage, 2, COMPACTED).compacted_until == 0
    assert run(storage, 3, BOTH, RunOutcome.FAILED).compacted_until == 2
    assert run(storage, 4, BOTH) == replace(BOTH, compacted_until=2)
    found = run(storage, 5, ORDERS)
    assert (found.compacted_until, found.cleaned_until, found.was_compacted) == (2, 4, True)
    assert run(storage, 6, COMPACTED) == COMPACTED
    assert run(storage, 7, ORDERS).compacted_until == 6


def test_a_topic_was_compacted_also_if_only_a_run_that_did_not_succeed_has_found_it_so(storage: Storage) -> None:
    """A point of the next run would be called exact, and lack what was overwritten before."""
    run(storage, 1, BOTH, RunOutcome.FAILED)
    assert run(storage, 2, ORDERS).was_compacted


def test_a_topic_was_compacted_also_if_the_run_was_killed_and_started_again(storage: Storage) -> None:
    with begin(storage, "run-1") as writer:
        writer.commit(topics=[COMPACTED])
    assert run(storage, 1, ORDERS).was_compacted


def test_a_topic_that_never_was_compacted_only_says_nothing(storage: Storage) -> None:
    assert run(storage, 1, ORDERS) == ORDERS
    assert run(storage, 2, BOTH) == BOTH


def test_a_topic_keeps_the_partitions_that_were_seen(storage: Storage) -> None:
    run(storage, 1, replace(ORDERS, partitions=3))
    assert run(storage, 2, ORDERS).partitions == 3
