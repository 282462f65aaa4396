"""Each write of each kind of run is the last one once, and what comes after it is as right as ever."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.examples import positions
from tests.model.actions import AddTopic, Backup, Clean, Convert, CutOff, Erase, Restore, Retain, Wait, Write, history
from tests.model.known import known
from tests.model.play import play
from tests.model.world import Settings, World, clock_of

BEFORE = (
    Write("abc"),
    Write("ad", commits=True),
    Backup(snapshots=True),
    Write("bc", commits=False),
    Wait(50),
    Backup(snapshots=True),
    Write("ae"),
)
AFTER = (Write("cf"), Backup(snapshots=True, retains=True))
KINDS: dict[str, tuple[Settings, tuple[Any, ...], Callable[[int | None], Any]]] = {
    "backup": (
        Settings("compact", keep_runs=2),
        (),
        lambda dies: Backup(snapshots=True, retains=True, dies=dies),
    ),
    "backup of several pieces": (Settings(max_age=1), (), lambda dies: Backup(pieces=2, retains=True, dies=dies)),
    "backup behind a fork": (Settings(keep_runs=1), (CutOff(),), lambda dies: Backup(retains=True, dies=dies)),
    "backup that merges": (
        Settings(keep_runs=3),
        (Backup(), Write("ab"), Backup(), Write("ab"), Backup(), Write("ab")),
        lambda dies: Backup(merges=2, retains=True, dies=dies),
    ),
    "generation": (
        Settings("compact", keep_runs=2),
        (Backup(due=True), Clean()),
        lambda dies: Backup(generation="whole", snapshots=True, retains=True, dies=dies),
    ),
    "retention": (Settings(max_age=1), (Backup(),), lambda dies: Retain(dies=dies)),
    "erasure": (
        Settings("compact", keep_runs=2),
        (Backup(snapshots=True),),
        lambda dies: Erase("a", dies=dies),
    ),
    "erasure of one of two topics": (
        Settings(),
        (AddTopic("compact"), Write("ab", topic=1), Write("ac"), Backup(snapshots=True), Write("bd", topic=1)),
        lambda dies: Erase("a", dies=dies),
    ),
    **{
        f"{run} of {name}": (Settings(keep_runs=1, max_age=1, format=name), (), action)
        for name in ("Records", "Avro")
        for run, action in (
            ("backup", lambda dies: Backup(pieces=2, retains=True, dies=dies)),
            ("erasure", lambda dies: Erase("a", dies=dies)),
        )
    },
    **{
        f"generation of {name}": (
            Settings("compact", keep_runs=2, format=name),
            (Backup(due=True), Clean()),
            lambda dies: Backup(generation="whole", retains=True, dies=dies),
        )
        for name in ("Records", "Avro")
    },
    "restore": (Settings("compact", keep_runs=2), (Backup(snapshots=True),), lambda dies: Restore(dies=dies)),
    "restore of Records": (Settings(format="Records"), (Backup(),), lambda dies: Restore(dies=dies)),
    "conversion of Records": (Settings(format="Records"), (Backup(),), lambda dies: Convert(dies=dies)),
    "conversion to Kafka": (Settings("compact", keep_runs=1), (Backup(),), lambda dies: Convert(dies=dies)),
    "conversion of what has come since": (
        Settings("compact", keep_runs=3),
        (Backup(), Convert(), Write("bd"), Write("c", commits=True), Backup()),
        lambda dies: Convert(dies=dies),
    ),
    "conversion to Records": (Settings(), (Backup(),), lambda dies: Convert("Records", dies=dies)),
    "conversion to Avro": (Settings(), (Backup(),), lambda dies: Convert("Avro", dies=dies)),
}


def _writes(settings: Settings, actions: tuple[Any, ...], last: Any) -> int:
    """The number of writes of the last action."""
    world = World(settings)
    with clock_of(world):
        for action in actions:
            action.on(world)
        before = world.writes()
        last.on(world)
    return world.writes() - before


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_may_die_before_any_of_its_writes(kind: str) -> None:
    settings, more, run = KINDS[kind]
    before = (*BEFORE, *more, Restore())
    after = (*AFTER, run(None)) if kind.startswith("conversion") else AFTER  # nobody reads a target that is not whole
    for dies in positions(_writes(settings, before, run(1_000)), 5, edges=1):
        tried = history(settings, *before, run(dies), *after)
        faults = [fault for fault in play(tried) if not known(fault)]
        assert not faults, f"{tried}\n" + "\n".join(map(str, faults))
