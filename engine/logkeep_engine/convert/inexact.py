"""Exact points in conversions: a target refuses the points that its source refuses.

Of a compacted partition the source may know from which offset on it is exact: its generation says so, or a snapshot
stands for a log that is gone. Either way older records of keys are missing below. The target says so by a generation
that is read to its end with its beginning. That is noted before the first chunk, so no point of the target is without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logkeep_engine.archive.catalog.facts import GenerationChange, GenerationStep, Partition
from logkeep_engine.archive.catalog.generations import NOWHERE, generation_of
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.convert.lineage import describe_old_ends
from logkeep_engine.convert.plan import ConvertChunk
from logkeep_engine.convert.source import ConvertSource


def carry_exact(writer: Writer, source: ConvertSource, chunks: Iterable[ConvertChunk]) -> None:
    """Note in the target from where on the partitions of these chunks are exact. A kill between the two commits leaves
    a generation that the next start makes active. Raises what `Writer.commit` does."""
    firsts: dict[Partition, int] = {}
    for chunk in chunks:
        key = (chunk.topic_id, chunk.partition)
        firsts[key] = min(chunk.start, firsts.get(key, chunk.start))
    state, known = writer.state, {key: generation_of(writer.state, key) for key in firsts}
    todo = {
        key: exact
        for key, exact in sorted(source.exact.items())
        if key in firsts and firsts[key] < exact and known[key].exact < exact
    }
    # Begun by an attempt that was killed before the second commit.
    begun = {key for key in todo if known[key].passive is not None}
    writer.change_generations(
        GenerationChange(*key, known[key].last + 1, GenerationStep.BEGIN) for key in todo if key not in begun
    )
    writer.change_generations(
        GenerationChange(*key, generation_of(state, key).last, GenerationStep.ACTIVATE, end=exact)
        for key, exact in todo.items()
    )


def describe_logs(source: ConvertSource) -> Iterator[str]:
    """The warnings about old ends of logs, and about partitions of which the source has no exact point."""
    yield from describe_old_ends(source)
    for key, exact in sorted(source.exact.items()):
        if exact == NOWHERE:
            yield (
                f"topic {source.topic_names[key[0]]!r} partition {key[1]} is compacted, and no point of the source is "
                "exact: keys may be missing in what is converted, too"
            )
