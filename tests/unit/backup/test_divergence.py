"""How a run asks leaders about what is archived: rounds, and leaders that change or are silent."""

from collections.abc import Callable, Mapping

from logkeep_engine.archive.catalog.lineage import Fork, Lineage, LogStanding
from logkeep_engine.backup.planning.divergence import (
    TopicPartition,
    compare_logs,
    diverged,
    uncompared_warning,
)
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.kafka.survey import Answers, Ended
from tests.unit.archive.build import ORDERS
from tests.unit.archive.catalog.test_lineage import Replica

WHERE = ("orders", 0)
KEY = (ORDERS.topic_id, 0)


class Leaders:
    """Answers as the leaders of these logs, and remembers the questions of each round. `epoch` by round."""

    def __init__(self, logs: Mapping[TopicPartition, Replica], epoch: Callable[[int], int] = lambda _: 9) -> None:
        self.logs = logs
        self.epoch = epoch
        self.rounds: list[dict[TopicPartition, int | None]] = []

    def __call__(self, wanted: Mapping[TopicPartition, int | None]) -> Answers[Ended]:
        now = self.epoch(len(self.rounds))
        self.rounds.append(dict(wanted))
        answers: Answers[Ended] = Answers()
        for where, asked in wanted.items():
            if where in self.logs:
                answers.found[where] = Ended(now, *self.logs[where].end_of(now if asked is None else asked))
            elif where[0] == "gone":
                answers.unknown[where] = "UNKNOWN_TOPIC_OR_PARTITION"
            else:
                answers.silent[where] = "it has no leader"
        return answers


def log(*epochs: tuple[int, int], last: int = 9) -> Replica:
    """A log with so many batches of each leader epoch; `last` is the epoch of the leader."""
    made = Replica()
    for epoch, count in epochs:
        for _ in range(count):
            made.append(epoch)
    if not made.cache or made.cache[-1][0] != last:
        made.lead(last)
    return made


def test_all_partitions_are_asked_in_the_same_rounds() -> None:
    lineages = {
        ("same", 0): Lineage(((1, 0),), 40, 40, 1),
        ("new", 0): Lineage((), 0, 0),
        ("parted", 0): Lineage(((1, 0), (3, 20), (5, 30)), 40, 40, 6),
        ("silent", 0): Lineage(((1, 0),), 40, 40, 1),
        ("gone", 0): Lineage(((1, 0),), 40, 40, 1),
    }
    leaders = Leaders({("same", 0): log((1, 50)), ("new", 0): log((9, 5)), ("parted", 0): log((1, 20), (2, 50))})
    found = compare_logs(lineages, leaders)
    assert found.found == {("same", 0): LogStanding(9), ("new", 0): LogStanding(9), ("parted", 0): LogStanding(9, 20)}
    assert set(found.unanswered) == {("silent", 0), ("gone", 0)}
    assert (found.silent, set(found.unknown)) == ({("silent", 0): "it has no leader"}, {("gone", 0)})
    assert [len(asked) for asked in leaders.rounds] == [5, 1]
    assert leaders.rounds[0]["new", 0] is None


def test_leader_that_changes_between_two_questions_is_asked_from_the_beginning() -> None:
    lineage = {WHERE: Lineage(((1, 0), (3, 20), (5, 30)), 40, 40, 6)}
    leaders = Leaders({WHERE: log((1, 20), (2, 50))}, epoch=lambda round_: 9 if round_ == 0 else 10)
    assert compare_logs(lineage, leaders).found == {WHERE: LogStanding(10, 20)}
    assert [asked[WHERE] for asked in leaders.rounds] == [6, 1, 6, 1]
    restless = Leaders({WHERE: log((1, 20), (2, 50))}, epoch=lambda round_: 9 + round_)
    assert compare_logs(lineage, restless).silent == {WHERE: "its leader keeps changing"}


def test_log_without_epochs_has_no_leader_to_note_and_is_not_known() -> None:
    found = compare_logs(
        {WHERE: Lineage(((1, 0),), 40, 40, 1), ("new", 0): Lineage((), 0, 0)},
        Leaders({WHERE: Replica(), ("new", 0): Replica()}),
    )
    assert found.found == {WHERE: LogStanding(-1, None, False), ("new", 0): LogStanding(-1)}


def test_archive_that_says_nothing_was_never_cut_off_if_its_leader_never_changed() -> None:
    leaders = Leaders({WHERE: log((0, 50), last=0)}, epoch=lambda _: 0)
    assert compare_logs({WHERE: Lineage((), 40, 40)}, leaders).found == {WHERE: LogStanding(0)}


def test_error_names_what_differs_and_ends_the_job() -> None:
    forks = [Fork(ORDERS.topic_id, number, 3000, 5000) for number in range(5)]
    error = diverged(forks, {ORDERS.topic_id: "orders"}, FormatName.KAFKA)
    assert "topic 'orders' partition 0 from offset 3000 on" in error.message
    assert "up to offset 5000" in error.message
    assert "and 2 more" in error.message
    assert (error.exit_code, error.code) == (ExitCode.DATA_LOSS, "LogDiverged")
    assert (
        "Nothing of this partition was archived"
        in diverged(forks[:1], {ORDERS.topic_id: "orders"}, FormatName.KAFKA).message
    )


def test_error_says_that_only_the_native_format_holds_both_logs() -> None:
    forks, names = [Fork(ORDERS.topic_id, 0, 3000, 5000)], {ORDERS.topic_id: "orders"}
    assert "onDivergence: Branch a new run keeps" in diverged(forks, names, FormatName.KAFKA).hint
    assert "An archive of format Kafka can hold both" in diverged(forks, names, FormatName.AVRO).hint


def test_warning_names_what_was_never_compared() -> None:
    text = uncompared_warning([("orders", number) for number in range(5)])
    assert "'orders' partition 0, 'orders' partition 1, 'orders' partition 2 and 2 more" in text
