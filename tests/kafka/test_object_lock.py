"""Retention of an archive in a bucket with object lock: what the store keeps is reported, and tried again."""

from datetime import UTC, datetime, timedelta

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retaining import RetentionRules, run_retention
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.retention import RetentionHold
from logkeep_engine.storage import open_uri
from tests.cluster.s3 import S3Server
from tests.unit.archive.build import archive_of, chunk

RULES = RetentionRules(RetentionLimits(max_age=1000), KeepRules(), 0)


def test_locked_objects_stay_are_reported_and_go_when_their_lock_has_gone(
    s3: S3Server, unique: str, storage_environment: None
) -> None:
    bucket = s3.create_locked_bucket(unique)
    storage = open_uri(f"s3://{bucket}/kafka", s3.endpoint, s3.region)
    archive = archive_of(storage, chunk(storage, 0, 20), chunk(storage, 20, 40))
    first, second = archive.load().segments["aaaaaaaaaaaaaaaaaaaaa_", 0]
    retained, held = (next(iter(entry.objects("orders"))) for entry in (first, second))
    until = datetime.now(UTC) + timedelta(days=1)
    s3.retain(bucket, f"kafka/{retained}", until)
    s3.hold(bucket, f"kafka/{held}", on=True)

    done = run_retention(archive, "one", RULES, RetentionHold())

    assert {(item.path, item.legal_hold, item.until is None) for item in done.purged.locked} == {
        (retained, False, False),
        (held, True, True),
    }
    (note,) = done.notes
    assert note.startswith(f"the store keeps 2 removed objects locked, the last until {until:%Y-%m-%dT%H:%M}")
    assert {info.path for info in storage.list("topics/")} == {retained, held}
    assert (verify(archive).faults, verify(archive).orphans) == ([], [])

    s3.retain(bucket, f"kafka/{retained}", None)
    s3.hold(bucket, f"kafka/{held}", on=False)
    assert run_retention(Archive.open(storage), "two", RULES, RetentionHold()).purged.segments == 2
    assert storage.list("topics/") == []
    assert Archive.open(storage).load().unpurged == ()
