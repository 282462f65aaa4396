"""The log of a compacted topic is cut off while its broker is down, and the next run makes a snapshot at the fork."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.log.batch import walk
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.kafka.backing_up import Topics
from tests.kafka.restores import back_up, bring_back, committed

KEYS = [f"key {number}".encode() for number in range(10)]
FORK = 6
NEVER_CLEANED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}
A_SNAPSHOT_ALWAYS = {"maxRecordBytesBetweenSnapshots": "1", "minCleanableRatio": 0}


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:  # one of its own: its log is cut off
        yield broker


def cut_off(broker: KafkaBroker) -> None:
    """Take the records from offset FORK on out of the log while the broker is down."""
    broker.kill()
    log = next((broker.data_dir / "orders-0").glob("*.log"))
    end = next(at for at, header in walk(log.read_bytes()) if header.base_offset == FORK)
    with open(log, "r+b") as file:
        file.truncate(end)
    broker.start()


def test_a_snapshot_that_ends_at_the_fork_hides_nothing_of_the_branch(broker: KafkaBroker, tmp_path: Path) -> None:
    topics, uri = Topics(broker), (tmp_path / "archive").as_uri()
    topics.create("orders", cleanup_policy="compact", min_compaction_lag_ms="86400000")
    topics.produce("orders", [b"value of " + key for key in KEYS], key=KEYS.__getitem__, batch=1)
    spec = {
        "cluster": {"bootstrapServers": [broker.bootstrap]},
        "topics": {"include": ["orders"]},
        "storage": {"uri": uri},
        "onDivergence": "Branch",
    }
    assert back_up({**spec, "compactedTopics": "Log"}, "backup-1").records == len(KEYS)
    cut_off(broker)
    back_up({**spec, "snapshots": A_SNAPSHOT_ALWAYS}, "backup-2")
    state = Archive.open(open_uri(uri)).load()
    ((key, [branch]),) = state.branches.items()
    assert (branch.offset, [item.end for item in state.snapshots[key]]) == (FORK, [FORK])

    def restored(suffix: str, **more: Any) -> list[bytes | None]:
        wanted = {
            "cluster": {"bootstrapServers": [broker.bootstrap]},
            "source": {"storage": {"uri": uri}},
            "verify": "Full",
            "topics": {"rename": [{"from": "(.*)", "to": r"\1" + suffix}], "configs": {"override": NEVER_CLEANED}},
            **more,
        }
        result = bring_back(wanted, f"restore{suffix}")
        assert result.outcome == "Succeeded", result
        assert result.verification is not None
        assert result.verification.outcome == "Verified"
        return [found[1] for found in committed(broker, "orders" + suffix)]

    in_branch = {"storage": {"uri": uri}, "topicIds": {"orders": branch.id}}
    assert restored("-branch", source=in_branch) == KEYS
    assert restored("-point", point={"run": "backup-1"}) == KEYS
    assert restored("-now") == KEYS[:FORK]
