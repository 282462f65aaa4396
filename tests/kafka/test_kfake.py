"""Another implementation of Kafka's protocol: kfake of franz-go. It keeps batches as producers send them, and can be
told not to know requests, as brokers do not that are less complete.

`tests/kafka/test_versions.py` brings topics from it to Kafka, and back.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.log.batch import seal
from tests.cluster.kfake import Kfake
from tests.data.topics import NO_RETENTION, commit_positions, create_topic
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.raw import batch, plain, run
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec, transactions, try_backup
from tests.kafka.test_cluster_state import control_plane, newest
from tests.kafka.test_newer_features import everything
from tests.kafka.test_restore_groups import TRANSLATE, positions
from tests.kafka.test_restore_same import bounds

DESCRIBE_ACLS, DESCRIBE_USERS, OFFSET_FOR_EPOCH, PRODUCER_ID = 29, 50, 23, 22
OLD, NEW = 1_700_000_000_000, 1_770_000_000_000  # in 2023 and in 2026
MAX_TIMESTAMP = slice(35, 43)


@pytest.fixture(scope="module")
def kfake() -> Iterator[Kfake]:
    with Kfake(3) as brokers:
        yield brokers


def test_transactions_and_groups_of_three_brokers_come_back_with_their_offsets(
    kfake: Kfake, unique: str, tmp_path: Path
) -> None:
    create_topic(kfake.bootstrap, unique, 3, NO_RETENTION)
    for partition in range(3):
        transactions(kfake, unique, [10, -5, 20], partition=partition)
    Topics(kfake).delete_records(unique, 4, partition=1)
    commit_positions(kfake.bootstrap, unique, {(unique, 0): 7, (unique, 2): 37}, metadata="noted")
    back_up(backup_spec(kfake, tmp_path, unique))
    groups = {**TRANSLATE, "include": [unique], "rename": [{"from": "(.*)", "to": r"\1-copy"}]}
    result = bring_back(restore_spec(kfake, tmp_path, offsets="Same", verify="Full", consumerGroups=groups))
    assert (result.outcome, result.records, result.groups) == ("Succeeded", 86, 2)
    assert result.verification is not None
    assert result.verification.outcome == "Verified"
    assert bounds(kfake, f"{unique}-copy", 3) == bounds(kfake, unique, 3)
    for partition in range(3):
        assert committed(kfake, f"{unique}-copy", partition) == committed(kfake, unique, partition)
    moved = {(f"{unique}-copy", number): at for number, at in ((0, (7, "noted")), (2, (37, "noted")))}
    assert positions(kfake, f"{unique}-copy") == moved


def test_what_brokers_do_not_know_of_their_users_is_named_and_all_else_comes_back(unique: str, tmp_path: Path) -> None:
    with Kfake(unknown=[DESCRIBE_ACLS, DESCRIBE_USERS]) as lacking, Kfake() as target:
        create_topic(lacking.bootstrap, unique)
        Topics(lacking).produce(unique, numbers(30))
        back_up(backup_spec(lacking, tmp_path, unique))
        unknown = "the brokers do not know the request"
        assert newest(tmp_path).reasons == {"acls": unknown, "scramUsers": unknown}
        result = bring_back(everything(target, tmp_path))
        text = f"the archive does not have the ACLs, names of SCRAM users of run backup-1: {unknown}: set them by hand"
        assert (result.outcome, result.records) == ("Succeeded", 30)
        assert text in result.warnings


def test_a_backup_of_brokers_that_lack_a_request_which_it_needs_is_refused_by_name(unique: str, tmp_path: Path) -> None:
    """Nobody can tell without OffsetForLeaderEpoch whether a log was cut. Brokers of nisshi 0.8.1 do not know it."""
    with Kfake(unknown=[OFFSET_FOR_EPOCH]) as lacking:
        create_topic(lacking.bootstrap, unique)
        Topics(lacking).produce(unique, numbers(30))
        result = try_backup(backup_spec(lacking, tmp_path, unique))
        assert (result.outcome, result.records) == ("Failed", 0)
        assert f"broker 0 ({lacking.bootstrap}) does not fit this engine: request 23 version 3" in result.message
        assert "the broker accepts none. Backups need Kafka 2.8 or newer" in result.message


def test_a_restore_into_brokers_that_lack_a_request_which_it_needs_is_refused_before_a_topic_is_there(
    kfake: Kfake, unique: str, tmp_path: Path
) -> None:
    create_topic(kfake.bootstrap, unique)
    Topics(kfake).produce(unique, numbers(30))
    back_up(backup_spec(kfake, tmp_path, unique))
    with Kfake(unknown=[PRODUCER_ID]) as lacking:
        with pytest.raises(BrokerRefused, match="request 22 version 1, the broker accepts none"):
            bring_back(restore_spec(lacking, tmp_path))
        assert control_plane(lacking).topics() == []


def without_newest_time(count: int, time: int) -> bytes:
    """A batch whose header does not say which of its records is the newest, as Sarama before 1.45.1 sends it. Apache's
    brokers write it into the header."""
    made = bytearray(batch([b"%d" % number for number in range(count)]))
    struct.pack_into(">q", made, 27, time)
    made[MAX_TIMESTAMP] = struct.pack(">q", -1)
    seal(made)
    return bytes(made)


def test_a_point_in_time_looks_at_records_where_a_header_does_not_say_which_is_the_newest(
    kfake: Kfake, unique: str, tmp_path: Path
) -> None:
    create_topic(kfake.bootstrap, unique, 1, NO_RETENTION)

    async def fill() -> None:
        async with RawClient(plain(kfake.bootstrap)) as client:
            for time in (OLD, NEW):
                await client.produce(unique, 0, without_newest_time(40, time))

    run(fill())
    assert back_up(backup_spec(kfake, tmp_path, unique)).records == 80
    point = {"timestamp": "2024-01-01T00:00:00Z"}
    result = bring_back(restore_spec(kfake, tmp_path, point=point, verify="Full"))
    assert (result.outcome, result.records, result.warnings) == ("Succeeded", 40, ())
    assert {record[4] for record in committed(kfake, f"{unique}-copy")} == {OLD}
