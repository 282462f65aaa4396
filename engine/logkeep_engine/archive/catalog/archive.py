"""An archive at a storage: opened or made, and its history read from commits and the checkpoints that fold them.

    archive = Archive.open(storage)
    state = archive.load()

`writer` adds to it.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import logkeep_engine
from logkeep_engine import collector
from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import checkpoint, documents
from logkeep_engine.archive.catalog.anchor import AnchorCheck, gone
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.catalog.commit_reader import COPY, CatalogListing, CommitReader
from logkeep_engine.archive.catalog.documents import ArchiveInfo
from logkeep_engine.archive.catalog.facts import NO_COMMIT, Commit
from logkeep_engine.archive.catalog.kinds import MOST_OF_ALL_TOPICS
from logkeep_engine.archive.catalog.lost_tail import FoundTails, LostTail, find_lost_tails
from logkeep_engine.archive.catalog.signed_documents import SigningStorage, split
from logkeep_engine.archive.catalog.signing import UNSIGNED, of_commit, signing_keys, unsigned, unsigned_document
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.anchor import NEW
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.nesting import WRONG
from logkeep_engine.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveMissing,
    ArchiveUnsigned,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    StorageRefused,
)
from logkeep_engine.log.memory import task_bytes
from logkeep_engine.storage import NOTE_BYTES, ObjectInfo, Storage

log = logging.getLogger(__name__)

NO_CLAIM = ArchiveClaim()
_CHANGE_ATTEMPTS = 10


class Archive:
    """An archive at a storage. Readers `open` it and `load`; a backup `create_or_open`s it and begins a run (see
    `writer`)."""

    def __init__(self, storage: Storage, info: ArchiveInfo, claim: ArchiveClaim = NO_CLAIM) -> None:
        self.info = info
        self.claim = claim
        self.keys = claim.keys or signing_keys(os.environ)
        self.storage = SigningStorage(storage, self.keys, info.archive_id)
        self._info_signed = False
        self._commits = CommitReader(self.storage.under, info.archive_id)

    @classmethod
    def open(cls, storage: Storage, claim: ArchiveClaim = NO_CLAIM) -> Self:
        """Open the archive. `claim` is what the caller knows of it; every load holds the catalog against its anchor.

        Raises ArchiveMissing if there is none, or ArchiveRolledBack if the claim knows of one, and ArchiveMismatch if
        its format is another.
        """
        try:
            data = SigningStorage.beneath(storage).read(names.ARCHIVE, most=NOTE_BYTES)
        except ObjectMissing as error:
            storage.check()  # a missing bucket is another error than an empty one
            if claim.anchor is not None and claim.consent != NEW and not storage.list(names.CATALOG):
                raise gone(storage.uri, claim.anchor) from error
            raise ArchiveMissing(
                f"There is no archive at {storage.uri}: {names.ARCHIVE} does not exist.",
                hint="Check the URI; the first backup creates the archive.",
            ) from error
        content, signature = split(data)
        archive = cls(storage, documents.load_info(content, f"{storage.uri}/{names.ARCHIVE}"), claim)
        # Whether it must be signed is known when the catalog is read.
        archive._info_signed = archive.storage.is_signed(names.ARCHIVE, content, signature)
        return archive

    @classmethod
    def create_or_open(
        cls,
        storage: Storage,
        cluster_id: str,
        segments: FormatName = FormatName.KAFKA,
        *,
        imported: bool = False,
        claim: ArchiveClaim = NO_CLAIM,
    ) -> Self:
        """Return the archive of Kafka cluster `cluster_id` in format `segments`, made if there is none. Who is going to
        write calls this. `imported`: the archive is made from what another tool wrote.

        Raises ArchiveMismatch if the archive is another cluster's, or of another format, and StorageRefused if the
        store does not honour conditional creates, since then two runs could overwrite each other's commits.
        """
        try:
            archive = cls.open(storage, claim)
        except ArchiveMissing:
            _create(storage, cluster_id, segments, imported, claim)
            archive = cls.open(storage, claim)
        _check_continues(archive, cluster_id, segments, imported)
        _check_conditional_creates(archive)
        return archive

    @classmethod
    def open_to_go_on(
        cls, storage: Storage, cluster_id: str, segments: FormatName = FormatName.KAFKA, claim: ArchiveClaim = NO_CLAIM
    ) -> Self | None:
        """Return the archive that `create_or_open` would open, None if it would make one. Nothing is written, also not
        to find out about conditional creates.

        Raises ArchiveMismatch, and ArchiveDamaged if archive.json is missing.
        """
        try:
            archive = cls.open(storage, claim)
        except ArchiveMissing:
            _refuse_without_info(storage)
            return None
        _check_continues(archive, cluster_id, segments, imported=False)
        return archive

    def load(self) -> ArchiveState:
        """Return the state now: the newest checkpoint that can be read, and all later commits.

        Raises ArchiveDamaged naming the first commit that is missing or unreadable.
        """
        return self.load_and_count()[0]

    def load_at(self, commit: int) -> ArchiveState:
        """Return the state after commit number `commit`. Raises ArchiveDamaged as `load` does."""
        with collector.paused():
            listing = self.listing()
            state, since = self._folded(listing, commit)
            self._check(state)
            self.require_signature(state, listing.last, since.read_back)
            return state

    def require_signature(self, state: ArchiveState, last: int, checkpoint: int = NO_COMMIT) -> None:
        """Raises ArchiveUnsigned if there are keys to trust, and none has signed the commit of `state` or one up to
        `last` that stands on it. Nor need it if it was read from the checkpoint after that commit, which is signed.

        The owner of an archive of which nothing is signed may continue if they name its newest commit, by an anchor or
        a consent: his first commit signs what is there."""
        if not self.keys:
            return
        if state.commit in (checkpoint, NO_COMMIT):
            self._require_signed_info(state)
            return
        signed, sha256, newest = False, state.sha256, ""
        for commit, _ in self.read_chain(range(state.commit, last + 1)):
            if commit.number == state.commit and commit.sha256 != sha256:
                raise ArchiveDamaged(f"{self._commits.name_of(commit.number)} was replaced in the meantime.", hint=COPY)
            if self.is_signed(commit):
                self._require_signed_info(state)
                return
            signed, newest = signed or bool(commit.signer), f"{commit.number}:{commit.sha256}"
        named = newest in (str(self.claim.anchor), self.claim.consent)
        if signed or not named or self.claim.owner is None or self.keys.own is None:
            raise unsigned(f"{self.storage.uri}: no trusted key has signed commit {state.commit}, nor one up to {last}")
        self.storage.before_signing = True

    def _require_signed_info(self, state: ArchiveState) -> None:
        """Raises ArchiveUnsigned if the catalog is signed, and archive.json is not."""
        if state.commit == NO_COMMIT:
            self.storage.before_signing = self.keys.own is not None
        elif not self._info_signed:
            raise unsigned_document(f"{self.storage.uri}/{names.ARCHIVE}", UNSIGNED)

    def sign_documents(self, state: ArchiveState) -> None:
        """Sign all documents that are there before the first backup that one's own key signs: from then on each one is
        signed, and no other key is needed. A kill leaves some of them signed, which is as good. Raises what the storage
        does, and ArchiveUnsigned."""
        is_first = state.signed_since == NO_COMMIT
        if self.keys.own is None or (not is_first and self._has_signed_since_a_backup(state)):
            return
        self.storage.before_signing = is_first
        self.storage.sign_all()
        self.storage.before_signing = False
        self.read_info()
        self._info_signed = True  # or it would not have been read

    def _has_signed_since_a_backup(self, state: ArchiveState) -> bool:
        """Tell whether one's own key has signed all commits from the last one of a backup on. Runs of other kinds may
        come before the first backup with a key, and sign no documents but their own."""
        last = max((run.epoch for run in state.runs.values() if run.kind == BACKUP), default=0)
        for number in range(state.commit, -1, -1):
            commit = self.read_commit(number)
            if commit.signer != self.keys.signer:
                return False
            if commit.epoch <= last:
                return True
        return False

    def is_signed(self, commit: Commit) -> bool:
        """Tell whether a trusted key has signed the commit. Raises ArchiveUnsigned if it says so and is not right."""
        text = of_commit(commit.number, commit.sha256)
        return self.keys.check(commit.signer, text, commit.signature, self._commits.name_of(commit.number))

    def listing(self) -> CatalogListing:
        """Return the objects of the catalog, listed."""
        return self._commits.listing()

    def read_commit(self, number: int) -> Commit:
        """Read commit `number`. Raises ArchiveDamaged if it is not there, cut short, altered or another archive's."""
        return self._commits.read(number)

    def read_commits(self, numbers: Sequence[int]) -> Iterable[Commit]:
        """Return the commits in order, read concurrently, with bounded memory. Raises what `read_commit` does."""
        return self._commits.read_all(numbers)

    def bundled_commit(self, number: int) -> Commit | None:
        """Return the commit as its bundle has it, None if there is no bundle of it. Asks the storage: what was listed
        before may be old."""
        return self._commits.bundled(number)

    def read_chain(self, numbers: Sequence[int]) -> Iterable[tuple[Commit, bytes]]:
        """Commits that follow each other, and their bytes as they were written. Raises what `read_commit` does, and
        ArchiveDamaged for one that does not stand on the one before."""
        return self._commits.read_chain(numbers)

    def hash_under(self, state: ArchiveState, number: int) -> str:
        """Return the hash of a commit on which `state` stands: all commits between are looked at. Raises ArchiveDamaged
        if they are not a chain, or lead to another state."""
        hashes = [commit.sha256 for commit, _ in self.read_chain(range(number, state.commit + 1))]
        if hashes[-1] != state.sha256:
            raise ArchiveDamaged(
                f"{self._commits.name_of(state.commit)} has the hash {hashes[-1]}, but the checkpoint before it "
                f"belongs to a history in which it has {state.sha256}.",
                hint="`logkeep verify` compares all checkpoints with the commits.",
            )
        return hashes[0]

    def continues_after(self, last: int) -> bool:
        """Return whether there is a commit after `last`. Objects that were listed before the answer No are none of a
        run that begins later."""
        return self.read_or_none(names.commit_path(last + 1)) is not None or self.bundled_commit(last + 1) is not None

    def check_bundle(self, number: int) -> None:
        """Read a bundle from the storage, whole. Raises ArchiveDamaged if it is not what was written, or if one of its
        commits is not whole."""
        self._commits.check_bundle(number)

    def read_info(self) -> None:
        """Read archive.json again. Raises ObjectMissing, and what reading it the first time does."""
        data = self.storage.read(names.ARCHIVE, most=NOTE_BYTES)
        self.info = documents.load_info(data, f"{self.storage.uri}/{names.ARCHIVE}")

    def change_info(self, change: Callable[[ArchiveInfo], ArchiveInfo]) -> None:
        """Change archive.json as `change` says of what is there, which another run may have changed. Raises what
        `change` does, and ArchiveBusy if others change it all the time."""
        for _ in range(_CHANGE_ATTEMPTS):
            version = self.storage.version(names.ARCHIVE)
            self.read_info()
            wanted = change(self.info)
            if wanted == self.info:
                return
            try:
                with self.storage.writer(names.ARCHIVE, replaces=version) as out:
                    out.write(documents.dump_info(wanted))
            except ObjectExists:
                continue  # it was changed in the meantime, or by this very call, whose answer was lost
            self.info = wanted
            return
        raise ArchiveBusy(f"{self.storage.uri}/{names.ARCHIVE} is being changed by other runs.", hint="Try again.")

    def read_checkpoint(self, path: str) -> ArchiveState:
        """Return the state in a checkpoint. Raises ArchiveDamaged if it is cut short, altered, misnamed or another
        archive's, and ArchiveUnsigned if no trusted key has signed it."""
        name = f"{self.storage.uri}/{path}"
        archive_id, state = checkpoint.load(self.storage.read(path, most=task_bytes()), name, self.keys)
        named = names.parse_checkpoint(path)
        if archive_id != self.info.archive_id or named is None or named[0] != state.commit:
            raise ArchiveDamaged(
                f"{name} holds the state after commit {state.commit} of archive {archive_id}.",
                hint="Delete it: the commits hold the same.",
            )
        return state

    def lost_tails(self, state: ArchiveState, *, thorough: bool = False) -> tuple[LostTail, ...]:
        """Return all that is known of commits that are gone from the catalog's end, by `state` that was loaded before.
        `thorough`: every heartbeat is read."""
        since = SinceCheckpoint(checkpoints=self.listing().checkpoints)
        return self.find_lost_tails(state, since, thorough=thorough).lost

    def find_lost_tails(self, state: ArchiveState, since: SinceCheckpoint, *, thorough: bool = False) -> FoundTails:
        """Return the lost tails, those among them that no run has recorded yet, and the highest epoch that a witness
        names."""
        return find_lost_tails(
            self.storage, self.info.archive_id, state, since.checkpoints, self.load, thorough=thorough
        )

    def load_and_count(self) -> tuple[ArchiveState, SinceCheckpoint]:
        """Return the state now, as `load` gives it, and what has gathered since the last checkpoint."""
        with collector.paused():
            while True:
                listing, check = self.listing(), AnchorCheck(self.claim)
                state, since = self._folded(listing, None, check)
                # A store may list late what it already reads.
                while (found := self._commits.unlisted(state.commit + 1)) is not None:
                    self._apply(state, found[0])
                    since.count(found[1])
                    check.note(state)
                if not self._commits.finds_bundles(state.commit):
                    self._check(state)
                    self.require_signature(state, state.commit, since.read_back)
                    check.check(self.storage.uri, state, self.info.taken_over, partial(self.hash_under, state))
                    return state, since
                # This reader was suspended: commits that it has read may not be those that were listed.

    def _folded(
        self, listing: CatalogListing, last: int | None = None, check: AnchorCheck | None = None
    ) -> tuple[ArchiveState, SinceCheckpoint]:
        """Return the state after commit `last`, or that of the newest checkpoint or commit, whichever is later."""
        for state, since in self._beginnings(listing, last):
            try:
                self._fold(state, since, listing, listing.last if last is None else last, check)
            except _OnAnother:
                path = names.checkpoint_path(since.read_back, state.epoch)
                log.warning("%s is left out: it does not belong to the commits that are there", path)
                continue
            return state, since
        raise AssertionError("the last beginning is without a checkpoint")

    def _beginnings(self, listing: CatalogListing, last: int | None) -> Iterator[tuple[ArchiveState, SinceCheckpoint]]:
        """Yield the states of the checkpoints that can be read, of those up to commit `last`, and at the end an empty
        one."""
        for number, _, info in listing.checkpoints:
            if last is not None and number > last:
                continue
            try:
                state = self.read_checkpoint(info.path)
            except (ArchiveDamaged, ArchiveUnsigned, ObjectMissing, ObjectTooLarge) as error:
                log.warning("%s is left out, the commits hold the same: %s", info.path, error)
                continue
            log.debug("%s: state after commit %d from its checkpoint", self.storage.uri, number)
            yield state, SinceCheckpoint(checkpoint_bytes=info.size, read_back=number, checkpoints=listing.checkpoints)
        yield ArchiveState(), SinceCheckpoint(checkpoints=listing.checkpoints)

    def _fold(
        self,
        state: ArchiveState,
        since: SinceCheckpoint,
        listing: CatalogListing,
        last: int,
        check: AnchorCheck | None,
    ) -> None:
        """Add the commits after `state` up to commit `last`. Raises _OnAnother if the checkpoint that `state` was read
        from is of other commits."""
        begun = state.commit
        if 0 <= begun == last and self._hash_or_none(begun) not in (None, state.sha256):
            raise _OnAnother
        if check is not None:
            check.note(state)
        for commit in self.read_commits(range(begun + 1, last + 1)):
            if 0 <= begun == state.commit and commit.previous != state.sha256:
                raise _OnAnother
            self._apply(state, commit)
            since.count(listing.size_of(commit.number))
            if check is not None:
                check.note(state)

    def _hash_or_none(self, number: int) -> str | None:
        """Return the hash of a commit, None if it cannot be read: a checkpoint holds what it has said."""
        try:
            return self.read_commit(number).sha256
        except ArchiveDamaged as error:
            log.warning("only a checkpoint has it: %s", error)
            return None

    def _apply(self, state: ArchiveState, commit: Commit) -> None:
        try:
            state.apply(commit)
        except WRONG as error:
            raise ArchiveDamaged(f"{self._commits.name_of(commit.number)}: {error}.", hint=COPY) from error

    def _check(self, state: ArchiveState) -> None:
        """Raises ArchiveDamaged for what no commits add up to, no matter who wrote them."""
        if why := _impossible(state):
            raise ArchiveDamaged(f"{self.storage.uri}/{names.CATALOG}: {why}.", hint=COPY)

    def read_or_none(self, path: str) -> bytes | None:
        """Return the content of an object, None if there is none of this name."""
        try:
            return self.storage.read(path)
        except ObjectMissing:
            return None


class _OnAnother(Exception):
    """The commits that are there do not stand on the one that a checkpoint names, or are another."""


@dataclass(slots=True)
class SinceCheckpoint:
    """The commits since the last checkpoint, and their size in bytes. `checkpoints` are all that were listed,
    `read_back` is the last commit of the one that was read, -1 if none was."""

    commits: int = 0
    bytes: int = 0
    checkpoint_bytes: int = 0
    read_back: int = -1
    checkpoints: list[tuple[int, int, ObjectInfo]] = field(default_factory=list)

    def count(self, size: int) -> None:
        """Count one more commit of `size` bytes."""
        self.commits += 1
        self.bytes += size


def _impossible(state: ArchiveState) -> str:
    """Tell what of a state no archive can hold: facts about topics that it does not know, or more partitions than
    clusters have. Empty if there is nothing of that."""
    tables = (state.segments, state.coverage, state.gaps, state.epochs, state.leaders, state.lines, state.snapshots)
    strange = {topic_id for table in (*tables, state.next_generations) for topic_id, _ in table} - state.topics.keys()
    if strange:
        return f"it has records of topic id {min(strange)!a}, and no such topic"
    count = sum(topic.partitions for topic in state.topics.values())
    return f"its topics have {count} partitions" if count > MOST_OF_ALL_TOPICS else ""


def _refuse_without_info(storage: Storage) -> None:
    """Raises ArchiveDamaged for a catalog without the object that says whose it is."""
    if not storage.list(names.CATALOG):
        return
    try:
        Archive.open(storage)  # another run may have made it, and committed, since this one has looked
    except ArchiveMissing:
        raise ArchiveDamaged(
            f"{storage.uri}/{names.ARCHIVE} is missing, but {names.CATALOG} has objects.",
            hint="Restore it from a copy of the archive, or use another URI.",
        ) from None


def _create(storage: Storage, cluster_id: str, segments: FormatName, imported: bool, claim: ArchiveClaim) -> None:
    """Make an archive, unless another run makes it at the same time."""
    _refuse_without_info(storage)
    info = ArchiveInfo(
        str(uuid.uuid4()),
        cluster_id,
        iso(time.time_ns() // 1_000_000),
        f"logkeep {logkeep_engine.__version__}",
        segments=segments,
        imported=imported,
        owner=claim.owner,
        taken_over=NEW if claim.consent == NEW else "",
    )
    signing = SigningStorage(storage, claim.keys or signing_keys(os.environ), info.archive_id)
    try:
        signing.create(names.ARCHIVE, documents.dump_info(info))
    except ObjectExists:
        log.info("%s was made by another run at the same time", storage.uri)


def _check_continues(archive: Archive, cluster_id: str, segments: FormatName, imported: bool) -> None:
    """Check that a backup of this cluster in this format can continue in the archive. Raises ArchiveMismatch if not."""
    uri, info = archive.storage.uri, archive.info
    if info.imported and not imported:
        raise ArchiveMismatch(
            f"The archive at {uri} was imported from another tool's files: no backup can continue it.",
            hint="Use another storage.uri for the backup.",
        )
    if info.segments is not segments:
        raise ArchiveMismatch(
            f"The archive at {uri} is of format {info.segments}, not {segments}.",
            hint="An archive has one format: write to another place, or use `logkeep convert` to make another archive "
            "of this one.",
        )
    if info.cluster_id != cluster_id:
        raise ArchiveMismatch(
            f"The archive at {uri} belongs to Kafka cluster {info.cluster_id}, not to {cluster_id}.",
            hint="Use another storage.uri for this cluster, or correct cluster.bootstrapServers.",
        )


def _check_conditional_creates(archive: Archive) -> None:
    """Check the store. Raises StorageRefused if it replaces an object that it was asked to create."""
    try:
        archive.storage.create(names.ARCHIVE, documents.dump_info(archive.info))
    except ObjectExists:
        return
    raise StorageRefused(
        f"{archive.storage.uri} overwrites an object that it was asked only to create: "
        "two runs could overwrite each other's commits.",
        hint="Use an object store with conditional writes (If-None-Match: *).",
    )
