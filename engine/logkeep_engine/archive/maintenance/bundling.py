"""Keeps the catalog of an old archive small: moves old commits into bundles, and removes checkpoints that are not
needed.

    bundle_old_commits(writer, now)      # at the end of a run

A bundle is written first (`archive.catalog.bundle`). Days later it is read back, and the objects of its commits are
deleted. So each commit is somewhere at any moment, and where there are two copies, the bundle wins. After a kill
between any two steps the next run continues. A run makes at most one bundle, and removes the commits of at most one, so
an archive with many commits gets its bundles in as many runs.

Nothing here is fenced, and nothing needs it: a bundle is created under a name that is used once, it holds commits that
cannot change, and it is never deleted. A run that comes late, after another one has taken over, does what that one
would do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import bundle
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.commit_reader import CatalogListing
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.errors import ObjectExists
from logkeep_engine.storage import ObjectInfo

log = logging.getLogger(__name__)

REST = 7 * 86_400_000
"""ms by the store's clock. A commit goes into a bundle when it is so old, and its own object is deleted when the bundle
is so old. No writer needs the time (see `catalog.writer`): it is for people who look at a catalog or copy it."""
_NEWEST = 2


@dataclass(frozen=True, slots=True)
class BundlingDone:
    """How many commits have come into a bundle, how many objects of commits and how many checkpoints were removed."""

    commits: int = 0
    removed: int = 0
    checkpoints: int = 0


def bundle_old_commits(writer: Writer, now: Callable[[], int], *, rest: int = REST) -> BundlingDone:
    """Do what is due. `now` says the time by the store's clock, in ms since the epoch; it is asked only if something
    may be due.

    Raises what `now` does, storage errors, and ArchiveDamaged for a commit or a bundle that cannot be read; what is
    left then is for the next run.
    """
    archive = writer.archive
    if writer.state.commit < names.BUNDLED:
        return BundlingDone()
    listing = archive.listing()
    full, doubled = _first_full(listing, writer.state.commit), _first_doubled(listing, writer.read_back)
    checkpoints = [] if listing.removable else useless_checkpoints(listing, writer.read_back)
    if checkpoints:
        archive.storage.delete(info.path for info in checkpoints)
        log.info("removed %d checkpoints that are not needed, first %s", len(checkpoints), checkpoints[0].path)
    if full is None and doubled is None:
        return BundlingDone(checkpoints=len(checkpoints))
    before = now() - rest
    removed = 0 if doubled is None else _remove_commits(archive, listing, doubled, before)
    made = 0 if full is None else _make_bundle(archive, listing, full, before)
    return BundlingDone(made, removed, len(checkpoints))


def useless_checkpoints(listing: CatalogListing, read_back: int) -> list[ObjectInfo]:
    """Find the checkpoints that can go: without them no state takes much longer to read.

    The newest two stay, and all that are not older than the one that was read. Of the others, in bundled ranges, one
    stays if the bundles between it and the last that stays are as large as itself: reading them instead would take as
    long. So the checkpoints that stay are together not larger than the bundles.
    """
    found: list[ObjectInfo] = []
    kept = 0
    for number, _, info in reversed(listing.checkpoints[_NEWEST:]):
        if number >= read_back or names.bundle_of(number) not in listing.bundles:
            break
        size = _bytes_up_to(listing, number)
        if size - kept >= info.size:
            kept = size
        else:
            found.append(info)
    return found


def _bytes_up_to(listing: CatalogListing, commit: int) -> int:
    """About the bytes that commits 0 to `commit` take in bundles."""
    last = names.bundle_of(commit)
    whole = sum(info.size for number, info in listing.bundles.items() if number < last)
    return whole + listing.bundles[last].size * (commit % names.BUNDLED + 1) // names.BUNDLED


def _first_full(listing: CatalogListing, last: int) -> int | None:
    """Return the first bundle that can be made, with at least one commit after it."""
    number = 0
    while number in listing.bundles:
        number += 1
    wanted = names.bundled(number)
    return number if wanted.stop <= last and listing.commits.keys() >= set(wanted) else None


def _first_doubled(listing: CatalogListing, read_back: int) -> int | None:
    """Return the first bundle whose commits are there a second time, if it lies below a checkpoint that was read."""
    number = min(map(names.bundle_of, listing.removable), default=None)
    return number if number is not None and names.bundled(number).stop - 1 <= read_back else None


def _make_bundle(archive: Archive, listing: CatalogListing, number: int, before: int) -> int:
    wanted = names.bundled(number)
    if max(listing.commits[commit].modified for commit in wanted) * 1000 > before:
        return 0
    beside = range(max(0, wanted.start - 1), wanted.stop + 1)  # they stand on what is before, and the next on them
    lines: dict[int, bytes] = {}
    hashes = {-1: ""}
    for commit, line in archive.read_chain(beside):
        lines[commit.number], hashes[commit.number] = line, commit.sha256
    some = [lines[commit] for commit in wanted]
    data = bundle.dump(archive.info.archive_id, wanted.start, some, hashes[wanted.start - 1], hashes[wanted.stop - 1])
    try:
        archive.storage.create(names.bundle_path(number), data)
    except ObjectExists:  # with the same commits: its number says which
        log.info("bundle %d was made by another run at the same time", number)
    return len(wanted)


def _remove_commits(archive: Archive, listing: CatalogListing, number: int, before: int) -> int:
    if listing.bundles[number].modified * 1000 > before:
        return 0
    # Right before the deletion, while the commits can still be read from their own objects.
    archive.check_bundle(number)
    gone = [info.path for commit, info in listing.removable.items() if names.bundle_of(commit) == number]
    archive.storage.delete(gone)
    log.info("removed %d commits that bundle %d has", len(gone), number)
    return len(gone)
