"""One restore at a time holds a topic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.errors import ArchiveDamaged, TargetUnsuitable
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import COUNTED, HELD_NOTE, PLAN
from logkeep_engine.restore.model.topics import ExistingTopic
from logkeep_engine.restore.topics.hold_notes import note_held, note_released, refuse_held_by_others
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import archive_of, chunk
from tests.unit.restore.test_held_topics import CREATED, HELD, THERE, Control, context_of, planned_of, spec, succeeded

ID = "t" * 22


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    storage = open_uri(f"file://{tmp_path}/archive")
    return archive_of(storage, chunk(storage, 0, 100))


def run_of(archive: Archive, run_id: str, *topics: TopicPlan) -> RestoreContext:
    """The context of a restore that has begun to hold these topics."""
    context = context_of(archive, Control({topic.target: {} for topic in topics}))
    context = replace(context, run_id=run_id, state=context.state.of_run(run_id))
    plan: RestorePlan = replace(planned_of(archive, *topics).plan, run_id=run_id)
    context.state.storage.put(context.state.file(PLAN), plan.to_json())
    note_held(context, [topic for topic in topics if not topic.created], fresh=True)
    return context


def there(name: str, topic_id: str = ID, *, held: bool = True) -> dict[str, ExistingTopic]:
    own = HELD if held else {"retention.ms": "5"}
    return {name: ExistingTopic(name, 2, own, topic_id, own=own)}


def test_what_another_run_holds_is_refused(archive: Archive) -> None:
    run_of(archive, "first", THERE)
    own = run_of(archive, "second", THERE)
    with pytest.raises(TargetUnsuitable) as refused:
        refuse_held_by_others(own, there("there"))
    assert refused.value.message == (
        "spec.topics.retention: another restore holds these topics already: there (run first); nothing was written"
    )
    assert "`logkeep release -f FILE --run-id first`" in str(refused.value.hint)


def test_a_topic_that_a_run_has_created_is_among_them(archive: Archive) -> None:
    first = run_of(archive, "first", CREATED)
    counted = {"format": 1, "partitions": 1, "topicIds": {"copy": ID}}
    first.state.storage.put(first.state.file(COUNTED), json.dumps(counted).encode())
    own = run_of(archive, "second")
    with pytest.raises(TargetUnsuitable, match=r"copy \(run first\)"):
        refuse_held_by_others(own, there("copy"))
    assert refuse_held_by_others(own, there("copy", "x" * 22, held=False)) == []  # created again


def test_a_run_that_has_succeeded_holds_its_topics_until_it_is_released(archive: Archive) -> None:
    """Its release would find a topic held that somebody has changed, and this restore has held."""
    first, own = run_of(archive, "first", THERE), run_of(archive, "second")
    changed = there("there", held=False)
    assert refuse_held_by_others(own, changed) == []  # somebody has given it up by hand
    succeeded(first.state)
    with pytest.raises(TargetUnsuitable):
        refuse_held_by_others(own, changed)
    note_released(first.state)
    assert refuse_held_by_others(own, changed) == []


def test_a_topic_that_keeps_all_records_by_itself_is_not_refused(archive: Archive) -> None:
    own = run_of(archive, "second", THERE)
    (reported,) = refuse_held_by_others(own, there("there"))
    assert reported.startswith(
        "topics have retention.ms=-1 and retention.bytes=-1 already, which their release leaves: the"
    )
    assert f"No restore with its state in {archive.storage.uri} holds them" in reported


def test_runs_of_other_clusters_and_topics_hold_nothing_of_this_one(archive: Archive) -> None:
    first, own = run_of(archive, "first", THERE), run_of(archive, "second")
    assert len(refuse_held_by_others(own, there("there", "x" * 22))) == 1
    assert len(refuse_held_by_others(own, there("else"))) == 1
    assert len(refuse_held_by_others(replace(own, cluster_id="other"), there("there"))) == 1
    first.state.storage.delete([first.state.file(PLAN)])
    assert len(refuse_held_by_others(own, there("there"))) == 1


def test_what_a_run_holds_that_was_taken_over_the_other_run_holds(archive: Archive) -> None:
    first, own = run_of(archive, "first", THERE), run_of(archive, "third")
    run_of(archive, "second", THERE)
    claim = json.dumps({"format": 1, "by": "second"}).encode()
    first.state.storage.put(first.state.file("taken-over.json"), claim)
    with pytest.raises(TargetUnsuitable, match=r"there \(run second\)"):
        refuse_held_by_others(own, there("there"))


def test_a_note_that_cannot_be_read_is_not_taken_for_a_release(archive: Archive) -> None:
    first, own = run_of(archive, "first", THERE), run_of(archive, "second")
    first.state.storage.put(first.state.file(HELD_NOTE), b'{"format": 1, "released": 1}')
    with pytest.raises(ArchiveDamaged, match=r"first/held-topics\.json"):
        refuse_held_by_others(own, there("there"))


def holding_nothing(context: RestoreContext) -> RestoreContext:
    return replace(context, spec=spec(retention="Apply"))


def test_a_restore_that_holds_nothing_is_reported_who_does(archive: Archive) -> None:
    first, own = run_of(archive, "first", THERE), holding_nothing(run_of(archive, "second"))
    (reported,) = refuse_held_by_others(own, there("there"))
    assert reported.startswith("another restore holds these topics: there (run first). Once they are released")
    assert refuse_held_by_others(own, there("there", held=False)) == []  # its release changes nothing
    assert refuse_held_by_others(own, there("else")) == []  # it keeps all by itself
    note_released(first.state)
    assert refuse_held_by_others(own, there("there")) == []


def test_a_restore_that_holds_nothing_continues_where_a_note_cannot_be_read(archive: Archive) -> None:
    first, own = run_of(archive, "first", THERE), holding_nothing(run_of(archive, "second"))
    first.state.storage.put(first.state.file(HELD_NOTE), b'{"format": 1, "released": 1}')
    (reported,) = refuse_held_by_others(own, there("there"))
    assert reported.startswith("whether another restore holds these topics is unknown: there: ")
    assert "first/held-topics.json" in reported
