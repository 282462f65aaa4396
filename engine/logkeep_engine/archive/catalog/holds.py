"""Holds: topics and runs of which nothing may be removed. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from logkeep_engine.archive import names
from logkeep_engine.contract.patterns import Pattern, PatternInvalid


class HoldKind(StrEnum):
    """`Topic`: all of the topics whose names a regular expression matches. `Run`: all that the archive held when the
    run had ended."""

    TOPIC = "Topic"
    RUN = "Run"


class HoldOrigin(StrEnum):
    """Who has asked for a hold, and may release it: the field of the KafkaBackup, or the command."""

    SPEC = "Spec"
    COMMAND = "Command"


@dataclass(frozen=True, slots=True, order=True)
class Hold:
    """`name` is a regular expression for names of topics, or the id of a run."""

    kind: HoldKind
    name: str
    origin: HoldOrigin

    def __post_init__(self) -> None:
        if self.kind is HoldKind.RUN:
            names.check_run_id(self.name)
            return
        try:
            Pattern(self.name)
        except PatternInvalid as error:
            raise ValueError(f"a hold on topics {self.name!r}: {error}") from error

    def __str__(self) -> str:
        return f"hold on {'topics' if self.kind is HoldKind.TOPIC else 'run'} {self.name}"


def topic_hold(holds: Iterable[Hold], topic: str) -> Hold | None:
    """Return the first hold on a topic of this name, if there is one."""
    return next((hold for hold in holds if hold.kind is HoldKind.TOPIC and Pattern(hold.name).matches(topic)), None)
