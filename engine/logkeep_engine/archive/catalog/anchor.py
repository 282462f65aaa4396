"""Whether a catalog is the one that was known before: the only module that holds it against an anchor.

Each commit has a SHA-256 of itself, and stands on the one before by naming its SHA-256. So commits are a chain, and the
hash of one is that of all before it.

An anchor is the number of a commit and its hash. A user who keeps it outside of the bucket sees that commits up to it
are gone, or that one of them was altered under a new hash, whatever else the bucket says. A reader follows the chain in
the commits that it reads anyway. Up to the checkpoint with which it begins it takes the checkpoint's word, as for all
facts; `logkeep verify` reads all commits and compares the checkpoints with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.contract.anchor import NEW, Anchor
from logkeep_engine.errors import ArchiveRolledBack

_HINT = (
    "Restore what is lost or altered, from a copy or from older versions of the bucket's objects, or find out "
    "who changed the archive. "
)
_HOW = (
    "To take the archive as it is, name what you have seen: a KafkaBackup with the annotation "
    "logkeep.dev/take-over={0} (and logkeep.dev/run to run at once; if that value is there already, it has been used: "
    "add a word, as '{0} again'), `logkeep backup` with --take-over {0}"
)


class AtCommit(Protocol):
    """A state after a commit, and the hash of that commit."""

    commit: int
    sha256: str


def newest(state: AtCommit) -> Anchor | None:
    """Return the anchor of the newest commit; None without commits."""
    return Anchor(state.commit, state.sha256) if state.sha256 else None


class AnchorCheck:
    """Holds one reading of the catalog against a claim: `note` what is read, then `check`."""

    def __init__(self, claim: ArchiveClaim) -> None:
        self._claim = claim
        self._consented = None if claim.consent in (None, NEW) else Anchor.parse(claim.consent)
        self._wanted = {anchor.commit for anchor in (claim.anchor, self._consented) if anchor is not None}
        self._hashes: dict[int, str] = {}

    def note(self, state: AtCommit) -> None:
        """Keep the hash of the state's commit, if it will be needed."""
        if state.commit in self._wanted:
            self._hashes[state.commit] = state.sha256

    def check(self, uri: str, state: AtCommit, taken_over: str, hash_of: Callable[[int], str]) -> None:
        """Raises ArchiveRolledBack if the archive does not have the anchor of the claim, unless the user has consented:
        by the newest commit, or by what the archive says with which consent it was `taken_over`. `hash_of` a commit on
        which the state stands: it is asked for those before the first that was noted."""
        anchor, consent = self._claim.anchor, self._claim.consent
        if anchor is None or self._has(anchor, state, hash_of):
            return
        if consent is not None:
            if consent == taken_over and (self._consented is None or self._has(self._consented, state, hash_of)):
                return
            if self._consented is not None and newest(state) == self._consented:
                return
            if consent == NEW and state.commit < 0:  # `archive.json` is all that is left
                return
        raise rolled_back(uri, anchor, state, consent)

    def _has(self, anchor: Anchor, state: AtCommit, hash_of: Callable[[int], str]) -> bool:
        if anchor.commit > state.commit:
            return False
        if anchor.commit not in self._hashes:  # it lies before the checkpoint that the state was read from
            self._hashes[anchor.commit] = hash_of(anchor.commit)
        return self._hashes[anchor.commit] == anchor.sha256


def rolled_back(uri: str, anchor: Anchor, state: AtCommit, consent: str | None = None) -> ArchiveRolledBack:
    """Return the error for an archive other than the one that `anchor` was taken from."""
    now = newest(state)
    if anchor.commit > state.commit:
        ends = f"ends with commit {state.commit}" if now is not None else "has no commit"
        what = f"The archive at {uri} {ends}, and it had commit {anchor.commit}: it was rolled back, or replaced"
    else:
        what = f"The history of the archive at {uri} up to commit {anchor.commit} is not the one that was known"
    stale = f". The consent {consent} does not name its newest commit" if consent is not None else ""
    return ArchiveRolledBack(f"{what} (known: {anchor}; now: {now or 'nothing'}){stale}.", hint=_hint(str(now or NEW)))


def gone(uri: str, anchor: Anchor) -> ArchiveRolledBack:
    """Return the error for an archive that is gone."""
    return ArchiveRolledBack(
        f"There is no archive at {uri} now; it had commit {anchor.commit} (known: {anchor}).", hint=_hint(NEW)
    )


def _hint(consent: str) -> str:
    restore = "" if consent == NEW else f", a restore with spec.source.expectCommit: {consent}"
    return f"{_HINT}{_HOW.format(consent)}{restore}."
