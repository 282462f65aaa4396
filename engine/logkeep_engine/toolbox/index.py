"""One index of a segment: what it is, and what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from logkeep_engine.archive import names
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.files import display
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogSource


class IndexVerdict(StrEnum):
    GOOD = "good"
    SPARSER = "differs, but is right"
    WRONG = "wrong"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """The log is damaged, so it is unknown what the index should be."""


@dataclass(frozen=True, slots=True)
class Index:
    """One index object. `made` is what it should be; None: unknown. `found` None: it is not there.

    `committed`: the catalog names it, or its segment.
    """

    storage: Storage = field(repr=False)
    path: str
    topic: str
    partition: int
    state: IndexVerdict
    faults: tuple[str, ...]
    found: bytes | None = field(repr=False)
    made: bytes | None = field(repr=False)
    committed: bool
    log: str = field(repr=False)
    """The path of the log, or the records, that it is made from."""

    @property
    def name(self) -> str:
        return display(self.storage, self.path)

    @property
    def stale(self) -> bool:
        """It should be rewritten, or, if it is a transaction index without an entry, go."""
        if self.made is None:
            return False
        return (self.found or b"") != self.made or (self.found is None and not self.may_be_absent)

    @property
    def may_be_absent(self) -> bool:
        """An index of this kind does not exist if it has no entry."""
        return self.path.endswith(names.TXNINDEX)


def index_of(
    source: LogSource,
    segment: ToolboxSegment,
    path: str,
    state: IndexVerdict,
    faults: Sequence[str],
    found: bytes | None,
    made: bytes | None,
) -> Index:
    """Return the index at `path` with what was found of it and what it should be."""
    if made is not None and found is not None and state is IndexVerdict.GOOD:
        made = found  # reserved zeros after the entries are not a reason to rewrite it
    return Index(
        source.storage,
        path,
        segment.topic,
        segment.partition,
        state,
        tuple(faults),
        found,
        made,
        source.archive is not None,
        segment.path,
    )
