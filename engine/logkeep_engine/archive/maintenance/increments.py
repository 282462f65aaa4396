"""Incremental verifications: each reads what is new since the last one, and a share of the rest.

    cycle = VerifyCycle.load(archive, parts=30)
    entries = [entry for entry in entries if cycle.reads(entry)]
    cycle.after(state, faulty, newest_checkpoint, catalog_damaged).store(archive)

After `parts` verifications each object was read once: that is a cycle. Which of them reads a segment follows from its
name alone. What was damaged is read again each time, until it is whole or gone. The catalog is read as a whole by the
first of a cycle, and after damage of the catalog; the others begin with a checkpoint that was compared before.

`verified.json` keeps the place. It is written when a verification has ended, so one that is interrupted is done again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from zlib import crc32

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.nesting import WRONG
from logkeep_engine.contract.stored import Maybe, StoredDocument
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, ArchiveUnsigned, ObjectMissing, ObjectTooLarge
from logkeep_engine.log.memory import task_bytes

log = logging.getLogger(__name__)

_VERIFIED = StoredDocument(
    "note of what was verified",
    1,
    {
        "archiveId": str,
        "parts": int,
        "done": int,
        "epoch": int,
        "checkpoint": Maybe({"path": str, "sha256": str}),
        "damaged": [(str, int, int, int, int)],
        "catalogDamaged": bool,
    },
)
_MOST_DAMAGED = 10_000
_NOTHING = -1

_Identity = tuple[str, int, int, int, int]


@dataclass(frozen=True, slots=True)
class ComparedCheckpoint:
    """A checkpoint that is the fold of the commits, and the hash of its content."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class VerifyCycle:
    """A cycle of `parts` verifications, of which `done` have finished.

    `epoch`: segments up to it were there when the last one ended. `base` is the last checkpoint that was compared.
    """

    parts: int
    done: int = 0
    epoch: int = _NOTHING
    base: ComparedCheckpoint | None = None
    damaged: frozenset[_Identity] = frozenset()
    catalog_damaged: bool = False

    @property
    def is_first(self) -> bool:
        """True if nothing was verified before: everything is new."""
        return self.epoch == _NOTHING

    def reads(self, entry: SegmentEntry) -> bool:
        """Tells whether the next verification reads a segment."""
        identity = _identity(entry)
        is_new = entry.epoch > self.epoch
        return is_new or identity in self.damaged or crc32(repr(identity).encode()) % self.parts == self.done

    def known(self, archive: Archive) -> ArchiveState | None:
        """Return the state with which the next verification of the catalog begins; None if it must read all commits."""
        if self.base is None or self.done == 0 or self.catalog_damaged:
            return None
        name = f"{archive.storage.uri}/{self.base.path}"
        try:
            data = archive.storage.read(self.base.path, most=task_bytes())
            head, _ = checkpoint.split(data, name)
            archive_id, state = checkpoint.load(data, name, archive.keys)
        except (ArchiveDamaged, ArchiveMismatch, ArchiveUnsigned, ObjectMissing, ObjectTooLarge) as error:
            log.info("all commits are read: %s", error)
            return None
        return state if (head["sha256"], archive_id) == (self.base.sha256, archive.info.archive_id) else None

    def after(
        self,
        state: ArchiveState,
        faulty: Iterable[SegmentEntry],
        compared: ComparedCheckpoint | None,
        catalog_damaged: bool,
    ) -> VerifyCycle:
        """Return the cycle after the verification of `state`, which has found damage of the segments `faulty`."""
        damaged = frozenset(map(_identity, faulty))
        if len(damaged) > _MOST_DAMAGED:
            return self  # the next verification does the same
        # The last run may add what it makes after its end.
        first_open = min((run.epoch for run in state.running), default=state.epoch)
        return replace(
            self,
            done=(self.done + 1) % self.parts,
            epoch=max(0, first_open - 1),
            base=compared or self.base,
            damaged=damaged,
            catalog_damaged=catalog_damaged,
        )

    @classmethod
    def load(cls, archive: Archive, parts: int) -> VerifyCycle:
        """Return the cycle as the last verification has left it. Another number of parts begins a new one. Raises
        ArchiveDamaged."""
        path = names.VERIFIED
        try:
            body = _VERIFIED.loads(archive.storage.read(path))
            base = body["checkpoint"]
            if base is not None and names.parse_checkpoint(base["path"]) is None:
                raise ValueError(f"{base['path']!r} is not a checkpoint")
            cycle = cls(
                body["parts"],
                body["done"],
                body["epoch"],
                None if base is None else ComparedCheckpoint(base["path"], base["sha256"]),
                frozenset(tuple(item) for item in body["damaged"]),
                body["catalogDamaged"],
            )
            archive_id = body["archiveId"]
        except ObjectMissing:
            return cls(parts)
        except ArchiveUnsigned as error:
            log.warning("not used, everything is read: %s", error.message)
            return cls(parts)
        except WRONG as error:
            raise ArchiveDamaged(
                f"{archive.storage.uri}/{path}: does not say what was verified: {error!r}",
                hint="The object was altered. Delete it: the next incremental verification reads everything.",
            ) from error
        if archive_id != archive.info.archive_id:
            return cls(parts)
        return cycle if cycle.parts == parts else replace(cycle, parts=parts, done=0)

    def store(self, archive: Archive) -> None:
        """Keep the place for the next verification."""
        base = None if self.base is None else {"path": self.base.path, "sha256": self.base.sha256}
        body = {
            "archiveId": archive.info.archive_id,
            "parts": self.parts,
            "done": self.done,
            "epoch": self.epoch,
            "checkpoint": base,
            "damaged": [list(item) for item in sorted(self.damaged)],
            "catalogDamaged": self.catalog_damaged,
        }
        archive.storage.put(names.VERIFIED, _VERIFIED.dumps(body))


def _identity(entry: SegmentEntry) -> _Identity:
    return entry.topic_id, entry.partition, entry.base_offset, entry.epoch, entry.attempt
