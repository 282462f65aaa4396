"""Requests about share groups as they are on the wire, with answers that a broker of Kafka 4.1 gave."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest

from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka import groups
from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.encoding import Call, Reader, pack_uvarint
from logkeep_engine.kafka.group_list import ListedGroup, list_groups
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.kafka.positions import CommitAnswer, FetchedPosition, FetchedPositions
from logkeep_engine.kafka.share_groups import NOT_DONE, delete_starts, fetch_starts, set_starts

ID = bytes(range(16))
NO_TEXT = b"\x00"
TAGS = b"\x00"
T = TypeVar("T")


def text(value: str) -> bytes:
    return pack_uvarint(len(value) + 1) + value.encode()


def array(*items: bytes) -> bytes:
    return pack_uvarint(len(items) + 1) + b"".join(items)


def decoded(call: Call[T], body: bytes) -> T:
    return call.decode(Reader(AnswerFrame.of(TAGS + body)))


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def start(partition: int, offset: int, code: int = 0) -> bytes:
    return number(partition, 4) + number(offset, 8) + number(3, 4) + number(code, 2) + NO_TEXT + TAGS


def described(*partitions: bytes, code: int = 0) -> bytes:
    topic = text("orders") + ID + array(*partitions) + TAGS
    return number(0, 4) + array(text("queue") + array(topic) + number(code, 2) + NO_TEXT + TAGS) + TAGS


def test_start_offsets_are_read_and_a_partition_that_nobody_has_read_has_none() -> None:
    found = decoded(fetch_starts("queue"), described(start(0, 7), start(1, -1)))
    assert found == FetchedPositions(Code.NONE, 0, (FetchedPosition("orders", 0, 7, 3, ""),))


@pytest.mark.parametrize(
    "answer",
    [described(start(0, 7), start(1, 0, Code.NOT_COORDINATOR)), described(start(0, 7), code=Code.NOT_COORDINATOR)],
    ids=["partition", "group"],
)
def test_an_error_of_one_partition_is_one_of_all(answer: bytes) -> None:
    assert decoded(fetch_starts("queue"), answer) == FetchedPositions(Code.NOT_COORDINATOR)


def test_what_a_broker_has_answered() -> None:
    """Kafka 4.1.1, for a group that has begun one of two partitions."""
    head = "0000000002 04736732 02 0274 1fc22d53e9294965b22c3ce3555338d1 03"
    begun = "00000000 0000000000000000 00000000 0000 00 00"
    not_begun = "00000001 ffffffffffffffff 00000000 0000 00 00"
    answer = bytes.fromhex(f"{head} {begun} {not_begun} 00 0000 00 00 00")
    found = decoded(fetch_starts("sg2"), answer)
    assert found == FetchedPositions(Code.NONE, 0, (FetchedPosition("t", 0, 0, 0, ""),))


def test_a_request_asks_for_every_topic_of_a_group() -> None:
    assert b"".join(map(bytes, fetch_starts("sg").body)) == bytes.fromhex("02 03 7367 00 00 00")


POSITIONS = [FetchedPosition("orders", 0, 7, -1, ""), FetchedPosition("orders", 1, 9, -1, "")]


def test_start_offsets_are_set_by_topic() -> None:
    partitions = array(number(0, 4) + number(7, 8) + TAGS, number(1, 4) + number(9, 8) + TAGS)
    assert b"".join(map(bytes, set_starts("queue", POSITIONS).body)) == (
        text("queue") + array(text("orders") + partitions + TAGS) + TAGS
    )


def altered(*codes: tuple[int, int], code: int = 0) -> bytes:
    partitions = [number(partition, 4) + number(problem, 2) + NO_TEXT + TAGS for partition, problem in codes]
    topics = array(text("orders") + ID + array(*partitions) + TAGS) if codes else array()
    return number(0, 4) + number(code, 2) + NO_TEXT + topics + TAGS


def test_each_partition_has_a_code() -> None:
    found = decoded(set_starts("queue", POSITIONS), altered((0, 0), (1, Code.NOT_COORDINATOR)))
    assert found == CommitAnswer({("orders", 0): 0, ("orders", 1): Code.NOT_COORDINATOR})


def test_an_answer_that_leaves_partitions_out_has_set_nothing() -> None:
    """Kafka 4.1.1 answers so to every such request, and sets nothing."""
    found = decoded(set_starts("queue", POSITIONS), bytes.fromhex("00000000 0000 00 01 00"))
    assert set(found.codes.values()) == {NOT_DONE}
    refused = decoded(set_starts("queue", POSITIONS), altered(code=68))
    assert set(refused.codes.values()) == {68}


def test_start_offsets_are_deleted_by_topic() -> None:
    expected = text("queue") + array(text("orders") + TAGS) + TAGS
    assert b"".join(map(bytes, delete_starts("queue", POSITIONS).body)) == expected


@pytest.mark.parametrize(
    ("of_all", "of_topic", "expected"),
    [(0, 0, 0), (0, Code.NOT_COORDINATOR, Code.NOT_COORDINATOR), (68, 0, 68), (0, None, Code.UNKNOWN_SERVER_ERROR)],
)
def test_each_partition_of_a_topic_has_the_code_of_its_deletion(
    of_all: int, of_topic: int | None, expected: int
) -> None:
    topics = [] if of_topic is None else [text("orders") + ID + number(of_topic, 2) + NO_TEXT + TAGS]
    answer = number(0, 4) + number(of_all, 2) + NO_TEXT + array(*topics) + TAGS
    found = decoded(delete_starts("queue", POSITIONS), answer)
    assert found == CommitAnswer({("orders", 0): expected, ("orders", 1): expected})


def test_groups_are_listed_with_states_and_kinds() -> None:
    rows = [("queue", "share", "Stable", "share"), ("old", "", "Empty", "classic")]
    body = number(0, 4) + number(0, 2) + array(*(b"".join(map(text, row)) + TAGS for row in rows)) + TAGS
    queue, old = decoded(list_groups(5), body).groups
    assert (queue.is_share, queue.has_members) == (True, True)
    assert (old.is_share, old.has_members) == (False, False)
    without = number(0, 4) + number(0, 2) + array(*(b"".join(map(text, row[:3])) + TAGS for row in rows)) + TAGS
    assert decoded(list_groups(4), without).groups == (
        ListedGroup("queue", "share", "Stable"),
        ListedGroup("old", "", "Empty"),
    )


class Unreachable(ControlPlane):
    """A cluster whose coordinators are asked through what a test puts in their place."""

    def _connect(self) -> None:
        pass

    def _speaks(self, call: object) -> bool:
        return True


def test_a_coordinator_that_does_not_answer_is_reported_with_the_kind_of_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(connection: object, wanted: Mapping[str, object], *more: object) -> dict[str, dict[object, int]]:
        return {group: {} for group in wanted}

    monkeypatch.setattr(groups, "change_positions", silent)
    limits = Limits(outage=0.2, control=0.01, control_pause=0.01)
    control = Unreachable(KafkaConnection(("127.0.0.1:1",), limits=limits))
    for share, reported in (
        (True, "Cannot set the start offsets of share group 'g'"),
        (False, "Cannot set the offsets of consumer group 'g'"),
    ):
        with pytest.raises(BrokerUnavailable, match=reported):
            control.set_group_offsets([GroupPosition("g", "t", 0, 5, -1, "", share)])


def test_a_cluster_that_has_share_groups_switched_off_tells_nothing_of_them_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka 4.4 with share.version=0 still lists share groups and knows the request."""

    async def answer(connection: object, wanted: Sequence[str], *more: object) -> dict[str, FetchedPositions]:
        begun = FetchedPositions(Code.NONE, 0, (FetchedPosition("t", 0, 5, -1, ""),))
        off = FetchedPositions(Code.UNSUPPORTED_VERSION)
        return {group: begun if group == "on" else off for group in wanted}

    monkeypatch.setattr(groups, "committed_positions", answer)
    found = Unreachable(KafkaConnection(("127.0.0.1:1",))).share_starts(["off", "on", "off-2"])
    assert [(item.group_id, item.offset, item.share) for item in found.offsets] == [("on", 5, True)]
    assert (found.unreported, found.why) == (("off", "off-2"), groups.SHARE_OFF)


def test_start_offsets_that_a_cluster_with_share_groups_switched_off_does_not_take_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(
        connection: object, wanted: Mapping[str, Sequence[FetchedPosition]], *more: object
    ) -> dict[str, dict[tuple[str, int], int]]:
        return {
            group: {(item.topic, item.partition): int(Code.UNSUPPORTED_VERSION) for item in items}
            for group, items in wanted.items()
        }

    monkeypatch.setattr(groups, "change_positions", refuse)
    control = Unreachable(KafkaConnection(("127.0.0.1:1",)))
    shared, other = (GroupPosition("g", "t", 0, 5, -1, "", share) for share in (True, False))
    reasons = {item.position: item.error for item in control.set_group_offsets([shared, other])}
    assert reasons == {shared: groups.SHARE_OFF, other: "UNSUPPORTED_VERSION"}
    assert not control.changed


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ({"metadata.version": 33}, groups.SHARE_OFF),
        ({"metadata.version": 33, "share.version": 0}, groups.SHARE_OFF),
        ({"metadata.version": 33, "share.version": 1}, ""),
        ({}, ""),  # brokers that tell no features may take them
    ],
)
def test_features_say_whether_a_cluster_takes_share_groups(
    levels: dict[str, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unreachable, "features", lambda _: levels)
    assert Unreachable(KafkaConnection(("127.0.0.1:1",))).share_groups_off() == why
    monkeypatch.setattr(Unreachable, "_speaks", lambda _, call: False)
    assert "the brokers set no start offsets" in Unreachable(KafkaConnection(("127.0.0.1:1",))).share_groups_off()
