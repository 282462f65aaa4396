"""Progress of a run on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

import logkeep_engine
from logkeep_engine.archive.maintenance.verify import VerifyProgress
from logkeep_engine.cli import app, kubectl
from logkeep_engine.cli.progress import RunShown, VerifyShown
from logkeep_engine.contract.facts.progress import PartitionProgress, TopicProgress
from logkeep_engine.contract.run import Progress

THOUSAND = tuple(
    PartitionProgress(topic=f"topic-{number:04}", partition=0, start=0, end=60, at=0, records=0, bytes=0)
    for number in range(1000)
)


def progress(*moving: str, done: int = 30_000, **changes: object) -> Progress:
    facts: dict[str, object] = {
        "partitions": 1000,
        "partitions_done": 500,
        "records": 30_000,
        "bytes": 3 << 30,
        "offsets_done": done,
        "offsets_total": 60_000,
        "partitions_shown": THOUSAND,
        "moving": tuple(TopicProgress(topic=name, done=20, total=60) for name in moving),
        "bytes_per_second": 100 << 20,
        "seconds_left": 3725,
    }
    facts = {"phase": "Running", **facts, **changes}
    return Progress(run_id="run", start_time=0.0, update_time=1.0, **facts)  # type: ignore[arg-type]


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=140, _environ={})


def shown_on(terminal: Console) -> RunShown:
    shown = RunShown("KafkaBackup")
    shown._console = terminal
    return shown


def bars(shown: RunShown) -> list[tuple[str, float, float | None]]:
    assert shown._bars is not None
    return [(task.description, task.completed, task.total) for task in shown._bars.tasks]


def test_a_terminal_shows_the_whole_and_below_it_the_topics_that_move(terminal: Console) -> None:
    with shown_on(terminal) as shown:
        shown.show(progress("topic-0777", "topic-0998"))
        assert bars(shown) == [
            ("[bold]Running[/bold] 500 of 1000 partitions, 100.0 MiB/s, 1h 2m left", 30_000, 60_000),
            ("topic-0777", 20, 60),
            ("topic-0998", 20, 60),
        ]
        shown.show(progress("topic-0998", "topic-0999", done=30_100))
        assert [name for name, _, _ in bars(shown)[1:]] == ["topic-0998", "topic-0999"]
        shown.show(progress())
        assert len(bars(shown)) == 1


def test_a_name_is_shown_as_it_is(terminal: Console) -> None:
    with shown_on(terminal) as shown:
        shown.show(progress("a[bold]\x1b"))
        assert bars(shown)[1][0] == r"a\[bold]\x1b"


def test_a_pipe_gets_lines_with_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with RunShown("KafkaRestore") as shown:
        shown.show(progress("topic-0777"))
        shown.show(progress())  # too soon for another line
    line = capsys.readouterr().err
    assert line == ("running: 50%, 500 of 1000 partitions, 30000 records, 3.0 GiB restored, 100.0 MiB/s, 1h 2m left\n")


def test_a_run_without_partitions_counts_none(capsys: pytest.CaptureFixture[str], terminal: Console) -> None:
    empty = progress(phase="Finishing", partitions=0, partitions_done=0, records=0, bytes=0)
    with RunShown("KafkaBackup") as shown:
        shown.show(empty)
    assert capsys.readouterr().err == "finishing\n"
    with shown_on(terminal) as shown:
        shown.show(empty)
        assert [text.strip() for text, *_ in bars(shown)] == ["[bold]Finishing[/bold]"]
    one = progress(partitions=1, partitions_done=0, records=1, bytes_per_second=None, seconds_left=None)
    with RunShown("KafkaBackup") as shown:
        shown.show(one)
    assert "0 of 1 partition, 1 record, " in capsys.readouterr().err


def test_a_verification_in_a_pipe_prints_no_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    with VerifyShown() as shown:
        shown.show(VerifyProgress(1, 2))
    assert capsys.readouterr().err == ""


def test_what_is_verified_is_not_called_restored(capsys: pytest.CaptureFixture[str]) -> None:
    with RunShown("KafkaRestore") as shown:
        shown.show(progress(phase="Running"))
        shown.show(progress(phase="Verifying"))
        shown.show(progress(phase="Finishing"))
    lines = [line.split(",")[3].split()[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["restored", "compared", "compared"]


@pytest.mark.parametrize("program", [app, kubectl.app])
def test_the_command_and_the_plugin_tell_their_version(program: Typer) -> None:
    done = CliRunner().invoke(program, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"logkeep {logkeep_engine.__version__}\n")
