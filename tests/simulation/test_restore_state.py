"""A restore's state may lie anywhere, as long as it is this run's: in a place with the states of many restores, or in a
place to which it was moved. The archive may change between two attempts.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import SegmentsRemoved, SpecError
from tests.kafka.restores import ThreadRunner, back_up, bring_back
from tests.simulation.backing_up import backup_spec
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.partition_log import batch


@pytest.fixture
def archive(source: SimulatedCluster, tmp_path: Path) -> Callable[..., Path]:
    """Makes one of the topic `orders`, 10 records in each of two partitions."""

    def make(name: str = "archive", configs: dict[str, str] | None = None, **more: Any) -> Path:
        root = tmp_path / name
        source.do(source.topics.clear)
        source.do(lambda: source.create("orders", 2, configs=configs))
        for partition in source.topics["orders"].partitions:
            source.do(lambda to=partition: to.append(batch([(b"%d" % n, b"value") for n in range(10)])))  # type: ignore[misc]
        back_up(backup_spec(source, root, **more))
        return root

    return make


def restored(target: SimulatedCluster, root: Path, *, killed: bool = False, **more: Any) -> RunResult:
    """Two tasks for the records; with `killed` the driver dies when the first has been done."""
    seen: list[object] = []

    def before(work: Any) -> None:
        if isinstance(work, tuple):
            seen.append(work)
        if killed and len(seen) == 2:
            raise KeyboardInterrupt

    spec = {
        "cluster": {"bootstrapServers": target.bootstrap},
        "source": {"storage": {"uri": root.as_uri()}},
        "spark": {"executor": {"instances": 2}},
        **more,
    }
    return bring_back(spec, runner=ThreadRunner(before=before))


def records(target: SimulatedCluster) -> list[int]:
    return [partition.log.end for partition in target.topics["orders"].partitions]


def test_a_run_of_another_archive_with_the_same_id_is_not_taken_for_this_one(
    target: SimulatedCluster, archive: Callable[..., Path], tmp_path: Path
) -> None:
    """One place holds the state of any number of restores."""
    state = {"uri": (tmp_path / "state").as_uri()}
    assert restored(target, archive("one"), state=state).records == 20
    target.do(target.topics.clear)
    with pytest.raises(SpecError, match="run restore-1 "):
        restored(target, archive("two"), state=state)
    assert target.topics == {}


def test_a_state_that_was_moved_is_gone_on_with(
    target: SimulatedCluster, archive: Callable[..., Path], tmp_path: Path
) -> None:
    """The keys may only read the archive now."""
    root = archive()
    with pytest.raises(KeyboardInterrupt):
        restored(target, root, killed=True)
    shutil.copytree(root / "runs" / "restore-1", tmp_path / "state" / "runs" / "restore-1")
    assert restored(target, root, state={"uri": (tmp_path / "state").as_uri()}).records == 20
    assert records(target) == [10, 10]


def test_the_archives_own_place_by_another_name_is_gone_on_with(
    target: SimulatedCluster, archive: Callable[..., Path], tmp_path: Path
) -> None:
    root, state = archive(), tmp_path / "other-name"
    state.symlink_to(root)
    with pytest.raises(KeyboardInterrupt):
        restored(target, root, killed=True, state={"uri": state.as_uri()})
    assert restored(target, root, state={"uri": state.as_uri()}).records == 20
    assert records(target) == [10, 10]


def test_what_retention_has_removed_between_two_tries_is_not_called_damaged(
    clusters: tuple[SimulatedCluster, SimulatedCluster], target: SimulatedCluster, archive: Callable[..., Path]
) -> None:
    root = archive()
    with pytest.raises(KeyboardInterrupt):
        restored(target, root, killed=True)
    back_up(backup_spec(clusters[0], root, retention={"maxAge": "1s", "grace": "0s"}), "backup-2")
    with pytest.raises(SegmentsRemoved, match="the object is missing") as refused:
        restored(target, root)
    assert "Retention has removed 2 segments of this restore since it was planned" in refused.value.message
    assert "retention.grace" in refused.value.hint


def test_what_a_new_generation_has_replaced_between_two_tries_is_not_called_damaged(
    clusters: tuple[SimulatedCluster, SimulatedCluster],
    target: SimulatedCluster,
    archive: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = archive(configs={"cleanup.policy": "compact"})
    with pytest.raises(KeyboardInterrupt):
        restored(target, root, killed=True)
    monkeypatch.setattr(KafkaBackupSpec, "generation_cycle_ms", -1)  # each run begins one
    again = backup_spec(clusters[0], root, compactedTopics="Generations", retention={"grace": "0s"})
    for run_id in ("backup-2", "backup-3"):  # the first one replaces, the second one deletes
        back_up(again, run_id)
    with pytest.raises(SegmentsRemoved, match="the object is missing") as refused:
        restored(target, root)
    assert "Retention has removed" in refused.value.message


def test_a_restore_comes_to_its_end_with_what_was_removed_between_two_tries_and_not_deleted_yet(
    clusters: tuple[SimulatedCluster, SimulatedCluster], target: SimulatedCluster, archive: Callable[..., Path]
) -> None:
    root = archive()
    with pytest.raises(KeyboardInterrupt):
        restored(target, root, killed=True)
    back_up(backup_spec(clusters[0], root, retention={"maxAge": "1s"}), "backup-2")
    assert restored(target, root).records == 20
    assert records(target) == [10, 10]
