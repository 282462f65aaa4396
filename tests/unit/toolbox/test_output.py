"""The output of `logkeep log`: tables in pipes and on terminals, damage while it works, the end."""

import json
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import pytest

from logkeep_engine.cli import app
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.toolbox import indexes
from logkeep_engine.toolbox.index import Index, IndexVerdict
from logkeep_engine.toolbox.source import LogSource
from tests.unit.log.batches import NOON, batch
from tests.unit.toolbox.logs import command, on_a_terminal, piped, write_log


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def commits(folder: Path, *groups: str, topic: str = "t", metadata: str = "") -> Path:
    value = struct.pack(">hqi", 3, 777, 5) + text(metadata) + struct.pack(">q", NOON)
    records = [
        Record(number, NOON, struct.pack(">h", 1) + text(group) + text(topic) + struct.pack(">i", 3), value)
        for number, group in enumerate(groups)
    ]
    write_log(folder / "__consumer_offsets-0", [encode(records, codec=Codec.NONE, base_offset=0)])
    return folder


def test_a_table_in_a_pipe_is_never_cut(tmp_path: Path) -> None:
    group, topic, metadata = "g" * 300, "t" * 249, "m" * 4000
    code, lines, _ = piped("offsets", commits(tmp_path, group, topic=topic, metadata=metadata))
    assert code == 0
    head, row = lines.splitlines()
    assert " ".join(head.split()) == "consumer group topic partition offset leader epoch committed metadata"
    assert row.split() == [group, topic, "3", "777", "5", "2023-11-14T22:13:20.000Z", metadata]


def test_names_are_no_markup(tmp_path: Path) -> None:
    names = ["[red]pay[/red]ments", "[/x]", ":warning:", "[bold]"]
    code, lines, problems = piped("offsets", commits(tmp_path, *names))
    assert (code, problems) == (0, "")
    assert [line.split()[0] for line in lines.splitlines()[1:]] == sorted(names)
    code, shown = on_a_terminal("offsets", tmp_path)
    assert code == 0
    assert all(name in shown for name in names)


def test_control_characters_in_a_table_are_shown(tmp_path: Path) -> None:
    commits(tmp_path, "a\x1b[2Jb", "c\nd\x7f", metadata="\x9b31m")
    for _, shown in (on_a_terminal("offsets", tmp_path), piped("offsets", tmp_path)[:2]):
        assert r"a\x1b[2Jb" in shown
        assert r"c\nd\x7f" in shown
        assert r"\x9b31m" in shown
    history = on_a_terminal("offsets", tmp_path, "--history")[1]
    assert r"\x9b31m" in history
    assert "\x1b" not in history


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so(tmp_path: Path, sign: signal.Signals) -> None:
    write_log(tmp_path / "t-0", [batch(i) for i in range(5000)])
    with subprocess.Popen(
        command("dump", tmp_path / "t-0", "--deep"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(1)  # it waits for a reader of more than a pipe holds
        os.kill(running.pid, sign)
        assert running.wait(60) == 130  # it does not wait for that reader any more
        assert running.stderr.read() == b"error: interrupted\n"


class Held:
    """Stands for the bytes of an index; they may be 10 MiB."""


def test_faults_of_indexes_are_said_as_they_come_and_no_index_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alive: WeakSet[Held] = WeakSet()
    said: list[str] = []

    def survey(source: LogSource, **_: Any) -> Iterator[Index]:
        for number in range(4):
            held = Held()
            alive.add(held)
            yield wrong(source, f"{number}.index", cast("bytes", held))
            del held
            said.append(capsys.readouterr().out)
            assert len(alive) <= 1

    monkeypatch.setattr(indexes, "survey", survey)
    write_log(tmp_path / "t-0", [batch(0)])
    with pytest.raises(SystemExit) as ended:
        app(["log", "index", "check", str(tmp_path / "t-0")])
    assert ended.value.code == 6
    assert said == [f"{tmp_path}/t-0/{number}.index: it is wrong\n" for number in range(4)]
    assert capsys.readouterr().out == "4 indexes, 4 with faults\n"


def wrong(source: LogSource, path: str, found: bytes) -> Index:
    return Index(source.storage, path, "t", 0, IndexVerdict.WRONG, ("it is wrong",), found, None, False, "")


def test_what_the_encoding_of_stdout_lacks_is_escaped(tmp_path: Path) -> None:
    commits(tmp_path, "gr\u00fcn \U0001f600")
    write_log(tmp_path / "t-0", [batch(0, value="gr\u00fcn \U0001f600".encode())])
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    code, text, problems = piped("dump", tmp_path / "t-0", "--print-data", **ascii_only)
    assert (code, problems) == (0, "")
    assert r"payload: gr\xfcn \U0001f600" in text
    (document,) = json.loads(piped("offsets", tmp_path, "--json", **ascii_only)[1])
    assert document["key"]["group"] == "gr\u00fcn \U0001f600"
    lines = piped("dump", tmp_path / "t-0", "--print-data", "--json", **ascii_only)[1].splitlines()
    assert json.loads(lines[-1])["payload"] == "gr\u00fcn \U0001f600"


@pytest.mark.parametrize(("records", "unbuffered"), [(1, ""), (5000, "1")])
def test_a_reader_that_goes_ends_the_command_quietly(tmp_path: Path, records: int, unbuffered: str) -> None:
    """SIGPIPE ends other programs so: it is unknown what was found."""
    write_log(tmp_path / "t-0", [batch(i) for i in range(records)])
    ours, theirs = os.pipe()
    os.close(ours)
    assert ended("dump", tmp_path / "t-0", "--deep", stdout=theirs, unbuffered=unbuffered) == (141, "")
    os.close(theirs)


@pytest.mark.parametrize(
    ("asked", "records", "unbuffered"),
    [("dump --deep", 5000, ""), ("dump --json", 1, ""), ("timestamps", 1, "1"), ("timestamps --json", 1, "")],
)
def test_a_full_disk_under_stdout_is_said(tmp_path: Path, asked: str, records: int, unbuffered: str) -> None:
    """/dev/full answers ENOSPC to every write, as a full disk does."""
    write_log(tmp_path / "t-0", [batch(i) for i in range(records)])
    with open("/dev/full", "wb") as full:
        assert ended(*asked.split(), tmp_path / "t-0", stdout=full.fileno(), unbuffered=unbuffered) == (
            1,
            "error: standard output: No space left on device.\nhint: Make room, or write it somewhere else.\n",
        )


def ended(*arguments: object, stdout: int, unbuffered: str) -> tuple[int, str]:
    """Exit code and stderr of a process."""
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command(*arguments), stdout=stdout, stderr=subprocess.PIPE, text=True, env=environ, check=False
    )
    return done.returncode, done.stderr
