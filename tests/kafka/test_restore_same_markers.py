"""`offsets: Same` when markers come twice, requests late, and the power goes between padding and its removal."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import TargetChanged
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.encoding import Call, pack_uvarint
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.transactions import PaddingTransactions, TransactionAnswer
from logkeep_engine.log.batch import walk
from logkeep_engine.restore.sending import padding
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import NO_RETENTION, create_topic, produce
from tests.kafka.backing_up import Topics
from tests.kafka.raw import plain
from tests.kafka.restores import AtOnce, back_up, backup_spec, bring_back, committed, restore_spec, transactions
from tests.kafka.test_forgotten_producers import PRODUCE, Posted, at_requests
from tests.kafka.test_restore_same import SAME, PowerCut, assert_same, bounds, numbered, varied

ADD_PARTITIONS_TO_TXN = 24


async def repeat_marker(kafka: KafkaBroker, topic: str) -> None:
    """Write the marker at the end of a log once more, as its coordinator does that has not got an answer."""
    async with RawClient(plain(kafka.bootstrap)) as client:
        end = await client.log_end(topic, 0)
        data = bytes((await client.fetch(topic, 0, end - 1, committed=False)).data)
        at, header = list(walk(data))[-1]
        assert header.is_control
        coordinator_epoch = data[at:][-5:-1]
        name = topic.encode()
        place = pack_uvarint(len(name) + 1) + name + b"\x02" + struct.pack(">i", 0) + b"\x00"
        marker = struct.pack(">qh?", header.producer_id, header.producer_epoch, False)
        body = b"\x02" + marker + b"\x02" + place + coordinator_epoch + b"\x00\x00"
        leader = await client._pool.leader(topic, 0)
        await client._pool.send(leader.node, 0, Call(27, 1, (body,), lambda read: None, flexible=True))
        assert await client.log_end(topic, 0) == end + 1


def marked_twice(
    monkeypatch: pytest.MonkeyPatch, kafka: KafkaBroker, topic: str, number: int, *, cut: bool = False
) -> None:
    """The marker of this transaction, counted from 0, comes twice. Then the power goes, with `cut`."""
    usual = PaddingTransactions._complete
    seen: list[PaddingTransactions] = []

    async def complete(self: PaddingTransactions) -> None:
        await usual(self)
        seen.append(self)
        if len(seen) == number + 1:
            await repeat_marker(kafka, topic)
            if cut:
                raise PowerCut

    monkeypatch.setattr(PaddingTransactions, "_complete", complete)


@pytest.mark.parametrize("cut", [False, True])
def test_in_a_gap_that_continues_it_takes_the_place_of_padding(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    monkeypatch.setattr(padding, "MOST_RECORDS", 5)
    monkeypatch.setattr(padding, "_BATCHES", 2)
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    transactions(kafka, unique, [3, -40, 3])
    back_up(backup_spec(kafka, tmp_path, unique))
    with pytest.MonkeyPatch.context() as patch:
        marked_twice(patch, kafka, f"{unique}-copy", 1, cut=cut)
        if cut:
            with pytest.raises(PowerCut):
                bring_back(restore_spec(kafka, tmp_path, **SAME))
        else:
            bring_back(restore_spec(kafka, tmp_path, **SAME))
    bring_back(restore_spec(kafka, tmp_path, **SAME))
    assert_same(kafka, unique)


@pytest.mark.parametrize("cut", [False, True])
def test_after_the_last_record_it_moves_none(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    produce(kafka.bootstrap, unique, numbered(5))
    transactions(kafka, unique, [3])
    back_up(backup_spec(kafka, tmp_path, unique))
    spec = restore_spec(kafka, tmp_path, verify="Full", **SAME)
    marked_twice(monkeypatch, kafka, f"{unique}-copy", 0, cut=cut)
    if cut:
        with pytest.raises(PowerCut):
            bring_back(spec)
    result = bring_back(spec)
    assert result.verification is not None
    assert result.verification.outcome == "Verified", result.verification
    assert committed(kafka, f"{unique}-copy") == committed(kafka, unique)
    assert bounds(kafka, f"{unique}-copy") == [(0, 10)]


@pytest.mark.parametrize("cut", [False, True])
def test_in_front_of_a_record_it_ends_the_restore(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    transactions(kafka, unique, [3, 3])
    back_up(backup_spec(kafka, tmp_path, unique))
    spec = restore_spec(kafka, tmp_path, **SAME)
    marked_twice(monkeypatch, kafka, f"{unique}-copy", 0, cut=cut)
    if cut:
        with pytest.raises(PowerCut):
            bring_back(spec)
    with pytest.raises(TargetChanged, match="marker of a transaction twice") as error:
        bring_back(spec)
    assert "start a new restore" in str(error.value.hint)


def test_a_request_that_comes_late_begins_no_transaction(
    kafka: KafkaBroker, unique: str, tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would time out among records, and its marker would move them."""
    varied(kafka, topics, unique)
    back_up(backup_spec(kafka, tmp_path, unique))
    late: list[Posted] = []
    answers: list[TransactionAnswer] = []

    async def held_up(posted: Posted) -> Awaitable[Any]:
        late.append(posted)
        raise RetriableError("no answer")

    async def behind_it(posted: Posted) -> Awaitable[Any]:
        answers.append(await (await late[0]()))
        return await posted()

    at_requests(monkeypatch, ADD_PARTITIONS_TO_TXN, (1,), held_up)
    at_requests(monkeypatch, PRODUCE, (3,), behind_it)
    bring_back(restore_spec(kafka, tmp_path, **SAME))
    assert [answer.code for answer in answers] in ([Code.INVALID_PRODUCER_EPOCH], [Code.PRODUCER_FENCED])
    assert_same(kafka, unique)


@pytest.mark.parametrize("behind", [False, True])
def test_a_power_cut_between_padding_and_its_removal(
    kafka: KafkaBroker, unique: str, tmp_path: Path, topics: Topics, behind: bool
) -> None:
    varied(kafka, topics, unique)
    back_up(backup_spec(kafka, tmp_path, unique))
    spec = restore_spec(kafka, tmp_path, **SAME)
    usual: Callable[..., Any] = RawClient.delete_records

    async def removed(self: RawClient, *arguments: Any) -> None:
        if behind:
            await usual(self, *arguments)
        raise PowerCut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RawClient, "delete_records", removed)
        with pytest.raises(PowerCut):
            bring_back(spec)
    assert bounds(kafka, f"{unique}-copy") == [(12 if behind else 0, 12)]
    bring_back(spec)
    assert_same(kafka, unique)


def test_partitions_that_pad_much_take_turns(kafka: KafkaBroker, unique: str, tmp_path: Path, topics: Topics) -> None:
    """So no transaction waits for the others until it times out; and small questions do not wait for padding."""
    create_topic(kafka.bootstrap, unique, 6, NO_RETENTION)
    for partition in range(6):
        transactions(kafka, unique, [-5_000, 1], partition=partition)
    topics.delete_records(unique, 5_000, partition=1)
    back_up(backup_spec(kafka, tmp_path, unique))
    writing: list[int] = [0, 0]
    usual = PaddingTransactions._write

    async def write(self: PaddingTransactions, sizes: Any) -> int:
        writing[0] += sum(sizes) > 1000
        writing[1] = max(writing)
        try:
            await asyncio.sleep(0.05)
            return await usual(self, sizes)
        finally:
            writing[0] -= sum(sizes) > 1000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PaddingTransactions, "_write", write)
        bring_back(restore_spec(kafka, tmp_path, **SAME), runner=AtOnce())
    assert writing[1] <= 2
    assert_same(kafka, unique, 6)
