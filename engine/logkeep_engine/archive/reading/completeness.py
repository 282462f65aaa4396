"""The time up to which an archive has everything of a topic.

The newest record does not show it: a topic that is not written to has no new ones. A backup that succeeded shows it. It
asked for the last stable offsets of all logs after it had begun, and archived everything below them. Which topics it
chose is in its plan. What lay after an open transaction at that time is unknown here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from itertools import islice

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.plans import BACKUP_PLAN, BACKUP_PLAN_FILE, backup_plan_files
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.errors import ObjectMissing

log = logging.getLogger(__name__)

MAX_PLANS = 16  # a topic that is gone from the cluster would have all of them read


def complete_until(archive: Archive, state: ArchiveState, topic_ids: Collection[str]) -> dict[str, int]:
    """Return the times in ms since the epoch, by topic id, for all of these that one of the last backups has archived
    whole. Everything that was committed before is archived. Raises storage errors."""
    found: dict[str, int] = {}
    left = set(topic_ids)
    succeeded = (run for run in reversed(state.runs.values()) if run.kind == BACKUP and run.success is not None)
    for run in islice(succeeded, MAX_PLANS):
        if not left:
            break
        for topic_id in left & _topics_in(archive, run, BACKUP_PLAN_FILE):
            found[topic_id] = run.begin_time
            left.discard(topic_id)
    return found


def topics_of_run(archive: Archive, run: RunEntry) -> set[str]:
    """Return the ids of the topics that a backup has found, in all its attempts; none if its plan cannot be read."""
    found: set[str] = set()
    for name in backup_plan_files():
        more = _topics_in(archive, run, name)
        if not more:
            break
        found |= more
    return found


def _topics_in(archive: Archive, run: RunEntry, name: str) -> set[str]:
    """Return the ids of the topics in a plan of a run that have not turned out to be deleted; none if it cannot be
    read. Topics that a later attempt added were not there when the run began."""
    path = names.run_file(run.run_id, name)
    try:
        plan = BACKUP_PLAN.loads(archive.storage.read(path))
        gone = {topic_id for _, topic_id in plan["gone"]}
        return {topic["topicId"] for topic in plan["topics"]} - gone
    except ObjectMissing:
        return set()
    except DocumentRefused as error:
        log.warning("%s/%s: %s", archive.storage.uri, path, error)
        return set()
