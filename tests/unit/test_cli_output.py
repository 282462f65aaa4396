"""Commands print for people at a terminal and for programs in a pipe."""

from __future__ import annotations

import io
import re

import pytest
import typer
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.kubectl import app as plugin
from logkeep_engine.cli.options import Output
from logkeep_engine.cli.output import facts, stdout, table
from logkeep_engine.cli.resource import _print_result, _result_rows, of_comparison
from logkeep_engine.contract.facts.outcome import DrillFacts, HeldTopics
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import RESTORE, ExitCode
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunResult

LONG = "orders-of-the-year-of-which-the-name-is-long"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


def printed(out: io.StringIO, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a table and of facts."""
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = table("topic", "records", "message")
    shown.add_row(LONG, "5000000", "it is long, too")
    shown.add_row("a", "1", "")
    stdout().print(shown)
    stdout().print(facts([("state", "many words that are many"), ("run", "r1")]))
    return out.getvalue().splitlines()


def test_a_narrow_terminal_cuts_no_cell_and_folds_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(Terminal(), 20, monkeypatch)
    assert lines[1] == f"{LONG}  5000000  it is long, too"
    assert lines[3:] == ["state  many words", "       that are many", "run    r1"]


def test_a_terminal_breaks_sentences_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(Terminal(), 68, monkeypatch)
    assert lines[1] == f"{LONG}  5000000  it is long,"
    assert lines[2].split() == ["too"]
    assert max(map(len, lines[1:])) <= 68


def test_a_pipe_gets_each_row_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(io.StringIO(), 68, monkeypatch)[1] == f"{LONG}  5000000  it is long, too"


@pytest.mark.parametrize("out", [io.StringIO, Terminal])
def test_no_line_has_blanks_at_its_end(out: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(out(), 40, monkeypatch)
    assert [line for line in lines if line != line.rstrip()] == []
    assert lines[3:] == ["state  many words that are many", "run    r1"]


def test_a_package_that_is_not_installed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, errors(debug=False):
        raise ModuleNotFoundError("No module named 'confluent_kafka'", name="confluent_kafka")
    reported = capsys.readouterr().err
    assert left.value.exit_code == ExitCode.REFUSED
    assert "needs the Python package confluent_kafka, which is not installed here" in reported
    assert "pip install '.[engine]'" in reported


@pytest.mark.parametrize(
    ("program", "line", "said"),
    [
        (app, "convert a b --format Kafka --digest sha256", "'--digest': 'sha256' is not one of 'Sha256', 'Blake3'."),
        (app, "inspect a -o xml", "'--output' / '-o': 'xml' is not one of 'text', 'json'."),
        (app, "log dump SOURCE --key-decoder xml", "'--key-decoder': 'xml' is not one of 'string', 'hex'"),
        (plugin, "status -o xml", "'xml' is not one of "),
    ],
    ids=["digest", "output", "nested", "plugin"],
)
def test_a_wrong_value_of_an_option_is_named_with_those_that_exist(program: typer.Typer, line: str, said: str) -> None:
    done = CliRunner().invoke(program, line.split())
    assert done.exit_code == 2
    assert said in done.output
    assert "Value error" not in done.output


def test_a_result_counts_positions_by_their_name_and_says_how_far_a_sampled_drill_is() -> None:
    done = RunResult(run_id="r", kind=RESTORE, outcome="Succeeded", exit_code=0, start_time=0.0, end_time=9.0, groups=5)
    drill = DrillFacts(
        recovery_seconds=1.0,
        verified_seconds=2.0,
        partitions=3,
        records=4,
        bytes=5,
        report="s3://a/drill.json",
        total=200,
        cycle=1,
        drilled=40,
        runs=20,
    )
    assert ("positions of groups", "5") in _result_rows(done, moves_groups=True)
    lines = ("drilled", "40/200, all partitions within 20 runs")
    assert lines in _result_rows(replace(done, drill=drill), moves_groups=False)
    assert lines not in _result_rows(replace(done, drill=drill, outcome="Failed"), moves_groups=False)


def test_a_restore_says_when_and_how_held_topics_are_to_be_released(capsys: pytest.CaptureFixture[str]) -> None:
    source = {"storage": {"uri": "s3://bucket"}}
    topics = {"retention": "Hold"}
    plain = {"source": source, "cluster": {"bootstrapServers": ["k:1"]}}
    done = RunResult(
        run_id="r1",
        kind=RESTORE,
        outcome="Succeeded",
        exit_code=0,
        start_time=0.0,
        end_time=9.5,
        held_topics=HeldTopics(topics=1, topic_list=("a",)),
        message="1 topic",
    )
    _print_result(done, Output.TEXT, parse_restore({**plain, "topics": topics}))
    assert "holdFor" not in capsys.readouterr().err
    timed = parse_restore({**plain, "topics": {**topics, "holdFor": "1h"}})
    _print_result(done, Output.TEXT, timed)
    text = "spec.topics.holdFor ends at 1970-01-01T01:00:09Z; then: logkeep release -f FILE --run-id r1"
    assert text in " ".join(capsys.readouterr().err.split())
    _print_result(replace(done, earlier_run="r0", earlier_end=3.0), Output.TEXT, timed)
    assert "ends at 1970-01-01T01:00:03Z" in " ".join(capsys.readouterr().err.split())
    _print_result(replace(done, held_topics=None), Output.TEXT, timed)
    assert "holdFor" not in capsys.readouterr().err


def helps(program: typer.Typer) -> list[tuple[str, str]]:
    """The --help of the program and of each of its commands."""
    found: list[tuple[str, str]] = []
    left: list[list[str]] = [[]]
    while left:
        line = left.pop()
        text = CliRunner().invoke(program, [*line, "--help"], env={"COLUMNS": "200"}).stdout
        found.append((" ".join(line), text))
        if "COMMAND [ARGS]..." in text:
            rows = re.findall(r"^  ([a-z]+)  +\S.*$", text.partition("\n  -h, --help")[2], re.MULTILINE)
            left += [[*line, name] for name in rows]
    return found


@pytest.mark.parametrize(("program", "fewest"), [(app, 26), (plugin, 8)], ids=["logkeep", "plugin"])
def test_help_cuts_nothing_and_names_values_as_people_call_them(program: typer.Typer, fewest: int) -> None:
    shown = helps(program)
    assert len(shown) >= fewest
    for command, text in shown:
        body = text.replace("[ARGS]...", "").replace("SOURCE...", "")
        assert "..." not in body, command
        assert re.findall(r"<\w[^>]*>|\{\w+\}", body) == [], command
        assert max(map(len, text.splitlines())) <= 100, command
        named = re.search(r"^  --topic (\S+)", text, re.MULTILINE)
        assert named is None or named[1] == "REGEX", f"{command}: --topic means the same everywhere"
        assert ("--output" in text) == ("--json" in text), command


def test_commands_are_listed_by_what_people_do() -> None:
    listed = CliRunner().invoke(app, ["--help"]).stdout
    heads = ["Back up:", "Restore:", "Look at an archive, and prove it:", "Remove from an archive, or keep:"]
    assert [listed.index(head) for head in heads] == sorted(listed.index(head) for head in heads)
    assert listed.index("Restore:") < listed.index("  groups ") < listed.index("Look at an archive")


def test_what_differs_ends_a_comparison_with_one_code_and_what_was_not_compared_with_another() -> None:
    run = RunResult(run_id="r", kind=RESTORE, outcome="Different", exit_code=5, start_time=0.0, end_time=9.0)
    assert of_comparison(replace(run, error_code="RecordsDiffer")).exit_code == ExitCode.DIFFERS
    assert of_comparison(replace(run, error_code="RecordsNotVerified")).exit_code == ExitCode.INCOMPLETE
    assert of_comparison(replace(run, exit_code=0)).exit_code == ExitCode.OK
