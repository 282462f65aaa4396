"""The facts of a run that is still running."""

from __future__ import annotations

from logkeep_engine.contract.facts.values import Count, Facts, TopicName


class PartitionProgress(Facts):
    """Offsets are source offsets: this run does [start, end) and has done [start, at)."""

    topic: TopicName
    partition: Count
    start: Count
    end: Count
    at: Count
    records: Count
    bytes: Count


class TopicProgress(Facts):
    """A topic and how far it is."""

    topic: TopicName
    """Name of the topic."""
    done: Count
    """Offsets that are done."""
    total: Count
    """Offsets of this run."""
