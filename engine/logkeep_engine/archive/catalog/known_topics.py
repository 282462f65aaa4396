"""Adds to a topic what the archive knows and a run that sees the topic again does not say."""

from __future__ import annotations

from dataclasses import replace

from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState


def with_known_facts(state: ArchiveState, topic: TopicEntry) -> TopicEntry:
    """Return the topic with all that the archive knows of it.

    It has all partitions that were seen once. Kafka removes none, but a number may come from an old state: a
    plan that was stored before another run, or a broker that is late. Readers look for no partition above the number.

    It also says up to which run it was compacted only (`TopicEntry.compacted_until`), since retention must know what
    the points of those runs are, and up to which it was compacted at all: what was overwritten then is in no point.
    """
    known = state.topics.get(topic.topic_id)
    if known is None:
        return topic
    compacted = cleaned = 0
    if not topic.is_compacted_only:
        compacted = _newest_point(state) if known.is_compacted_only else known.compacted_until
    if not topic.is_compacted:
        # Any run before this one counts, also one that was killed: what was overwritten then, no later run archives.
        cleaned = state.epoch - 1 if known.is_compacted else known.cleaned_until
    partitions = max(topic.partitions, known.partitions)
    return replace(topic, partitions=partitions, compacted_until=compacted, cleaned_until=cleaned)


def _newest_point(state: ArchiveState) -> int:
    """Return the epoch of the newest run that has succeeded; 0 if none has."""
    return max((run.epoch for run in state.successes()), default=0)
