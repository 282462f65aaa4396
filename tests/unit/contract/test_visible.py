"""Text of others is shown on one line, and does nothing."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
import unicodedata
from pathlib import Path

import pytest

from logkeep_engine.contract import visible as door
from logkeep_engine.contract.visible import VisibleFormatter, visible, visible_json, visible_lines
from tests.unit.hostile import HOSTILE, doing

ROOT = Path(__file__).parents[3]


def test_what_does_something_is_shown_as_an_escape() -> None:
    assert visible("a\x1b[2Jb\x9b\x7f\r\n\t") == r"a\x1b[2Jb\x9b\x7f\r\n\t"
    assert (
        visible("\u202e\u2066\u2028\u200b\ufeff\ud800\U000e0001") == r"\u202e\u2066\u2028\u200b\ufeff\ud800\U000e0001"
    )


def test_text_that_can_be_read_stays_as_it_is() -> None:
    for text in ("", "orders", "Bestellungen für Zürich", "注文", "заказы", r"C:\x1b"):
        assert visible(text) == visible_lines(text) == text


def test_no_control_or_format_character_gets_through() -> None:
    bad = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
    assert len(bad) > 2000
    assert visible("".join(bad)).isascii()
    assert set(visible_lines("".join(bad))) - {"\n", "\t"} <= set(map(chr, range(0x20, 0x7F)))


def test_json_means_the_same_and_has_no_raw_character_that_does_something() -> None:
    for value in (HOSTILE, {HOSTILE: [HOSTILE, "\U000e0001\x7f"]}):
        for indent in (None, 2):
            shown = visible_json(json.dumps(value, ensure_ascii=False, indent=indent))
            assert json.loads(shown) == value
            assert doing(shown) == []
    assert visible_json('"\U000e0001\x7f注"') == r'"\udb40\udc01\u007f注"'


def test_a_record_of_a_log_is_one_line_and_its_traceback_is_indented() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(VisibleFormatter("%(levelname)s %(name)s: %(message)s"))
    log = logging.Logger("logkeep")
    log.addHandler(handler)
    try:
        raise ValueError(f"topic {HOSTILE}")
    except ValueError:
        log.exception("topic %s", HOSTILE)
    lines = out.getvalue().rstrip("\n").split("\n")
    assert lines[0].startswith("ERROR logkeep: topic pwned\\x1b")
    assert lines[1] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in lines[1:])
    assert doing(out.getvalue()) == []


def test_the_log_of_a_pod_has_times_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    door.log_with_times(logging.INFO)
    logging.getLogger("logkeep").info("topic %s", HOSTILE)
    reported = capsys.readouterr().err
    assert reported[10] == "T"
    assert reported[19:].partition(" ")[2].startswith("INFO logkeep: topic pwned")
    assert doing(reported) == []


def test_processes_of_tasks_show_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    door.log_warnings_alone()
    log = logging.getLogger("logkeep.task")
    log.info("nothing")
    log.warning("topic %s", HOSTILE)
    reported = capsys.readouterr().err
    assert reported.startswith("topic pwned")
    assert doing(reported) == []


# ---- nobody goes round the door

DOORS = {"engine/logkeep_engine/contract/visible.py", "engine/logkeep_engine/cli/output.py"}
_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
_SET_UP = {"basicConfig", "StreamHandler", "print_exc", "print_exception", "print_stack"}
_PRINTERS = {"print", "pprint", "Console", *_SET_UP}
_METHODS = {"echo", "secho", "write", "writelines", *_SET_UP}


def goes_round(source: str) -> list[str]:
    """Calls that print without passing through the door, with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        tables = {"Table"} if "from rich.table import" in source else set()
        if isinstance(called, ast.Name) and called.id in _PRINTERS | tables:
            found.append(f"{node.lineno}: {called.id}")
        if isinstance(called, ast.Attribute) and called.attr in _METHODS:
            owner = ast.unparse(called.value)
            if called.attr not in ("write", "writelines") or owner.rpartition(".")[2] in _STREAMS or "buffer" in owner:
                found.append(f"{node.lineno}: {owner}.{called.attr}")
    return found


def test_nothing_is_printed_but_through_the_door() -> None:
    files = [path for part in ("engine", "operator") for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 300
    found = {
        path.relative_to(ROOT).as_posix(): calls
        for path in files
        if path.relative_to(ROOT).as_posix() not in DOORS and (calls := goes_round(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    ["print(x)", "sys.stderr.write(x)", "typer.echo(x)", "Console().rule(x)", "traceback.print_exc()",
     "from rich.table import Table\nTable()",
     "sys.stdout.buffer.write(x)", "logging.basicConfig()"],
)  # fmt: skip
def test_a_call_that_goes_round_the_door_is_found(source: str) -> None:
    assert len(goes_round(f"import sys\n{source}")) == 1
