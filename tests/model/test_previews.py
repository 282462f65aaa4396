"""`logkeep inspect --at` where `asOf` and `timestamp` give different incarnations of a topic."""

import pytest

from logkeep_engine.archive.moments import iso
from logkeep_engine.cli.inspect import show_point
from logkeep_engine.cli.options import Output
from tests.model.actions import Backup, Recreate, Write
from tests.model.previews import previewed
from tests.model.reference import HOUR
from tests.model.world import Settings, World, clock_of


def test_each_point_shows_the_incarnation_that_has_records_then(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(Settings())
    with clock_of(world):
        for action in (Write("a"), Backup(), Recreate(), Write("bc"), Write("d", hours=48), Backup()):
            action.on(world)
        moment = world.time - HOUR // 30  # later than the first incarnation, and than the late record of the second
        assert not list(previewed(world, moment))
        archive = world.archive
        assert archive is not None
        show_point(archive, iso(moment), Output.TEXT)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("orders")]
    # topic, partition, archived "0 to n", asOf: offsets, records, timestamp: records
    assert rows == [
        ["orders", "0", "0", "to", "0", "0", "to", "0", "1", "-"],
        ["orders", "0", "0", "to", "2", "-", "-", "3"],
    ]
