"""How many topics a run has protected."""

from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import BackupPlan, GoneTopic
from logkeep_engine.backup.recoverability.coverage import coverage


def test_a_topic_that_proved_to_be_deleted_is_not_protected() -> None:
    topics = tuple(TopicEntry(name, f"{name:a<22}", 1, 3) for name in ("orders", "users"))
    plan = BackupPlan("0123456789", topics, gone=(GoneTopic("users", topics[1].topic_id),))
    assert coverage(plan, ArchiveState(), ["orders", "users"], ()).protected == 1
