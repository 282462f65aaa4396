"""A preview tells what a point would give, before anything is written."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.moments import iso
from logkeep_engine.cli import app
from logkeep_engine.restore.model.point_preview import preview
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME
from tests.unit.restore.test_point import archive_transactions, group, point, run


@pytest.fixture
def storage(tmp_path: object) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def ended(storage: Storage) -> int:
    """An archive of partition 0 with two runs; the time (ms) at which the first ended."""
    first = run(storage, "one", 0, 20, group(3))
    run(storage, "two", 20, 40, group(33))
    return first


def test_it_has_offsets_and_bounds_of_each_partition(storage: Storage, ended: int) -> None:
    archive = Archive.open(storage)
    state = archive.load()

    def found(**fields: Any) -> tuple[list[tuple[int, int, int, int]], int]:
        made = preview(archive, state, [ORDERS], point(**fields))
        return [(item.start, item.end, item.archived_end, item.records) for item in made.partitions], made.records

    nothing = (0, 0, 0, 0)
    assert found(asOf=iso(TIME + 25)) == ([(0, 25, 40, 25), nothing], 25)
    assert found(asOf=iso(TIME)) == ([(0, 0, 40, 0), nothing], 0)
    assert found(timestamp=iso(TIME + 25)) == ([(0, 40, 40, 40), nothing], 40)
    assert found(window={"from": iso(TIME + 20)}) == ([(0, 40, 40, 20), nothing], 20)
    assert found(offsets=[{"topic": "orders", "partition": 0, "offset": 7}]) == ([(0, 7, 40, 7), nothing], 7)
    reported = str(preview(archive, state, [ORDERS], point(asOf=iso(TIME + 25))))
    assert reported == (
        "at most 25 records; 1 of 2 partitions end before their archived end; no positions of consumer groups were "
        "archived before the point"
    )
    assert f"run one has archived them, which ended at {iso(ended)}" in str(
        preview(archive, state, [ORDERS], point(asOf=iso(ended)))
    )


def test_the_command_shows_it(storage: Storage, ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, ["inspect", storage.uri, "--at", iso(TIME + 25)])
    assert shown.exit_code == 0, shown.output
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "asOf at most 25 records" in lines
    assert "timestamp at most 40 records" in lines
    assert "orders 0 0 to 39 0 to 24 25 40" in lines
    assert "orders 1 - - 0 0" in lines
    document = json.loads(CliRunner().invoke(app, ["inspect", storage.uri, "--at", iso(ended), "-o", "json"]).stdout)
    assert document["asOf"]["groups"] == {"runId": "one", "time": ended, "positions": 1}
    assert document["asOf"]["partitions"][0][:6] == ["orders", ORDERS.topic_id, 0, 0, 40, 40]


def test_the_command_shows_the_warnings_about_records_of_a_time_too(storage: Storage) -> None:
    archive_transactions(storage)
    shown = CliRunner().invoke(app, ["inspect", storage.uri, "--at", iso(TIME)])
    assert shown.stderr.count("2 partitions hold transactions") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--at", "yesterday"], "--at: 'yesterday' is not a time"), (["--at", iso(TIME), "--partitions"], "no effect")],
)
def test_what_makes_no_sense_is_refused(storage: Storage, ended: int, options: list[str], words: str) -> None:
    refused = CliRunner().invoke(app, ["inspect", storage.uri, *options])
    assert refused.exit_code == 2
    assert words in refused.stderr
