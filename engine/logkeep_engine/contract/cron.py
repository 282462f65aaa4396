"""The times of a cron expression in a time zone. Expressions mean what they mean in a CronJob of Kubernetes.

CronSim follows an expression through the calendar, and through changes of the clock as Debian's cron does. A job at
fixed hours never loses a night and never runs twice in one: a time that is skipped comes when the clock has moved on,
and of a time that comes twice only the first counts. A job whose minute or hour begins with `*` follows the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_STARS = frozenset(["*", "*/1"])
_LONG_AGO = datetime.fromtimestamp(0, UTC)
_SMALLEST_WINDOW = timedelta(minutes=1)


class CronInvalid(ValueError):
    """A cron expression or a time zone cannot be used; the message says why."""


@dataclass(frozen=True)
class CronTimes:
    """All times of an expression, each with a whole minute. `expression` is as CronSim reads it."""

    expression: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, expression: str, zone: ZoneInfo) -> CronTimes:
        """Raises CronInvalid."""
        times = cls(_for_cronsim(expression), zone)
        try:
            found = times.after(_LONG_AGO)
        except CronSimError as error:
            raise CronInvalid(f"{expression!r} is not a valid cron expression: {str(error).lower()}") from error
        if found is None:
            raise CronInvalid(f"{expression!r} names a time that never comes")
        return times

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time that is later than `moment`, None if there is none for 50 years."""
        for found in CronSim(self.expression, moment.astimezone(self.zone)):
            # An hour that comes twice has one name: CronSim also finds what has passed in its first turn.
            if found.astimezone(UTC) > moment:
                return found.astimezone(UTC)
        return None

    def latest(self, first: datetime, last: datetime) -> datetime | None:
        """Return the latest time that is not before `first` and not after `last`. It looks back from `last` in windows
        that grow, so that a `first` of years ago costs nothing."""
        before_first = first - timedelta(seconds=1)
        window = _SMALLEST_WINDOW
        while True:
            begin = max(before_first, last - window)
            found = self.after(begin)
            if found is not None and found <= last:
                break
            if begin == before_first:
                return None
            window *= 2
        while (later := self.after(found)) is not None and later <= last:
            found = later
        return found


def parse_zone(name: str) -> ZoneInfo:
    """Return the zone of this name in the IANA time zone database. Raises CronInvalid."""
    if name.lower() in ("local", "localtime"):
        raise CronInvalid(f"{name!r} would be the time zone of the operator's pod; name a zone such as Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # a folder of zones, such as Europe, is an OSError
        raise CronInvalid(f"{name!r} is not a time zone such as Europe/Berlin or UTC") from error


def _for_cronsim(expression: str) -> str:
    """Return the five fields in the words of CronSim."""
    fields = _MACROS.get(expression, expression).split()
    if len(fields) != 5:
        raise CronInvalid(f"{expression!r} has {len(fields)} fields, a cron expression has five")
    minute, hour, day, month, weekday = fields
    return " ".join([_field(minute), _field(hour), _field(day, "1-31"), _field(month), _field(weekday, "0-6")])


def _field(text: str, days: str = "") -> str:
    """Return the field with `*` for all that means the same. A field of days gets its range, since here dialects
    differ. If day and weekday are both restricted, one of them suffices, and `*/2` restricts in a CronJob only. A range
    without an end ends on Saturday, and on the Sunday after it in CronSim."""
    terms = text.replace("?", "*").split(",")
    if any(term in _STARS for term in terms):
        return "*"
    return ",".join(_ranged(term, days) if days and "/" in term else term for term in terms)


def _ranged(term: str, days: str) -> str:
    """Return a term with a step, such as `*/2` or `3/2`, with both ends of its range."""
    begin, _, step = term.partition("/")
    if begin == "*":
        begin = days
    elif "-" not in begin:
        begin = f"{begin}-{days.partition('-')[2]}"
    return f"{begin}/{step}"
