"""A restore that would bring nothing is no success: no backup has succeeded in the archive, or the archive holds no
record of the topics. Nothing is created in the target then.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ArchiveDamaged, BackupUnfinished, NothingToRestore
from tests.kafka.restores import ThreadRunner, back_up, bring_back, try_backup
from tests.simulation.backing_up import backup_spec
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.partition_log import batch


def create(cluster: SimulatedCluster, name: str, records: int, partitions: int = 1) -> None:
    cluster.do(lambda: cluster.create(name, partitions))
    rows = [(b"%d" % number, b"value") for number in range(records)]
    for partition in cluster.topics[name].partitions if rows else ():
        cluster.do(lambda to=partition: to.append(batch(rows)))  # type: ignore[misc]


def restored(target: SimulatedCluster, root: Path, run_id: str = "restore-1", **more: Any) -> RunResult:
    spec = {"cluster": {"bootstrapServers": target.bootstrap}, "source": {"storage": {"uri": root.as_uri()}}, **more}
    return bring_back(spec, run_id)


def dies_at(task: int) -> Callable[[object], None]:
    """A power cut before this task of a run, from 1."""
    seen: list[object] = []

    def before(work: object) -> None:
        seen.append(work)
        if len(seen) == task:
            raise KeyboardInterrupt

    return before


def test_an_archive_whose_only_backup_has_not_come_to_its_end_is_refused(
    source: SimulatedCluster, target: SimulatedCluster, tmp_path: Path
) -> None:
    create(source, "orders", 10)
    spec = backup_spec(source, tmp_path)
    assert try_backup(spec, "backup-1", ThreadRunner(before=dies_at(1))).error_code == "Interrupted"
    for allowed in (False, True):
        with pytest.raises(BackupUnfinished, match=r"no backup of the archive at .* has succeeded"):
            restored(target, tmp_path, allowEmpty=allowed)
    assert target.topics == {}
    back_up(spec, "backup-1")
    assert restored(target, tmp_path).records == 10


def test_what_the_only_backup_has_archived_before_it_broke_off_is_restored_if_somebody_says_so(
    source: SimulatedCluster, target: SimulatedCluster, tmp_path: Path
) -> None:
    """The cluster was lost during the first backup."""
    for name in ("orders", "users"):
        create(source, name, 10, partitions=2)
    spec = backup_spec(source, tmp_path, spark={"executor": {"instances": 4}})
    assert try_backup(spec, "backup-1", ThreadRunner(before=dies_at(3))).error_code == "Interrupted"
    with pytest.raises(BackupUnfinished, match="20 records"):
        restored(target, tmp_path)
    result = restored(target, tmp_path, onDamagedArchive="Skip")
    assert result.records == 20
    assert any("no backup of this archive has succeeded" in warning for warning in result.warnings)


def test_a_restore_that_would_bring_no_record_is_refused_before_a_topic_is_created(
    source: SimulatedCluster, target: SimulatedCluster, tmp_path: Path
) -> None:
    create(source, "orders", 0, partitions=2)
    back_up(backup_spec(source, tmp_path))
    with pytest.raises(NothingToRestore, match=r"no record .*orders"):
        restored(target, tmp_path)
    assert target.topics == {}
    result = restored(target, tmp_path, "restore-2", allowEmpty=True)
    assert (result.outcome, result.records, list(target.topics)) == ("Succeeded", 0, ["orders"])
    assert any("no record of 1 topic" in warning and "orders" in warning for warning in result.warnings)


def test_a_topic_that_comes_back_empty_beside_others_is_reported(
    source: SimulatedCluster, target: SimulatedCluster, tmp_path: Path
) -> None:
    create(source, "orders", 10)
    create(source, "users", 0)
    back_up(backup_spec(source, tmp_path))
    result = restored(target, tmp_path)
    assert (result.records, sorted(target.topics)) == (10, ["orders", "users"])
    (warning,) = result.warnings
    assert "brings no record of 1 topic (it was empty" in warning
    assert warning.endswith(": users")
    with pytest.raises(NothingToRestore, match="users"):
        restored(target, tmp_path, "restore-2", topics={"include": ["users"], "rename": [{"from": "(.*)", "to": "x"}]})


def test_topics_of_which_retention_has_removed_everything_bring_nothing(
    source: SimulatedCluster, target: SimulatedCluster, tmp_path: Path
) -> None:
    create(source, "orders", 10)
    back_up(backup_spec(source, tmp_path))
    back_up(backup_spec(source, tmp_path, retention={"maxAge": "1s"}), "backup-2")
    with pytest.raises(NothingToRestore, match="retention has removed"):
        restored(target, tmp_path)
    assert target.topics == {}


def test_an_archive_of_which_nothing_is_whole_brings_nothing(
    source: SimulatedCluster, target: SimulatedCluster, tmp_path: Path
) -> None:
    create(source, "orders", 10)
    back_up(backup_spec(source, tmp_path))
    for pack in tmp_path.glob("packs/*.pack"):
        pack.unlink()
    with pytest.raises(ArchiveDamaged):
        restored(target, tmp_path)
    with pytest.raises(NothingToRestore, match="damaged"):
        restored(target, tmp_path, "restore-2", onDamagedArchive="Skip")
    assert target.topics == {}
    result = restored(target, tmp_path, "restore-3", onDamagedArchive="Skip", allowEmpty=True)
    assert (result.records, result.loss_offsets) == (0, 10)


def test_a_backup_that_has_failed_only_for_a_name_that_is_not_there_can_be_restored(
    source: SimulatedCluster, target: SimulatedCluster, tmp_path: Path
) -> None:
    for name in ("orders", "users"):
        create(source, name, 10)
    spec = backup_spec(source, tmp_path, topics={"include": ["orders", "users", "nothing"]}, onUnmatched="Fail")
    failed = try_backup(spec, "backup-1")
    assert (failed.outcome, failed.error_code) == ("Failed", "PatternsUnmatched"), failed.message
    result = restored(target, tmp_path)
    assert result.records == 20
    assert (result.outcome, result.warnings) == ("Succeeded", ()), result
