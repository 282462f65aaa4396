"""Configurations of groups and client metrics: requests as they are on the wire, and what is made of answers."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from logkeep_engine.kafka import resource_configs
from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.configs import (
    CLIENT_METRICS,
    GROUP,
    ConfigEntry,
    DescribedConfigs,
    ListedConfigs,
    OrderResults,
    Resource,
    alter_configs,
    describe_configs,
    list_resources,
)
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.encoding import Call, Reader, pack_array, pack_string, pack_uvarint
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.topic_requests import create_topics
from logkeep_engine.kafka.users import Known, SetRefused

RESET = ResourceConfig(GROUP, "queue", "share.auto.offset.reset", "earliest")
LOCK = ResourceConfig(GROUP, "queue", "share.record.lock.duration.ms", "15000")
METRICS = ResourceConfig(CLIENT_METRICS, "slow", "interval.ms", "60000")
TAGS = b"\x00"
T = TypeVar("T")


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def compact(value: str) -> bytes:
    return pack_uvarint(len(value) + 1) + value.encode()


def compact_array(*items: bytes) -> bytes:
    return pack_uvarint(len(items) + 1) + b"".join(items)


def decoded(call: Call[T], body: bytes) -> T:
    return call.decode(Reader(AnswerFrame.of((TAGS if call.flexible else b"") + body)))


def sent(call: Call[Any]) -> bytes:
    return b"".join(map(bytes, call.body))


def test_groups_and_client_metrics_are_listed_by_their_numbers() -> None:
    assert sent(list_resources()) == bytes([3, 16, 32]) + TAGS
    rows = [compact("queue") + number(32, 1) + TAGS, compact("slow") + number(16, 1) + TAGS]
    found = decoded(list_resources(), number(0, 4) + number(0, 2) + compact_array(*rows) + TAGS)
    assert found == ListedConfigs(0, Code.NONE, ((GROUP, "queue"), (CLIENT_METRICS, "slow")))


def test_brokers_before_4_1_list_client_metrics_only() -> None:
    assert sent(list_resources(0)) == TAGS
    body = number(0, 4) + number(0, 2) + compact_array(compact("slow") + TAGS) + TAGS
    assert decoded(list_resources(0), body).resources == ((CLIENT_METRICS, "slow"),)


def entry(key: str, value: str | None, source: int) -> bytes:
    flags = number(0, 1), number(source, 1), number(0, 1)
    return pack_string(key) + pack_string(value) + b"".join(flags) + pack_array([])


def described(kind: int, name: str, *entries: bytes, code: int = 0) -> bytes:
    return number(code, 2) + pack_string(None) + number(kind, 1) + pack_string(name) + pack_array(entries)


def test_values_that_were_set_on_the_resource_are_read_and_defaults_are_not() -> None:
    answer = number(0, 4) + pack_array(
        [
            described(
                32,
                "queue",
                entry(RESET.key, RESET.value, 8),
                entry("share.session.timeout.ms", "45000", 5),
                entry("hidden", None, 8),
            ),
            described(16, "slow", entry(METRICS.key, METRICS.value, 7)),
            described(32, "secret", code=Code.GROUP_AUTHORIZATION_FAILED),
        ]
    )
    call = describe_configs([(GROUP, "queue"), (CLIENT_METRICS, "slow"), (GROUP, "secret")])
    hidden = {(GROUP, "secret"): (int(Code.GROUP_AUTHORIZATION_FAILED), "")}
    entries = {
        (GROUP, "queue"): {
            RESET.key: ConfigEntry(RESET.value, own=True),
            "share.session.timeout.ms": ConfigEntry("45000"),
            "hidden": ConfigEntry(None, own=True),
        },
        (CLIENT_METRICS, "slow"): {METRICS.key: ConfigEntry(METRICS.value, own=True)},
    }
    assert decoded(call, answer) == DescribedConfigs(0, entries, hidden)
    every_key = struct.pack(">i", -1)
    rows = [number(32, 1) + pack_string("queue") + every_key]
    assert sent(describe_configs([(GROUP, "queue")])) == pack_array(rows) + b"\x00"


@pytest.mark.parametrize("only_check", [False, True])
def test_values_are_set_by_resource(only_check: bool) -> None:
    wanted: list[tuple[Resource, dict[str, str | None]]] = [
        ((CLIENT_METRICS, "slow"), {METRICS.key: METRICS.value}),
        ((GROUP, "queue"), {RESET.key: RESET.value, LOCK.key: None}),
    ]
    call = alter_configs(wanted, only_check=only_check)
    of_metrics = pack_array([pack_string(METRICS.key) + b"\x00" + pack_string(METRICS.value)])
    taken_back = pack_string(LOCK.key) + b"\x01" + pack_string(None)
    of_group = pack_array([pack_string(RESET.key) + b"\x00" + pack_string(RESET.value), taken_back])
    rows = [number(16, 1) + pack_string("slow") + of_metrics, number(32, 1) + pack_string("queue") + of_group]
    assert sent(call) == pack_array(rows) + bytes([only_check])
    answer = number(0, 4) + pack_array([number(40, 2) + pack_string("no") + number(32, 1) + pack_string("queue")])
    assert decoded(call, answer) == OrderResults(0, {(GROUP, "queue"): (Code.INVALID_CONFIG, "no")})


class Brokers:
    """Stands for connections to brokers, which answer as a test says."""

    limits = Limits()

    def __init__(self, answer: Callable[[Call[Any]], Any], version: int = 1) -> None:
        self._answer, self._version = answer, version

    def any_node(self) -> int:
        return 1

    async def connected(self, *_: int) -> None:
        """The connection is open."""

    async def controller(self) -> int:
        return 1

    def name(self, _: int) -> str:
        return "broker 1"

    async def version(self, *_: int) -> int:
        return self._version

    async def ask(self, _: int, call: Call[Any], *__: float) -> Any:
        return self._answer(call)

    async def send(self, _: int, __: int, call: Call[Any]) -> Any:
        return self._answer(call)


def control(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> ControlPlane:
    monkeypatch.setattr(ControlPlane, "_on_a_pool", lambda _, question, reach: asyncio.run(question(brokers)))
    plane = ControlPlane(KafkaConnection(("127.0.0.1:1",)), timeout=5.0)
    plane._connected = True
    return plane


def own(*configs: ResourceConfig) -> dict[Resource, dict[str, ConfigEntry]]:
    return {(item.resource, item.name): {item.key: ConfigEntry(item.value, own=True)} for item in configs}


def test_what_may_not_be_read_is_named_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"g{at}" for at in range(5)]

    def answer(call: Call[Any]) -> object:
        if call.api_key == 74:
            return ListedConfigs(0, Code.NONE, (("TOPIC", "t"), *((GROUP, name) for name in names)))
        codes = dict.fromkeys(((GROUP, name) for name in names), (int(Code.GROUP_AUTHORIZATION_FAILED), ""))
        return DescribedConfigs(0, own(RESET), codes)

    known = control(monkeypatch, Brokers(answer)).resource_configs()
    assert known.items == (RESET,)
    assert known.reason == "GROUP_AUTHORIZATION_FAILED for group 'g0', group 'g1', group 'g2' and 2 more"


def test_a_user_who_may_list_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ListedConfigs(0, Code.CLUSTER_AUTHORIZATION_FAILED, ())
    known = control(monkeypatch, Brokers(lambda _: refused)).resource_configs()
    assert known == Known(None, "CLUSTER_AUTHORIZATION_FAILED")


def test_brokers_without_either_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: Call[Any]) -> object:
        raise AssertionError("asked")

    assert control(monkeypatch, Brokers(nobody, version=-1)).resource_configs() == Known(())


@pytest.mark.parametrize("code", [Code.INVALID_REQUEST, Code.GROUP_AUTHORIZATION_FAILED])
def test_brokers_before_4_1_are_asked_for_the_groups_that_exist(monkeypatch: pytest.MonkeyPatch, code: Code) -> None:
    async def listed(_: object) -> dict[str, object]:
        return {"queue": None}

    def answer(call: Call[Any]) -> object:
        if call.api_key == 74:
            return ListedConfigs(0, Code.NONE, ((CLIENT_METRICS, "slow"),))
        return DescribedConfigs(0, own(METRICS), {(GROUP, "queue"): (int(code), "")})

    monkeypatch.setattr(resource_configs, "listed_groups", listed)
    known = control(monkeypatch, Brokers(answer, version=0)).resource_configs()
    old = code == Code.INVALID_REQUEST  # it knows no configurations of groups
    assert known == Known((METRICS,), "" if old else "GROUP_AUTHORIZATION_FAILED for group 'queue'")


def test_a_value_that_the_cluster_does_not_take_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def answer(call: Call[Any]) -> OrderResults:
        asked.append(sent(call))
        bad = LOCK.key.encode() in sent(call)
        return OrderResults(
            0, {(GROUP, "queue"): (Code.INVALID_CONFIG if bad else Code.NONE, "too long" if bad else "")}
        )

    plane = control(monkeypatch, Brokers(answer))
    assert plane.set_resource_configs([RESET, LOCK]) == [SetRefused(LOCK, "INVALID_CONFIG: too long")]
    assert len(asked) == 3
    assert plane.changed


def test_only_to_check_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = control(monkeypatch, Brokers(lambda _: OrderResults(0, {(GROUP, "queue"): (Code.NONE, "")})))
    assert plane.set_resource_configs([RESET], only_check=True) == []
    assert not plane.changed
    unanswered = control(monkeypatch, Brokers(lambda _: OrderResults(0, {})))
    (refused,) = unanswered.set_resource_configs([RESET])
    assert "the broker did not answer" in refused.reason


def test_topics_are_created_with_their_configuration() -> None:
    call = create_topics([("orders", 3, -1, {"retention.ms": "-1"})], timeout_ms=30_000, only_check=True)
    configs = pack_array([pack_string("retention.ms") + pack_string("-1")])
    row = pack_string("orders") + number(3, 4) + number(-1, 2) + pack_array([]) + configs
    assert sent(call) == pack_array([row]) + number(30_000, 4) + b"\x01"
    answer = number(0, 4) + pack_array([pack_string("orders") + number(38, 2) + pack_string("only 1")])
    found = OrderResults(0, {("TOPIC", "orders"): (Code.INVALID_REPLICATION_FACTOR, "only 1")})
    assert decoded(call, answer) == found
