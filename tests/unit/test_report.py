"""Progress and results of a run: sums, limits, and sinks that fail."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from logkeep_engine.contract.names import KEY_PROGRESS, KEY_RESULT
from logkeep_engine.contract.run import MAX_LIST, MAX_PARTITIONS_SHOWN, Progress, RunResult
from logkeep_engine.errors import DataLoss, StorageRefused
from logkeep_engine.report import CallbackSink, ProgressRange, Reporter, bounded_warnings, failed
from logkeep_engine.spark.config_map import ConfigMaps, ConfigMapSink
from logkeep_engine.tasks import PartitionUpdate
from tests.cluster.process import wait_until

RESULT = RunResult(run_id="run", kind="KafkaBackup", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0)


def reporter(*parts: ProgressRange, topics: int = 1, idle: int = 0) -> Reporter:
    made = Reporter("run")
    made.planned(parts, topics=topics, idle=idle)
    made.phase("Running")
    return made


def update(task: int, at: int, records: int = 0, size: int = 0) -> PartitionUpdate:
    return PartitionUpdate("orders", 0, task, at, records, size)


def shown(progress: Progress) -> list[tuple[int, int, int, int]]:
    return [(part.partition, part.start, part.end, part.at) for part in progress.partitions_shown]


@pytest.mark.parametrize(
    ("message", "hint", "expected"),
    [
        ("nothing was written", "Delete it.", "nothing was written. Delete it."),
        ("It is gone.", "Make it.", "It is gone. Make it."),
        ("It is gone", "", "It is gone"),
    ],
)
def test_a_hint_is_a_sentence_of_its_own(message: str, hint: str, expected: str) -> None:
    assert str(DataLoss(message, hint=hint)) == expected


def test_chunks_of_a_partition_add_up() -> None:
    run = reporter(
        ProgressRange(0, "orders", 0, 0, 100),
        ProgressRange(1, "orders", 0, 100, 200),
        ProgressRange(2, "orders", 1, 50, 60),
    )
    run.update(update(1, 130, 30, 300))
    run.update(update(0, 20, 20, 200))
    progress = run.snapshot()
    assert (progress.offsets_done, progress.offsets_total, progress.percent) == (50, 210, 23)
    assert (progress.records, progress.bytes) == (50, 500)
    assert shown(progress) == [(0, 0, 200, 50), (1, 50, 60, 50)]
    run.done(0, 100, 1000)
    run.done(1, 100, 1000)
    progress = run.snapshot()
    assert (progress.partitions, progress.partitions_done, progress.records) == (2, 1, 200)


def test_task_that_starts_again_goes_back_and_late_news_are_ignored() -> None:
    run = reporter(ProgressRange(0, "orders", 0, 0, 100))
    run.update(update(0, 80, 80, 800))
    run.update(update(0, 10, 10, 100))
    assert (run.snapshot().offsets_done, run.snapshot().records) == (10, 10)
    run.done(0, 100, 1000)
    run.update(update(0, 90, 90, 900))
    run.done(0, 100, 1000)
    progress = run.snapshot()
    assert (progress.offsets_done, progress.records, progress.bytes, progress.partitions_done) == (100, 100, 1000, 1)


def test_what_lies_outside_of_the_plan_is_ignored() -> None:
    run = reporter(ProgressRange(0, "orders", 0, 10, 100))
    run.update(update(7, 50))
    run.update(update(0, 500))
    assert shown(run.snapshot()) == [(0, 10, 100, 100)]
    run.update(update(0, 0))
    assert shown(run.snapshot()) == [(0, 10, 100, 10)]


def test_parts_done_before_and_idle_partitions_count_as_done() -> None:
    run = reporter(
        ProgressRange(0, "orders", 0, 0, 100, at=100), ProgressRange(1, "orders", 1, 0, 100, at=40), topics=3, idle=5
    )
    progress = run.snapshot()
    assert (progress.topics, progress.partitions, progress.partitions_done) == (3, 7, 6)
    assert (progress.offsets_done, progress.percent) == (140, 70)


def test_nothing_to_do_is_all_done() -> None:
    assert reporter(idle=3).snapshot().percent == 100


def test_of_many_partitions_the_furthest_behind_are_shown() -> None:
    parts = [ProgressRange(number, "orders", number, 0, number + 1) for number in range(100_000)]
    run = reporter(*parts)
    started = time.process_time()
    progress = run.snapshot()
    assert time.process_time() - started < 2
    assert len(progress.partitions_shown) == MAX_PARTITIONS_SHOWN
    assert progress.partitions_shown[0].partition == 99_999
    assert len(progress.to_json()) < 700_000


def test_publishes_changes_and_the_result() -> None:
    seen: list[Progress] = []
    results: list[RunResult] = []
    run = Reporter("run", CallbackSink(seen.append, results.append), interval=0.01)
    wait_until(lambda: bool(seen), 60, "the first progress")
    time.sleep(0.2)
    quiet = len(seen)
    assert [progress.phase for progress in seen] == ["Starting"]
    run.phase("Running", attempt=3)
    run.finish(RESULT)
    assert len(seen) > quiet
    assert (seen[-1].phase, seen[-1].attempt) == ("Running", 3)
    assert results == [RESULT]


def test_sink_that_fails_harms_nobody_and_the_result_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[RunResult] = []

    def sometimes(result: RunResult) -> None:
        attempts.append(result)
        if len(attempts) < 3:
            raise OSError("no route")

    def never(progress: Progress) -> None:
        raise OSError("no route\nsecond line")

    run = Reporter("run", CallbackSink(never, sometimes), interval=0.01)
    run.phase("Running")
    run.finish(RESULT)
    assert len(attempts) == 3
    assert "progress could not be written: OSError: no route" in caplog.text
    assert "second line" not in caplog.text


def test_config_map_gets_one_key_at_a_time() -> None:
    class Kept(ConfigMaps):
        def __init__(self) -> None:
            self.patches: list[tuple[str, str, Mapping[str, Any]]] = []

        def patch(self, name: str, namespace: str, body: Mapping[str, Any], timeout: float) -> None:
            self.patches.append((name, namespace, body))

    api = Kept()
    sink = ConfigMapSink("orders-progress", "kafka", api=api)
    sink.progress(reporter(ProgressRange(0, "orders", 0, 0, 100)).snapshot())
    sink.result(RESULT)
    assert [(name, namespace, list(body["data"])) for name, namespace, body in api.patches] == [
        ("orders-progress", "kafka", [KEY_PROGRESS]),
        ("orders-progress", "kafka", [KEY_RESULT]),
    ]
    assert Progress.from_json(api.patches[0][2]["data"][KEY_PROGRESS]).offsets_total == 100
    assert RunResult.from_json(api.patches[1][2]["data"][KEY_RESULT]) == RESULT


@pytest.mark.parametrize(
    ("error", "code", "exit_code", "message"),
    [
        (DataLoss("Gone.", hint="Run more often."), "DataLoss", 4, "Gone. Run more often."),
        (StorageRefused("No."), "StorageRefused", 2, "No."),
        (KeyError("x"), "UnexpectedError", 1, "KeyError: 'x'"),
        (KeyboardInterrupt(), "Interrupted", 130, "The run was interrupted."),
    ],
)
def test_errors_become_results(error: BaseException, code: str, exit_code: int, message: str) -> None:
    result = failed(RESULT, error)
    assert (result.outcome, result.error_code, result.exit_code) == ("Failed", code, exit_code)
    assert result.message.startswith(message)


def test_warnings_that_have_no_room_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    found = [f"topic t-{number}" for number in range(25)]
    assert bounded_warnings(found[:MAX_LIST]) == tuple(found[:MAX_LIST])
    reported = bounded_warnings(found)
    assert reported == (*found[: MAX_LIST - 1], "and 6 more warnings, which the driver's log has")
    assert caplog.messages == found[MAX_LIST - 1 :]


def test_a_driver_that_waits_is_heard_of_all_the_same() -> None:
    seen: list[Progress] = []
    run = Reporter("run", CallbackSink(seen.append), interval=0.01, heartbeat=0.05)
    run.phase("Planning")
    try:
        wait_until(lambda: len(seen) >= 4, 30, "progress without a change")
    finally:
        run.close()
    assert seen[-1].update_time > seen[1].update_time
    assert {progress.phase for progress in seen[-2:]} == {"Planning"}


def test_without_a_change_progress_is_rare() -> None:
    seen: list[Progress] = []
    run = Reporter("run", CallbackSink(seen.append), interval=0.01)
    wait_until(lambda: bool(seen), 30, "the first progress")
    time.sleep(0.3)
    run.close()
    assert len(seen) == 1


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def many_topics(clock: Clock, count: int = 1000) -> Reporter:
    """Each topic has one range of 100 offsets."""
    made = Reporter("run", clock=clock)
    made.planned((ProgressRange(at, f"topic-{at:04}", 0, 0, 100) for at in range(count)), topics=count)
    made.phase("Running")
    return made


def test_rate_and_time_left_go_by_the_last_half_minute() -> None:
    clock = Clock()
    run = many_topics(clock, 10)
    assert (run.snapshot().bytes_per_second, run.snapshot().seconds_left) == (None, None)
    for at in range(1, 61):
        clock.now += 1
        done = at if at <= 40 else 40 + (at - 40) // 2  # slower, when 40 seconds are over
        run.update(update(0, done, done, done * 1000))
        progress = run.snapshot()
        if at == 20:
            assert (progress.bytes_per_second, progress.seconds_left) == (1000, 980)
    assert progress.bytes_per_second == (10 + 10) * 1000 // 30
    assert progress.seconds_left == 950 * 30 // 20
    run.phase("Finishing")
    assert (run.snapshot().bytes_per_second, run.snapshot().seconds_left) == (None, None)


def test_the_time_until_tasks_begin_does_not_count() -> None:
    clock = Clock()
    run = many_topics(clock, 10)
    clock.now += 60  # executors start
    assert run.snapshot().seconds_left is None
    for done in range(11):
        run.update(update(0, done, done, done * 1000))
        progress = run.snapshot()
        clock.now += 1
    assert (progress.bytes_per_second, progress.seconds_left) == (1000, 990)


def test_a_task_that_begins_again_gives_no_negative_rate() -> None:
    clock = Clock()
    run = many_topics(clock, 1)
    run.update(update(0, 50, 50, 5000))
    clock.now += 5
    run.snapshot()
    run.planned([ProgressRange(0, "topic-0000", 0, 0, 100, at=60, bytes=6000)], topics=1)
    clock.now += 5
    run.update(update(0, 10, 10, 100))
    assert (run.snapshot().bytes_per_second, run.snapshot().seconds_left) == (None, None)


def test_the_topics_that_move_now_are_told_of_a_thousand() -> None:
    clock = Clock()
    run = many_topics(clock)
    assert run.snapshot().moving == ()
    for task in range(700, 720):
        clock.now += 0.1
        run.update(update(task, 40, 1, 1))
    run.done(719, 100, 100)
    moving = run.snapshot().moving
    assert [(topic.topic, topic.done, topic.total) for topic in moving] == [
        (f"topic-{task:04}", 40, 100) for task in range(709, 719)
    ]
    clock.now += 11
    run.update(update(3, 1, 1, 1))
    assert [topic.topic for topic in run.snapshot().moving] == ["topic-0003"]
