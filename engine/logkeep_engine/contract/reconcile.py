"""When runs of a KafkaBackup look for stale keys, and what they report about it."""

from __future__ import annotations

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import CronExpression, TimeZoneName


class ReconcileSpec(Model):
    """The first run of the backup that begins at or after a time of `cron` in `timeZone` looks for stale keys. With
    `heal` the next one reads the partitions again in which there are some."""

    cron: CronExpression
    """The first run that begins at or after such a time looks for stale keys, in the words of a CronJob, such as 0 3 *
    * 0. The first that can does so in any case."""
    time_zone: TimeZoneName = "UTC"
    """Time zone of the cron expression, by its name in the IANA database."""
    heal: bool = False
    """The next run reads the partitions with stale keys again from their log start, whatever compactedTopics says. What
    it reads takes the place of what the archive has of them. Points of before are refused then, but for the ends of
    runs that retention keeps."""
