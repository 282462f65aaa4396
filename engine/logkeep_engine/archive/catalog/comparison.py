"""Compares checkpoints with a state that grows from commit to commit, as `verify` does for all of them.

    comparison = CheckpointComparison(state)
    state.apply(commit); comparison.applied(commit)
    comparison.sha256_if_same(data, archive_id, name)     # its hash, if it is what `checkpoint.dump` makes of the state

Reading a checkpoint of a million segments takes seconds, and an archive may have dozens. What a checkpoint must say of
a partition is kept here as long as no commit changes it, so only bytes are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Commit, Partition
from logkeep_engine.archive.catalog.packed import SegmentBatch
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.nesting import WRONG

_PER_PARTITION = ("coverage", "gaps", "epochs", "leaders")
_HARMLESS = {
    *_PER_PARTITION,
    *(
        "number",
        "archive_id",
        "token",
        "kind",
        "run_id",
        "epoch",
        "time",
        "previous",
        "run_kind",
        "taken_over",
        "topics",
    ),
    *("segments", "groups", "outcome", "message", "partial", "cluster_state", "previous", "sha256"),
}
"""Attributes of a commit that change no other partitions than those that `_PER_PARTITION` and the segments name."""
_OTHERS = [(item.name, item.default) for item in fields(Commit) if item.name not in _HARMLESS]


class CheckpointComparison:
    """Compares checkpoints with `state`, which grows. Tell it of each commit that is applied."""

    def __init__(self, state: ArchiveState) -> None:
        self._state = state
        self._places: dict[Partition, int] = {}
        self._items: list[bytes] = []
        self._rows: list[bytes | bytearray] = []
        self._changed: set[Partition] = set()

    def applied(self, commit: Commit) -> None:
        """Note that the state has this commit now."""
        if any(getattr(commit, name) != default for name, default in _OTHERS):
            self._places.clear()  # it may have changed anything
        for name in _PER_PARTITION:
            self._changed.update((item.topic_id, item.partition) for item in getattr(commit, name))
        self._changed.update(_partitions(commit.segments))

    def sha256_if_same(self, data: bytes, archive_id: str, name: str) -> str | None:
        """Return the hash of the checkpoint's content if it says what the state says. None if it may say something
        else: then read it.

        Raises what `checkpoint.load` does.
        """
        head, body = checkpoint.split(data, name)
        if (head["archiveId"], head["commit"]) != (archive_id, self._state.commit):
            return None
        self._refresh()
        try:
            contents = checkpoint.frames_of(body, head["frames"])
            is_same = all(map(_equal, zip_longest(contents, self._wanted())))
        except WRONG:
            return None
        return str(head["sha256"]) if is_same else None

    def _wanted(self) -> Iterator[tuple[bytes, bytes]]:
        yield checkpoint.first_content(self._state, len(self._places)), b""
        for some in checkpoint.frame_bounds(list(map(len, self._rows))):
            yield b"[%b]\n" % b",".join(self._items[some]), b"".join(self._rows[some])

    def _refresh(self) -> None:
        """Make again what must be said of partitions that have changed."""
        again = list(self._changed)
        if not self._places or not self._changed <= self._places.keys():
            again = self._place_again()
        for key, item in zip(again, checkpoint.items_of(self._state, again), strict=True):
            at = self._places[key]
            self._items[at], self._rows[at] = item, checkpoint.rows_of(self._state, key)
        self._changed = set()

    def _place_again(self) -> list[Partition]:
        """Give every partition its place, and return those of which nothing is known or something has changed."""
        keys = checkpoint.keys_of(self._state)
        known = {key: (self._items[at], self._rows[at]) for key, at in self._places.items()}
        kept = [known.get(key, (b"", b"")) for key in keys]
        self._items, self._rows = [item for item, _ in kept], [rows for _, rows in kept]
        self._places = {key: at for at, key in enumerate(keys)}
        return [key for key in keys if key in self._changed or key not in known]


def _partitions(segments: Sequence[SegmentEntry]) -> Iterable[Partition]:
    if isinstance(segments, SegmentBatch):
        return segments.keys
    return ((entry.topic_id, entry.partition) for entry in segments)


def _equal(pair: tuple[bytes | None, tuple[bytes, bytes] | None]) -> bool:
    content, wanted = pair
    if content is None or wanted is None:
        return False
    index, rows = wanted
    return len(content) == len(index) + len(rows) and content.startswith(index) and content.endswith(rows)
