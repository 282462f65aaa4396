"""The owner of an archive: `archive.json` names its writer, and no other begins a run in it.

A handover is one conditional write of `archive.json`, after the archive was read and no living run was seen in it, and
before the first commit of the new owner:

    read the catalog, compare the owner      another owner without a consent: nothing is written
    watch runs that have not ended           a living run is never interrupted: ArchiveBusy
    archive.json: owner, takenOver           If-Match: of two takers one wins
    the Begin commit                         a former owner that still writes is fenced by its number
    archive.json once more                   who was replaced meanwhile ends its run, and has done nothing

A kill after `archive.json` was written leaves an archive of the new owner without a run of it: it begins the next time.
A run of the former owner that had begun before may end, since its commits are as good as before. The first commit of
the new owner is made only when that run has ended or shows no life.
"""

from __future__ import annotations

from logkeep_engine.archive.catalog.anchor import newest
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.documents import ArchiveInfo
from logkeep_engine.archive.catalog.facts import NO_COMMIT
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.anchor import NEW
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP, ENV_SIGNING_DIR
from logkeep_engine.errors import ArchiveOwned, ArchiveUnsigned, by_place


def check_owner(archive: Archive, state: ArchiveState) -> None:
    """Raises ArchiveOwned if the archive, which was read as `state`, is not that of the claim with which it was opened.
    Writes nothing."""
    claim, owner = archive.claim, archive.info.owner
    if owner is None or owner == claim.owner or owner.label == claim.acts_for or state.commit < 0:
        return
    if claim.owner is not None and claim.consent is not None and _consented(archive, state):
        return
    raise _owned(archive, state)


def check_signs(archive: Archive, state: ArchiveState) -> None:
    """Raises ArchiveUnsigned if the run has no key to sign with, and the archive is signed or the run trusts keys: it
    would not take what it has written itself."""
    is_signed = state.signed_since != NO_COMMIT
    if archive.keys.own is None and (is_signed or archive.keys):
        known = f"has been signed since commit {state.signed_since}" if is_signed else "is to be signed"
        raise ArchiveUnsigned(
            f"The archive at {archive.storage.uri} {known}, but this run has no key to sign with.",
            hint=by_place(
                "Name the Secret with the private key in spec.storage.signing.secretRef.",
                f"Name a folder with it with --signing-dir or {ENV_SIGNING_DIR}.",
            ),
        )


def take(archive: Archive, state: ArchiveState, kind: str) -> None:
    """Make the claim's owner that of the archive if it has another owner or none, or if it was rolled back and is
    taken as it is. Only backups own archives. Raises ArchiveOwned if another owner took it in the meantime."""
    claim = archive.claim
    if kind != BACKUP or claim.owner is None:
        return
    taken_over = archive.info.taken_over
    if claim.consent is not None and _consented(archive, state):
        taken_over = claim.consent
    seen = archive.info.owner
    if (seen, archive.info.taken_over) == (claim.owner, taken_over):
        return

    def handed_on(info: ArchiveInfo) -> ArchiveInfo:
        if info.owner not in (seen, claim.owner):
            archive.info = info
            raise _owned(archive, state)
        return replace(info, owner=claim.owner, taken_over=taken_over)

    archive.change_info(handed_on)


def confirm_owner(archive: Archive) -> None:
    """Raises ArchiveOwned if the archive was handed on since the run has looked. The run has begun, so a run
    that takes the archive over from now on sees it."""
    before = archive.info.owner
    archive.read_info()
    if archive.info.owner != before:
        raise _owned(archive, None)


def _consented(archive: Archive, state: ArchiveState) -> bool:
    """Return whether the consent names the newest commit. A consent from before, with which the owner has the archive
    now, was used."""
    if state.commit < 0:  # there is none to name: `archive.json` is all that is left of it
        return archive.claim.consent == NEW
    now = newest(state)
    return now is not None and str(now) == archive.claim.consent


def _owned(archive: Archive, state: ArchiveState | None) -> ArchiveOwned:
    claim, owner, uri = archive.claim, archive.info.owner, archive.storage.uri
    now = newest(state) if state is not None else None
    who = f", not {claim.owner}" if claim.owner is not None else ""
    stale = ""
    if claim.consent is not None and now is not None:
        stale = f" The consent {claim.consent} does not name its newest commit, {now}."
    elif claim.acts_for is not None and owner is not None:
        stale = f" --owner says {claim.acts_for!r}, but its owner is {owner.label!r}."
    how = f"Use another storage.uri, or act once for its owner with --owner {owner.label if owner else ''}."
    if claim.owner is not None and now is not None:
        how = (
            "Use another storage.uri. To hand the archive over, stop its owner first; then give the KafkaBackup the "
            f"annotation logkeep.dev/take-over={now} (and logkeep.dev/run to run at once), or `logkeep backup` "
            f"--take-over {now}."
        )
    elif state is None:
        how = "It was handed over while this run was starting. `logkeep inspect` shows its owner."
    return ArchiveOwned(f"The archive at {uri} belongs to {owner or 'nobody'}{who}.{stale}", hint=how)
