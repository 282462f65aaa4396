"""Topics that a restore holds delete nothing until they are released, and get then what they are to have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.contract.facts.outcome import HeldTopics
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import ArchiveDamaged, BrokerUnavailable, Refused, RestoreBusy, SpecError, StateAltered
from logkeep_engine.report import Reporter
from logkeep_engine.restore.claim import takeover
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import HELD_NOTE, RESULT, RestoreState
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.run import releasing
from logkeep_engine.restore.run.releasing import ReleaseOutcome, release, run_release
from logkeep_engine.restore.topics import held_topics
from logkeep_engine.restore.topics.held_topics import describe_held, hold_existing
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, ORDERS, archive_of, chunk

HELD = {"retention.ms": "-1", "retention.bytes": "-1"}
CREATED = TopicPlan("orders", ORDERS.topic_id, "copy", True, 2, 3, 1000, (PartitionPlan(0, 1, 0),))
THERE = replace(CREATED, target="there", created=False, target_id="t" * 22)
DEFAULTS = {"log.retention.hours": "168", "log.retention.bytes": "-1", "log.cleanup.policy": "delete"}


@dataclass
class Control:
    """Topics of a cluster: what was set on each itself, and its id."""

    own: dict[str, dict[str, str]]
    ids: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[str, dict[str, str], list[str]]] = field(default_factory=list)
    late: bool = False

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: dict(self.own[name]) for name in names if name in self.own}

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.ids.get(name, "t" * 22) for name in names if name in self.own}

    def configs_of_brokers(self, _: Any) -> list[dict[str, str]]:
        return [DEFAULTS]

    def alter_topic_configs(self, name: str, set: Mapping[str, str], delete: Iterable[str] = ()) -> None:
        gone = list(delete)
        self.changes.append((name, dict(set), gone))
        kept = {key: value for key, value in self.own[name].items() if key not in gone}
        self.own[name] = {**kept, **set}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def archive(storage: Storage) -> Archive:
    return archive_of(storage, chunk(storage, 0, 100))


@pytest.fixture(autouse=True)
def brokers_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def applied(control: Control, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        return {}, sorted(wanted) if control.late else []

    monkeypatch.setattr(held_topics, "applied_topic_configs", applied)
    monkeypatch.setattr(releasing, "applied_topic_configs", applied)
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 0.0)  # these restores have no driver, and so no note of one


def spec(**topics: Any) -> KafkaRestoreSpec:
    source = {"storage": {"uri": "s3://bucket"}}
    return parse_restore(
        {"source": source, "cluster": {"bootstrapServers": ["k:1"]}, "topics": {"retention": "Hold", **topics}}
    )


def context_of(archive: Archive, control: Control, **topics: Any) -> RestoreContext:
    nothing: Any = None
    cluster: Any = control
    state = RestoreState(archive.storage, "restore-1")
    found = spec(**topics)
    return RestoreContext(
        "restore-1", found, archive, state, CLUSTER, cluster, nothing, lambda: nothing, Reporter("restore-1")
    )


def planned_of(archive: Archive, *topics: TopicPlan) -> Planned:
    plan = RestorePlan("restore-1", "digest", archive.info.archive_id, 1, CLUSTER, topics)
    return Planned(plan, archive.load(), fresh=True)


def succeeded(state: RestoreState) -> None:
    result = RunResult(
        run_id=state.run_id, kind="KafkaRestore", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0
    )
    state.storage.put(state.file(RESULT), result.to_json().encode())


# ---- holding


def test_a_topic_that_was_there_is_held_once_it_is_noted_what_it_had(archive: Archive) -> None:
    control = Control({"there": {"retention.ms": "60000", "flush.ms": "1"}, "copy": {}})
    context, planned = context_of(archive, control), planned_of(archive, CREATED, THERE)
    hold_existing(context, planned)
    assert control.changes == [("there", HELD, [])]
    note = json.loads(context.state.storage.read(context.state.file(HELD_NOTE)))
    assert note == {"format": 1, "released": False, "topics": [["there", "t" * 22, "60000", None]]}
    hold_existing(context, replace(planned, fresh=False))  # a start after a crash: the topic is held by now
    assert json.loads(context.state.storage.read(context.state.file(HELD_NOTE))) == note
    assert control.own["there"] == {**HELD, "flush.ms": "1"}


def test_a_note_that_lies_there_before_the_run_is_not_believed(archive: Archive) -> None:
    control = Control({"there": {"retention.ms": "60000"}})
    context, planned = context_of(archive, control), planned_of(archive, THERE)
    forged = json.dumps({"format": 1, "released": True, "topics": [["there", "t" * 22, "1", "1"]]}).encode()
    context.state.storage.put(context.state.file(HELD_NOTE), forged)
    hold_existing(context, planned)
    note = json.loads(context.state.storage.read(context.state.file(HELD_NOTE)))
    assert note == {"format": 1, "released": False, "topics": [["there", "t" * 22, "60000", None]]}


def test_a_start_after_a_crash_before_the_note_writes_it(archive: Archive) -> None:
    control = Control({"there": {"retention.ms": "60000"}})
    context, planned = context_of(archive, control), planned_of(archive, THERE)
    hold_existing(context, replace(planned, fresh=False))
    assert control.changes == [("there", HELD, [])]
    assert context.state.storage.list(context.state.file(HELD_NOTE))


def test_nothing_is_changed_before_the_note_is_there(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control({"there": {}})
    context, planned = context_of(archive, control), planned_of(archive, THERE)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(context.state.storage), "put", killed)
    with pytest.raises(KeyboardInterrupt):
        hold_existing(context, planned)
    assert control.changes == []


def test_only_hold_holds_and_only_what_was_there(archive: Archive) -> None:
    control = Control({"there": {}, "copy": {}})
    hold_existing(context_of(archive, control, retention="Apply"), planned_of(archive, THERE))
    assert not archive.storage.list("runs/restore-1/")
    hold_existing(context_of(archive, control), planned_of(archive, CREATED))
    assert control.changes == []


def test_brokers_that_do_not_hold_it_end_the_run(archive: Archive) -> None:
    control = Control({"there": {}}, late=True)
    with pytest.raises(BrokerUnavailable, match="there: the topics were held, but the brokers still report"):
        hold_existing(context_of(archive, control), planned_of(archive, THERE))


def test_people_are_told_which_topics_are_held() -> None:
    assert describe_held(None, None) == ""
    assert describe_held(HeldTopics(topics=1, topic_list=("a",)), None) == (
        "1 topic keeps all records (retention.ms=-1, retention.bytes=-1) until `logkeep release`: a"
    )
    assert "2 topics would keep all records" in describe_held(
        HeldTopics(topics=2, topic_list=("a", "b")), None, would=True
    )
    two = HeldTopics(topics=2, topic_list=("a", "b"))
    assert describe_held(two, "7d").endswith("(retention.ms=-1, retention.bytes=-1) until they are released: a, b")
    assert describe_held(two, "7d", would=True).endswith("until they are released, 7d after the restore: a, b")
    many = HeldTopics(topics=30, topic_list=tuple(f"t{number}" for number in range(20)))
    assert describe_held(many, None).endswith("t8, t9 and 20 more")


# ---- releasing


@pytest.fixture
def held(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> tuple[Control, RestoreContext]:
    """Two topics that a restore which has succeeded holds: one that it has created, and one that was there."""
    control = Control({"there": {"retention.ms": "60000"}, "copy": {**HELD, "flush.ms": "1"}})
    context, planned = context_of(archive, control), planned_of(archive, CREATED, THERE)
    hold_existing(context, planned)
    succeeded(context.state)
    control.changes.clear()
    monkeypatch.setattr(RestorePlanner, "load_claimed", lambda *_, **__: planned)
    return control, context


def test_topics_get_what_they_are_to_have(held: tuple[Control, RestoreContext]) -> None:
    control, context = held
    looked = release(context, dry_run=True)
    assert control.changes == []
    found = release(context)
    assert [item.to_json() for item in looked] == [item.to_json() for item in found]
    assert [(item.topic, item.outcome) for item in found] == [
        ("copy", ReleaseOutcome.RELEASED),
        ("there", ReleaseOutcome.RELEASED),
    ]
    assert control.own == {"copy": {"flush.ms": "1"}, "there": {"retention.ms": "60000"}}
    goes = [item.goes for item in found]
    assert "topic copy keeps records for 7d (retention.ms=604800000, the brokers' default)" in str(goes[0])
    assert "topic there keeps records for 1m (retention.ms=60000): it deletes up to 100 of 100" in str(goes[1])
    row = found[1].to_json()
    assert (row["deletesAtMost"], row["oldest"]) == (100, "2023-11-14T22:13:20.000Z")


def test_a_second_release_changes_nothing(held: tuple[Control, RestoreContext]) -> None:
    control, context = held
    release(context)
    control.changes.clear()
    assert [item.outcome for item in release(context)] == [ReleaseOutcome.RELEASED_BEFORE] * 2
    assert control.changes == []


def test_a_release_that_was_interrupted_continues(
    held: tuple[Control, RestoreContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    control, context = held
    alter = Control.alter_topic_configs

    def once(self: Control, name: str, *changes: Any) -> None:
        if control.changes:
            raise KeyboardInterrupt
        alter(self, name, *changes)

    monkeypatch.setattr(Control, "alter_topic_configs", once)
    with pytest.raises(KeyboardInterrupt):
        release(context)
    monkeypatch.setattr(Control, "alter_topic_configs", alter)
    assert [item.outcome for item in release(context)] == [ReleaseOutcome.RELEASED_BEFORE, ReleaseOutcome.RELEASED]
    assert control.own == {"copy": {"flush.ms": "1"}, "there": {"retention.ms": "60000"}}


def test_a_second_release_leaves_alone_what_is_held_since(held: tuple[Control, RestoreContext]) -> None:
    control, context = held
    release(context, dry_run=True)
    release(context)
    control.own["there"] |= HELD
    control.changes.clear()
    assert [item.outcome for item in release(context)] == [ReleaseOutcome.RELEASED_BEFORE, ReleaseOutcome.NOT_HELD]
    assert control.changes == []


def test_the_release_of_created_topics_is_noted_also_without_a_note_of_what_they_had(
    held: tuple[Control, RestoreContext], archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, context = held
    planned = planned_of(archive, CREATED)
    monkeypatch.setattr(RestorePlanner, "load_claimed", lambda *_, **__: planned)
    context.state.storage.delete([context.state.file(HELD_NOTE)])
    release(context)
    note = json.loads(context.state.storage.read(context.state.file(HELD_NOTE)))
    assert note == {"format": 1, "released": True, "topics": []}


def test_topics_that_somebody_has_changed_stay_as_they_are(held: tuple[Control, RestoreContext]) -> None:
    control, context = held
    control.own["copy"]["retention.ms"] = "5"
    control.ids["there"] = "x" * 22  # deleted and created again
    assert [item.outcome for item in release(context)] == [ReleaseOutcome.NOT_HELD, ReleaseOutcome.GONE]
    del control.own["there"]
    assert release(context)[1].outcome is ReleaseOutcome.GONE
    assert control.changes == []


def test_brokers_that_do_not_release_it_are_reported(held: tuple[Control, RestoreContext]) -> None:
    control, context = held
    control.late = True
    with pytest.raises(BrokerUnavailable, match="copy, there: the retention was set"):
        release(context)


@pytest.mark.parametrize(("refused", "code"), [("copy", ExitCode.REFUSED), ("there", ExitCode.INCOMPLETE)])
def test_a_refusal_says_whether_something_was_changed(
    held: tuple[Control, RestoreContext], monkeypatch: pytest.MonkeyPatch, refused: str, code: ExitCode
) -> None:
    control, context = held
    alter = Control.alter_topic_configs

    def refusing(self: Control, name: str, *changes: Any) -> None:
        if name == refused:
            raise Refused("no")
        alter(self, name, *changes)

    monkeypatch.setattr(Control, "alter_topic_configs", refusing)
    with pytest.raises(Refused) as error:
        release(context)
    assert error.value.exit_code == code
    assert len(control.changes) == (code is ExitCode.INCOMPLETE)


@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        (["there", "t" * 22, "1e3", None], StateAltered, "the retention of topic 'there' is '1e3'"),
        (["there", "t" * 22, "-2", None], StateAltered, "the retention of topic 'there' is '-2'"),
        (["there", "x" * 22, "1", None], StateAltered, "it is not about a topic"),
        (["payments", "t" * 22, "1", None], StateAltered, "it is not about a topic"),
        (["there", "t" * 22, 1, None], ArchiveDamaged, "held topics"),
    ],
)
def test_a_note_that_was_altered_changes_no_topic(
    held: tuple[Control, RestoreContext], row: list[Any], error: type[Exception], said: str
) -> None:
    control, context = held
    data = json.dumps({"format": 1, "released": False, "topics": [row]}).encode()
    context.state.storage.put(context.state.file(HELD_NOTE), data)
    with pytest.raises(error, match=said):
        release(context)
    context.state.storage.delete([context.state.file(HELD_NOTE)])
    with pytest.raises(SpecError, match="it is unknown which retention there had before"):
        release(context)
    assert control.changes == []


def test_only_a_restore_that_holds_and_has_succeeded_is_released(
    held: tuple[Control, RestoreContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    control, context = held
    with pytest.raises(SpecError, match="only a restore with Hold holds topics"):
        release(replace(context, spec=spec(retention="Refuse")))
    other = replace(context, run_id="other", state=context.state.of_run("other"))
    with pytest.raises(SpecError, match=r"this restore has no run other: .*plan\.json is missing"):
        release(other)
    monkeypatch.setattr("logkeep_engine.restore.claim.stored_plan.stored_plan", lambda state: object())
    with pytest.raises(SpecError, match="run other has not succeeded: its topics may lack records"):
        release(other)
    with pytest.raises(SpecError):
        release(replace(context, run_id="a/b", state=context.state.of_run("a/b")))
    note = RunNote(context.state.storage, context.state.run_id)
    note.write(ended=False)
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 40.0)
    monkeypatch.setattr("logkeep_engine.archive.catalog.run_note.time.sleep", lambda _: note.write(ended=False))
    with pytest.raises(RestoreBusy):
        release(context)
    assert control.changes == []


def test_a_default_of_the_source_that_cannot_be_read_is_not_guessed(
    held: tuple[Control, RestoreContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    control, context = held
    monkeypatch.setattr(releasing, "source_defaults", lambda *_: ({}, ["it is damaged"]))
    with pytest.raises(SpecError, match="topic copy has no retention of its own, but it is damaged"):
        release(context)
    assert control.changes == []


# ---- when the time is over


@pytest.mark.parametrize("earlier_end", [None, 1_000.0])
def test_topics_are_held_until_their_time_is_over(
    held: tuple[Control, RestoreContext], monkeypatch: pytest.MonkeyPatch, earlier_end: float | None
) -> None:
    """The time counts from the success of the run, or of the earlier one that it has found."""
    control, context = held
    done = RunResult(
        run_id="restore-1",
        kind="KafkaRestore",
        outcome="Succeeded",
        exit_code=0,
        start_time=1.0,
        end_time=earlier_end or 2.0,
    )
    if earlier_end is not None:
        done = replace(done, end_time=5_000.0, earlier_run="restore-1", earlier_end=earlier_end)
    context.state.storage.put(context.state.file(RESULT), done.to_json().encode())
    context = replace(context, spec=spec(holdFor="1h"))
    until = (earlier_end or 2.0) + 3600
    monkeypatch.setattr("logkeep_engine.restore.run.releasing.time.time", lambda: until - 1)
    with pytest.raises(Refused, match=r"run restore-1 holds its topics until 1970-01-01T01:.*nothing was released"):
        release(context, in_time=True)
    with pytest.raises(SpecError, match=r"spec\.topics\.holdFor: without it topics are held until you"):
        release(replace(context, spec=spec()), in_time=True)
    assert control.changes == []
    monkeypatch.setattr("logkeep_engine.restore.run.releasing.time.time", lambda: until)
    assert [item.outcome for item in release(context, in_time=True)] == [ReleaseOutcome.RELEASED] * 2


def test_a_user_may_release_topics_before_their_time_is_over(held: tuple[Control, RestoreContext]) -> None:
    _, context = held
    found = release(replace(context, spec=spec(holdFor="500w")))
    assert [item.outcome for item in found] == [ReleaseOutcome.RELEASED] * 2


def test_the_operator_is_told_how_many_topics_are_released_and_which_are_not(
    held: tuple[Control, RestoreContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    control, context = held

    @contextmanager
    def opened(*_: Any) -> Iterator[RestoreContext]:
        yield replace(context, spec=spec(holdFor="1s"))

    monkeypatch.setattr(releasing, "open_run", opened)
    before = context.state.storage.read(context.state.file(RESULT))
    request = RunRequest(
        kind="KafkaRestore",
        name="again",
        namespace="team",
        run_id="restore-1",
        spec={},
        requested_by="somebody",
        release=True,
    )
    control.late = True
    failed = run_release(request, spec(), Reporter("restore-1"), {})
    assert (failed.outcome, failed.error_code, failed.held_topics) == ("Failed", "BrokerUnavailable", None)
    assert (failed.run_id, failed.requested_by) == ("restore-1", "somebody")
    control.late = False
    control.own |= {"copy": {**HELD}, "there": {**HELD, "retention.ms": "5"}}
    result = run_release(request, spec(), Reporter("restore-1"), {})
    assert result.held_topics is not None
    at = result.held_topics.released_time
    assert result.held_topics == HeldTopics(
        topics=2, topic_list=("copy", "there"), released=1, not_released_list=("there: NotHeld",), released_time=at
    )
    assert replace(result, held_topics=None).to_json().encode() == before
    assert RunResult.from_json(result.to_json()) == result
    short = RunResult.from_json(result.to_termination_message(4096))
    assert short.held_topics == HeldTopics(topics=2, released=1, released_time=at)
    again = run_release(request, spec(), Reporter("restore-1"), {})  # as after a driver that could not tell
    assert again.held_topics is not None
    assert replace(again.held_topics, released_time=at) == result.held_topics
    assert context.state.storage.read(context.state.file(RESULT)) == before
