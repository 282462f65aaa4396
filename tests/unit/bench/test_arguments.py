"""The command line: what is measured where, and what is refused."""

from pathlib import Path

import pytest

from bench import peer, plan
from bench.__main__ import DEFAULT, main
from bench.engine import ClockedRunner, function_name
from bench.peer import UnknownPeer
from bench.plan import Options
from bench.topics import TOPICS, named
from logkeep_engine.tasks import TaskContext


def options(*sections: str) -> Options:
    return Options(frozenset(sections), TOPICS, 5, 3, None, 1)


def test_every_topic_is_backed_up_and_restored_beside_the_floor() -> None:
    for topic in TOPICS:
        groups = {(g.section, g.where): g for g in plan.groups(topic, options(*DEFAULT))}
        assert {turn.who for turn in groups["backup", "file"].turns} >= {"engine"} or topic.name in plan.MAIN
        assert ("restore", "file") in groups


def test_engine_and_floor_are_pinned_apart_from_the_broker() -> None:
    (group,) = plan.groups(named(["zstd-1k"])[0], options("pinned"))
    assert group.pinned
    assert [(turn.who, turn.repeat) for turn in group.turns] == [("floor", 5), ("engine", 5)]
    assert plan.BROKER_CORE != plan.ENGINE_CORE


def test_no_floor_sends_two_million_batches_alone() -> None:
    groups = {group.section: group for group in plan.groups(named(["single-2m"])[0], options("backup", "restore"))}
    assert [turn.who for turn in groups["restore"].turns] == ["engine"]
    assert "floor" in [turn.who for turn in groups["backup"].turns]


def test_every_format_is_backed_up_restored_and_converted() -> None:
    backups, others = plan.groups(named(["lz4-100"])[0], options("formats"))
    formats = ["Kafka", "Records", "Avro", "Avro-zstandard"]
    assert [turn.who for turn in backups.turns] == [f"backup, {name}" for name in formats]
    assert [turn.who for turn in others.turns][:4] == [f"restore, {name}" for name in formats]
    assert {turn.who for turn in others.turns[4:]} == {f"convert, {a} to {b}" for a, b in plan.CONVERSIONS}
    assert others.before is not None
    assert plan.groups(named(["txn"])[0], options("formats")) == []


def test_records_are_taken_apart_beside_librdkafka() -> None:
    (group,) = plan.groups(named(["lz4-100"])[0], options("decode"))
    assert [turn.who for turn in group.turns] == ["engine", "librdkafka"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing"], "no section 'nothing': there are pinned,"),
        (["--topics", "nothing"], "no topic 'nothing': there are five-100,"),
        (["--peer", "/nowhere/tool"], "no templates for it; there are some for: kafka-backup"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_peer_needs_templates(tmp_path: Path) -> None:
    program = tmp_path / "kafka-backup"
    with pytest.raises(UnknownPeer):
        peer.find(str(program))
    program.touch()
    found = peer.find(str(program))
    assert found.arguments["backup"] == ("backup", "--config", "$config")
    assert found.clock.search("Duration: 0.84s\n")


def double(item: int, context: TaskContext) -> int:
    return 2 * item


@pytest.mark.parametrize("processes", [1, 2])
def test_the_runner_gives_every_result_once_and_keeps_time(processes: int) -> None:
    runner = ClockedRunner(processes)
    results: dict[int, int] = {}
    runner.run([1, 2, 3], double, results.__setitem__, lambda update: None)
    runner.close()
    assert results == {0: 2, 1: 4, 2: 6}
    assert [taken.function for taken in runner.times] == ["double"] * 3
    assert set(runner.spans) == {function_name(double)}
