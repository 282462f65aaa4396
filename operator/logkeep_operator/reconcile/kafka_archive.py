"""The status of a KafkaArchive: what the runs of the backups and restores at its place have reported.

Nothing of it is a claim of a user: it is copied from statuses that the operator has written from reports that it has
checked. What is known stays when the backup that has reported it is deleted, since the archive stays, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from logkeep_engine.contract.archive_spec import parse_archive
from logkeep_engine.contract.checks import storage_problems
from logkeep_engine.contract.facts.values import MAX_LISTED
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.prices import price_text
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import ArchiveStatus, Condition, DrillStatus, Key, Resource, StatusOutcome
from logkeep_operator.api.archive import KafkaArchive, KafkaArchiveStatus, StorageCost, VerifiedRestore
from logkeep_operator.reconcile import conditions
from logkeep_operator.reconcile.drill import CONDITION as VERIFIED
from logkeep_operator.reconcile.drill import DRILL_FAILED
from logkeep_operator.reconcile.plan import Event
from logkeep_operator.reconcile.step import INVALID_SPEC, NOT_ALLOWED
from logkeep_operator.resources import NotAllowed, endpoint_problems
from logkeep_operator.settings import EngineSettings

USABLE = "Usable"
_USABLE = "KafkaBackups and KafkaRestores of this namespace may name it with archiveRef."
T = TypeVar("T", DrillStatus, VerifiedRestore)


@dataclass(frozen=True)
class ArchiveUsers:
    """The resources at the place of a KafkaArchive, by reference or with the same storage. `writer` is the backup that
    has the archive, and has written it."""

    backups: Sequence[Resource] = ()
    restores: Sequence[Resource] = ()
    writer: Resource | None = None

    @classmethod
    def among(cls, archive: KafkaArchive, at_place: Sequence[Resource], writers: frozenset[Key]) -> ArchiveUsers:
        """Return the users of a KafkaArchive among the resources at its place. `writers` are the backups that no other
        backup keeps from writing. Of several the one that has written last has the archive, unless one that is gone has
        written it later."""
        backups = [one for one in at_place if one.key.is_backup]
        written = [one for one in backups if one.key in writers and _is_of(archive, one)]
        written = [one for one in written if _write_time(one) is not None]
        written = [one for one in written if not _is_superseded(one, archive.status.archive)]
        writer = max(written, key=lambda one: (_write_time(one) or 0.0, one.key), default=None)
        return cls(backups, [one for one in at_place if one.key.is_restore], writer)


def archive_status(
    archive: KafkaArchive, users: ArchiveUsers, engine: EngineSettings, now: datetime
) -> tuple[KafkaArchiveStatus, tuple[Event, ...]]:
    """Return the status that the KafkaArchive is to have, and the events that tell what has changed."""
    before = _without_another(archive.status, users)
    drill = _latest_drill(before.drill, _drills(archive, users))
    wanted = list(_state(archive, engine))
    if drill is not None:
        wanted.append(_verified(drill))
    merged = conditions.merge(before, wanted, archive.generation, now)
    status = replace(
        before,
        observed_generation=archive.generation,
        conditions=merged,
        writer=users.writer.key.name if users.writer is not None else None,
        backups=len(users.backups),
        backup_list=_names(users.backups),
        restores=len(users.restores),
        restore_list=_names(users.restores),
        drill=drill,
        verification=_latest(before.verification, _verifications(archive, users)),
    )
    if users.writer is not None:
        reported = users.writer.status
        known = None if reported.archive is None else replace(reported.archive, taken_over=None)
        status = replace(status, archive=known, recovery=reported.recovery)
    status = replace(status, cost=_cost(archive, status.archive, users.writer))
    return status, tuple(_events(archive.status, status))


def _without_another(before: KafkaArchiveStatus, users: ArchiveUsers) -> KafkaArchiveStatus:
    """Return the status without what was found out about another archive, which was at this place before: a drill of
    that one proves nothing of this one."""
    now = users.writer.status.archive if users.writer is not None else None
    if now is None or before.archive is None or before.archive.id in (None, now.id):
        return before
    left = tuple(condition for condition in before.conditions if condition.type != VERIFIED)
    return replace(before, conditions=left, drill=None, verification=None)


def _state(archive: KafkaArchive, engine: EngineSettings) -> tuple[Condition, ...]:
    """Return whether resources may name it."""
    try:
        storage = parse_archive(archive.spec).storage
        if problems := storage_problems("spec.storage", storage):
            raise SpecInvalid(problems)
        if problems := endpoint_problems("spec.storage", storage, engine):
            raise NotAllowed(problems)
    except SpecInvalid as error:
        return conditions.stalled(NOT_ALLOWED if isinstance(error, NotAllowed) else INVALID_SPEC, str(error))
    return conditions.ready(USABLE, _USABLE)


def _cost(archive: KafkaArchive, known: ArchiveStatus | None, writer: Resource | None) -> StorageCost | None:
    """Return the price of what the archive stores; None if that, or a price, is not known."""
    if known is None or known.object_bytes is None or archive.spec.get("prices") is None:
        return None
    try:
        prices = parse_archive(archive.spec).prices
    except SpecInvalid:
        prices = None  # Ready says why
    if prices is None:
        return None
    month, daily = prices.month(known.object_bytes), known.object_bytes_per_day
    grows = daily is not None and writer is not None and not _has_limits(writer)
    return StorageCost(
        currency=prices.currency,
        month=month,
        month_in_30_days=prices.month(known.object_bytes + 30 * (daily or 0)) if grows else None,
        display=f"{price_text(month, prices.currency)}/month",
    )


def _has_limits(backup: Resource) -> bool:
    """Return whether a backup removes what is old, or too much: then the growth of a day is not the whole of it."""
    retention = backup.spec.get("retention")
    return isinstance(retention, Mapping) and not retention.keys().isdisjoint(("maxAge", "maxBytes"))


def _verified(drill: DrillStatus) -> Condition:
    good = drill.outcome is StatusOutcome.SUCCEEDED
    message = f"KafkaRestore {drill.restore}, run {drill.run_id}: {drill.message}"
    return Condition(
        type=VERIFIED, status="True" if good else "False", reason=drill.reason or DRILL_FAILED, message=cut(message)
    )


def _names(users: Sequence[Resource]) -> tuple[str, ...]:
    return tuple(sorted(user.key.name for user in users)[:MAX_LISTED])


def _drills(archive: KafkaArchive, users: ArchiveUsers) -> list[DrillStatus]:
    known = [*users.restores, *([users.writer] if users.writer is not None else [])]
    return [one.status.drill for one in known if one.status.drill is not None and _has_read(archive, users, one)]


def _verifications(archive: KafkaArchive, users: ArchiveUsers) -> list[VerifiedRestore]:
    found = []
    for one in users.restores:
        verification, run = one.status.verification, one.status.run
        if verification is None or run is None or run.end_time is None or not _has_read(archive, users, one):
            continue
        found.append(VerifiedRestore(restore=one.key.name, outcome=verification.outcome, end_time=run.end_time))
    return found


def _is_of(archive: KafkaArchive, resource: Resource) -> bool:
    """Return whether the last run of a resource was about this archive: its spec may name another one since."""
    known = resource.status.archive
    return known is not None and known.is_at(archive.uri)


def _has_read(archive: KafkaArchive, users: ArchiveUsers, resource: Resource) -> bool:
    """Return whether the last run of a resource was about the archive that is at the place now."""
    holder = users.writer.status if users.writer is not None else archive.status
    known, seen = holder.archive, resource.status.archive
    others = known is not None and seen is not None and None not in (known.id, seen.id) and known.id != seen.id
    return _is_of(archive, resource) and not others


def _latest(before: T | None, found: Sequence[T]) -> T | None:
    """Return the one that has ended last."""
    known: list[T] = [one for one in (*found, *((before,) if before is not None else ())) if one.end_time is not None]
    if not known:
        return None
    return max(known, key=lambda one: (one.end_time or "", one.restore or ""))


def _latest_drill(before: DrillStatus | None, found: Sequence[DrillStatus]) -> DrillStatus | None:
    """Return the drill that has ended last, with the last good time of all."""
    times = [one.last_good_time for one in (before, *found) if one is not None and one.last_good_time]
    last = _latest(before, found)
    return None if last is None else replace(last, last_good_time=max(times, default=None))


def _events(before: KafkaArchiveStatus, after: KafkaArchiveStatus) -> list[Event]:
    """Return an event for each turn of Ready and each drill."""
    events = []
    was, ready = before.condition("Ready"), after.condition("Ready")
    if ready is not None and (was is None or (was.status, was.message) != (ready.status, ready.message)):
        kind = "Normal" if ready.status == "True" else "Warning"
        events.append(Event(kind, ready.reason, ready.message))
    drill, verified = after.drill, after.condition(VERIFIED)
    if drill is not None and verified is not None and (before.drill is None or before.drill.run_id != drill.run_id):
        kind = "Normal" if verified.status == "True" else "Warning"
        events.append(Event(kind, verified.reason, verified.message, drill.run_id or ""))
    return events


def _write_time(resource: Resource) -> float | None:
    return resource.status.archive.write_time_seconds if resource.status.archive is not None else None


def _is_superseded(resource: Resource, known: ArchiveStatus | None) -> bool:
    """Return whether another backup has written the archive since this one has: a later time alone may be that of a
    clock that was wrong."""
    own = resource.status.archive
    if own is None or known is None or (known.write_time_seconds or 0.0) <= (own.write_time_seconds or 0.0):
        return False
    return known.id != own.id or (known.epoch or 0) > (own.epoch or 0)
