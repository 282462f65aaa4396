"""The part of the status about the topics that a backup protects, and of those that it does not."""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.contract.facts.outcome import TopicCoverage
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition

_NAMES_IN_MESSAGE = 5


def coverage_of(result: RunResult, include: tuple[str, ...]) -> TopicCoverage | None:
    """Return the coverage, as far as the run has found it out; None if nothing is known. A run that no topic matches
    protects none. `include` has the run's patterns, if they are known."""
    if result.coverage is None and result.error_code == "NoTopicMatches" and include:
        return TopicCoverage(unmatched=len(include), patterns_unmatched=include)
    return result.coverage


def coverage_condition(found: TopicCoverage) -> Condition:
    """The condition is True if everything that the spec names is there and may be read. Topics that the spec leaves out
    do not count."""
    parts = (
        ("PatternsUnmatched", "patterns that choose no topic", found.unmatched, found.patterns_unmatched),
        ("TopicsUnreadable", "topics that may not be read", found.unreadable, found.topics_unreadable),
        ("TopicsVanished", "archived topics that are gone from the cluster", found.vanished, found.topics_vanished),
    )
    missing = [(reason, f"{what}: {total}{_named(names)}") for reason, what, total, names in parts if total]
    told = [f"Topics that are protected: {found.protected}", *(text for _, text in missing)]
    if found.left_out:
        told.append(f"others that are left out: {found.left_out}")
    message = cut("; ".join(told) + ".")
    if missing:
        return Condition(type="Coverage", status="False", reason=missing[0][0], message=message)
    return Condition(type="Coverage", status="True", reason="AllFound", message=message)


def _named(names: Sequence[str]) -> str:
    shown = names[:_NAMES_IN_MESSAGE]
    return f" ({', '.join(shown)}{', ...' if len(names) > len(shown) else ''})" if shown else ""
