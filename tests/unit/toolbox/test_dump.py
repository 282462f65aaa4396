"""`logkeep log dump`: what is asked for, however large the log, however damaged, in the form that is asked for."""

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from logkeep_engine.contract.archive_format import FormatOptions
from logkeep_engine.formats.avro import AvroEncoder
from logkeep_engine.formats.records import RecordsEncoder
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import archive_of, chunk
from tests.unit.log.batches import NOON, batch, hidden, marker, with_header
from tests.unit.toolbox.logs import emptied, on_a_terminal, piped, run, write_log

LOG = [
    batch(20, 2),
    batch(22, 3, codec=Codec.LZ4, producer_id=4, transactional=True),
    marker(25, 4, commit=False),
    batch(26, 4, timestamp=NOON + 9),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_log(tmp_path / "orders-3", LOG)
    return tmp_path / "orders-3"


def rows(*arguments: object, exit_code: int = 0) -> list[dict[str, Any]]:
    done = run("dump", *arguments, "--json")
    assert done.exit_code == exit_code, done.output
    return [row for line in done.stdout.splitlines() if (row := json.loads(line))["type"] != "file"]


def offsets(*arguments: object) -> list[int]:
    return [row["offset"] for row in rows(*arguments, "--deep") if row["type"] == "record"]


def test_batches_have_every_field(folder: Path) -> None:
    first, transactional, control, last = rows(folder)
    assert first == {
        "type": "batch",
        "baseOffset": 20,
        "lastOffset": 21,
        "count": 2,
        "baseSequence": -1,
        "lastSequence": -1,
        "producerId": -1,
        "producerEpoch": -1,
        "partitionLeaderEpoch": -1,
        "isTransactional": False,
        "isControl": False,
        "deleteHorizonMs": None,
        "position": 0,
        "timestampType": "CreateTime",
        "timestamp": NOON + 1,
        "size": len(LOG[0]),
        "magic": 2,
        "compresscodec": "none",
        "crc": int.from_bytes(LOG[0][17:21]),
        "isvalid": True,
    }
    assert (transactional["isTransactional"], transactional["aborted"], transactional["compresscodec"]) == (
        True,
        True,
        "lz4",
    )
    assert (control["isControl"], last["position"]) == (True, len(b"".join(LOG[:3])))


def test_records_and_markers_are_shown_with_deep(folder: Path) -> None:
    found = [row for row in rows(folder, "--deep") if row["type"] == "record"]
    assert [row["offset"] for row in found] == list(range(20, 30))
    assert found[0] == {
        "type": "record",
        "offset": 20,
        "timestampType": "CreateTime",
        "timestamp": NOON,
        "keySize": 2,
        "valueSize": 1,
        "sequence": -1,
        "headerKeys": [],
    }
    assert (found[5]["endTxnMarker"], found[5]["coordinatorEpoch"]) == ("ABORT", 7)


def test_text_is_that_of_kafkas_tool(folder: Path) -> None:
    lines = run("dump", folder, "--print-data").stdout.splitlines()
    assert lines[0] == f"Dumping {folder}/00000000000000000020.log"
    assert lines[1] == "Log starting offset: 20"
    assert lines[2] == (
        "baseOffset: 20 lastOffset: 21 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
        "partitionLeaderEpoch: -1 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        f"position: 0 CreateTime: {NOON + 1} size: {len(LOG[0])} magic: 2 compresscodec: none "
        f"crc: {int.from_bytes(LOG[0][17:21])} isvalid: true"
    )
    assert lines[3] == (
        f"| offset: 20 CreateTime: {NOON} keySize: 2 valueSize: 1 sequence: -1 headerKeys: [] key: k0 payload: v"
    )


def test_a_delete_horizon_and_sequences_are_shown(tmp_path: Path) -> None:
    kept = with_header(batch(0, 3, producer_id=9), attributes=0x40, base_timestamp=NOON + 77, producer_id=9)
    write_log(tmp_path / "t-0", [kept])
    (row,) = rows(tmp_path / "t-0")
    assert row["deleteHorizonMs"] == NOON + 77
    assert "deleteHorizonMs: OptionalLong[" in run("dump", tmp_path / "t-0").stdout
    far = encode(
        [Record(i, NOON, None, b"v") for i in range(3)],
        codec=Codec.NONE,
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=2**31 - 2,
    )
    write_log(tmp_path / "u-0", [far])
    found = rows(tmp_path / "u-0", "--deep")
    assert found[0]["lastSequence"] == 0
    assert [row["sequence"] for row in found[1:]] == [2**31 - 2, 2**31 - 1, 0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("23", [23]),
        ("21..24", [21, 22, 23, 24]),
        ("28..", [28, 29]),
        ("..20", [20]),
        ("25..25", [25]),
        ("100..", []),
    ],
)
def test_offsets_are_filtered(folder: Path, asked: str, expected: list[int]) -> None:
    assert offsets(folder, "--offset", asked) == expected


def test_times_are_filtered(folder: Path) -> None:
    assert offsets(folder, "--time", f"{NOON + 1}..{NOON + 2}") == [21, 23, 24]
    assert offsets(folder, "--time", f"..{NOON}") == [20, 22, 25]
    assert offsets(folder, "--time", "2023-11-14T22:13:20.010Z..") == [27, 28, 29]
    assert offsets(folder, "--time", "2023-11-14T23:13:20.012+01:00..2030-01-01") == [29]
    assert [row["baseOffset"] for row in rows(folder, "--time", f"{NOON + 10}..")] == [26]
    assert rows(folder, "--time", f"{NOON + 13}..") == []


def test_times_of_records_count_where_headers_hide_them(tmp_path: Path) -> None:
    year = 31_536_000_000
    write_log(tmp_path / "t-0", [hidden(batch(0, 3)), hidden(batch(3, 3, codec=Codec.ZSTD, timestamp=NOON + year))])
    assert offsets(tmp_path / "t-0", "--time", f"{NOON + year + 1}..") == [4, 5]
    assert offsets(tmp_path / "t-0", "--time", f"..{NOON + 1}") == [0, 1]
    assert [row["timestamp"] for row in rows(tmp_path / "t-0")] == [-1, -1]  # as the headers have it


def test_keys_are_filtered(folder: Path) -> None:
    assert offsets(folder, "--key-regex", "^k[12]$") == [21, 23, 24, 27, 28]
    assert offsets(folder, "--key-regex", "nothing") == []


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    """Damage before it does not show, since its bytes are not looked at."""
    path = write_log(tmp_path / "big-0", [batch(i * 10, 10, value=b"v" * 50) for i in range(100)])
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert offsets(tmp_path / "big-0", "--offset", "905..906") == [905, 906]
    assert len(rows(tmp_path / "big-0", exit_code=6)) == 101


def test_damage_is_said_and_the_rest_is_shown(folder: Path) -> None:
    path = folder / "00000000000000000020.log"
    data = path.read_bytes()
    start = len(LOG[0])
    path.write_bytes(data[:start] + b"\x00" * 40 + data[start:-3])
    done = run("dump", folder)
    assert done.exit_code == 6
    assert f"Found 40 invalid bytes at position {start} of {path}, offset 22: no batch begins there" in done.stdout
    assert "offset 26: the batch at offset 26 is cut short" in done.stdout
    assert done.stdout.count("baseOffset: ") == 3


def test_a_batch_with_a_wrong_crc_is_not_valid(folder: Path) -> None:
    path = folder / "00000000000000000020.log"
    data = bytearray(path.read_bytes())
    data[len(LOG[0]) + 70] ^= 1
    path.write_bytes(data)
    found = rows(folder, exit_code=6)
    assert [row["isvalid"] for row in found if row["type"] == "batch"] == [True, False, True, True]
    (damage,) = [row for row in found if row["type"] == "damage"]
    assert damage["what"].startswith("The batch at offset 22 is damaged: its CRC is ")


def typed(tmp_path: Path, value: bytes, *options: object) -> Any:
    write_log(tmp_path / "t-0", [batch(0, value=value)])
    (found,) = [row for row in rows(tmp_path / "t-0", "--print-data", *options) if row["type"] == "record"]
    return found


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("string", "grün".encode(), "grün"),
        ("hex", b"\x00\xff", "00ff"),
        ("base64", b"\x00\xff", "AP8="),
        ("json", b'{"a": [1, null]}', {"a": [1, None]}),
    ],
)
def test_values_are_decoded(tmp_path: Path, name: str, value: bytes, expected: Any) -> None:
    assert typed(tmp_path, value, "--value-decoder", name)["payload"] == expected


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "raw", "type": "bytes"}],
}


def avro(value: dict[str, Any]) -> bytes:
    import io

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), value)
    return out.getvalue()


@pytest.mark.parametrize("header", [b"", b"\x00\x00\x00\x00\x07"])
def test_avro_is_decoded(tmp_path: Path, header: bytes) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(SCHEMA))
    options = ["--value-decoder", "avro", "--avro-schema", schema, *(["--confluent"] if header else [])]
    found = typed(tmp_path, header + avro({"id": 5, "raw": b"\x01"}), *options)
    assert found["payload"] == {"id": 5, "raw": "AQ=="}
    wrong = typed(tmp_path, b"\x05", *options)
    assert wrong["payload"] == "05"
    assert wrong["payloadProblem"]


def test_what_cannot_be_decoded_is_shown_in_hex_and_counted(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", [batch(0, 3, value=b"{")])
    done = run("dump", tmp_path / "t-0", "--print-data", "--value-decoder", "json")
    assert done.exit_code == 0
    assert done.stdout.count("payload: <not JSON: ") == 3
    assert "hex 7b>" in done.stdout
    assert done.stderr == "warning: 3 keys or values could not be decoded and are shown in hex\n"


@pytest.mark.parametrize("value", [b"NaN", b"[-Infinity]", b"1e999", b"[" * 200_000])
def test_what_only_pythons_parser_takes_for_json_is_shown_in_hex(tmp_path: Path, value: bytes) -> None:
    found = typed(tmp_path, value, "--value-decoder", "json")
    assert found["payload"] == value.hex()
    assert found["payloadProblem"].startswith("not JSON")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_json_that_is_nested_as_deep_as_it_can_be_read_can_be_printed(tmp_path: Path, form: list[str]) -> None:
    log = [batch(i, value=b"[" * depth + b"]" * depth) for i, depth in enumerate(range(850, 1000))]
    write_log(tmp_path / "t-0", log)
    done = run("dump", tmp_path / "t-0", "--print-data", "--value-decoder", "json", *form)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("[[[[[") > 0


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_numbers_of_avro_that_json_has_not_are_text(tmp_path: Path, value: float) -> None:
    import io

    schema, out = tmp_path / "number.avsc", io.BytesIO()
    schema.write_text('"double"')
    fastavro.schemaless_writer(out, "double", value)
    found = typed(tmp_path, out.getvalue(), "--value-decoder", "avro", "--avro-schema", schema)
    assert found["payload"] == str(value)


@pytest.mark.parametrize(
    ("record", "options", "shown", "in_json"),
    [
        (Record(0, NOON, b"k", b"v", ((b"\xff\xfe", b"x"),)), ["--deep"], "headerKeys: [\\udcff\\udcfe]", "\\udcff"),
        (
            Record(0, NOON, b"k", b'{"t":"\\ud83d"}'),
            ["--print-data", "--value-decoder", "json"],
            'payload: {"t":"\\ud83d"}',
            "\\ud83d",
        ),
    ],
)
def test_what_is_no_text_is_escaped(
    tmp_path: Path, record: Record, options: list[str], shown: str, in_json: str
) -> None:
    write_log(tmp_path / "t-0", [encode([record], codec=Codec.NONE, base_offset=0)])
    strict = {"PYTHONIOENCODING": "utf-8:strict"}
    code, text, problems = piped("dump", tmp_path / "t-0", *options, **strict)
    assert (code, problems) == (0, "")
    assert shown in text
    code, lines, problems = piped("dump", tmp_path / "t-0", *options, "--json", **strict)
    assert (code, problems) == (0, "")
    assert in_json in lines
    assert [json.loads(line)["type"] for line in lines.splitlines()] == ["file", "batch", "record"]


def test_a_terminal_shows_control_characters_and_markup_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "[bold]here[/x]" / "t-0"
    record = Record(0, NOON, b"[red]id[/red][/]", "\x1b]0;owned\x07\x9b2J\n".encode())
    log = write_log(folder, [encode([record], codec=Codec.NONE, base_offset=0), batch(1)])
    log.write_bytes(log.read_bytes()[:-1])
    code, text = on_a_terminal("dump", folder, "--print-data")
    assert code == 6
    assert "[red]id[/red][/]" in text
    assert r"\x1b]0;owned\x07\x9b2J\n" in text
    assert "\x1b]0;owned" not in text
    assert "[bold]here[/x]" in "".join(text.split("\r\n"))
    assert "Found " in text


def test_a_batch_that_compaction_has_emptied_is_shown_without_records(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", [emptied(batch(0, 3, producer_id=4)), batch(5, 2)])
    found = rows(tmp_path / "t-0", "--deep")
    assert [(row["type"], row.get("count"), row.get("offset")) for row in found] == [
        ("batch", 0, None),
        ("batch", 2, None),
        ("record", None, 5),
        ("record", None, 6),
    ]


def test_a_transaction_index_that_is_damaged_is_a_fault(folder: Path) -> None:
    index = next(folder.glob("*.txnindex"))
    index.write_bytes(index.read_bytes()[:-1])
    done = run("dump", folder)
    assert done.exit_code == 6
    assert done.stdout.count("baseOffset: ") == len(LOG)
    assert done.stderr.startswith(f"fault: aborted transactions are not marked: {index}: The transaction index has 33")


def test_headers_and_nulls_are_shown(tmp_path: Path) -> None:
    record = Record(0, NOON, None, None, ((b"a", b"1"), (b"a", None)))
    write_log(tmp_path / "t-0", [encode([record], codec=Codec.ZSTD, base_offset=0)])
    line = run("dump", tmp_path / "t-0", "--print-data").stdout.splitlines()[-1]
    assert line.endswith("keySize: -1 valueSize: -1 sequence: -1 headerKeys: [a,a] headers: [a=1,a=None]")


def test_indexes_are_shown(folder: Path) -> None:
    found = rows(folder, "--indexes")
    assert [row["lastOffset"] for row in found if row["type"] == "transaction index"] == [25]
    assert [row["offset"] for row in found if row["type"] == "offset index"] == [25]
    only = rows(folder / "00000000000000000020.timeindex")
    assert {row["type"] for row in only} == {"time index"}
    assert only[0] == {"type": "time index", "timestamp": NOON + 2, "offset": 24}


def test_an_index_that_is_cut_short_is_refused(folder: Path) -> None:
    index = folder / "00000000000000000020.index"
    index.write_bytes(index.read_bytes()[:-1])
    done = run("dump", index)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: CorruptIndex: {index}: The offset index has 7 bytes, not a multiple of 8.")


def test_leader_epochs_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n3 17\n")
    assert [(row["epoch"], row["startOffset"]) for row in rows(path)] == [(0, 0), (3, 17)]
    path.write_text("0\n3\n0 0\n3 17\n")
    assert "it is not a checkpoint of leader epochs" in run("dump", path).stderr


@pytest.mark.parametrize("content", ["[5]", '{"g": null}', '{"g": 1e999}', "5", "{"])
def test_positions_of_groups_that_are_none_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "consumer_offsets_partition_000"
    path.write_text(content)
    done = run("dump", path)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: CorruptIndex: {path}: The c")


RECORDS = [PlainRecord(5 + i, NOON + i, 0, b"k%d" % i, None if i == 2 else b"v", [("h", b"1")]) for i in range(4)]


def records_folder(folder: Path) -> Path:
    folder.mkdir()
    data, index = bytearray(), bytearray()
    encoder = RecordsEncoder(data.extend, index.extend, 10**6)
    encoder.append(RECORDS)
    encoder.finish()
    stem = folder / "segment_partition_002_from_offset_0000000005"
    Path(f"{stem}_records").write_bytes(data)
    Path(f"{stem}_index").write_bytes(index)
    (folder / "consumer_offsets_partition_002").write_text('{"group": 7}')
    return folder


def test_the_records_format_is_dumped(tmp_path: Path) -> None:
    folder = records_folder(tmp_path / "orders")
    found = rows(folder, "--print-data", "--offset", "6..7")
    assert [(row["offset"], row["key"], row["payload"], row["headers"]) for row in found] == [
        (6, "k1", "v", [["h", "1"]]),
        (7, "k2", None, [["h", "1"]]),
    ]
    assert found[0]["position"] + found[0]["size"] == found[1]["position"]
    index = rows(folder / "segment_partition_002_from_offset_0000000005_index")
    assert (index[1]["offset"], index[1]["position"]) == (6, found[0]["position"])
    assert rows(folder / "consumer_offsets_partition_002")[0]["offset"] == 7
    segment = folder / "segment_partition_002_from_offset_0000000005_records"
    segment.write_bytes(segment.read_bytes()[:-1])
    damaged = rows(folder, exit_code=6)
    assert [row["type"] for row in damaged] == ["record"] * 3 + ["damage"]


def test_the_avro_format_is_dumped(tmp_path: Path) -> None:
    folder = tmp_path / "orders" / "partition=2"
    folder.mkdir(parents=True)
    with (folder / "orders+2-5.data").open("wb") as out:
        encoder = AvroEncoder(out.write, 10**6, "orders", 2, FormatOptions())
        encoder.append(RECORDS)
        encoder.finish()
    found = rows(tmp_path / "orders", "--print-data", "--key-regex", "k[03]")
    assert [(row["offset"], row["key"], row["payload"]) for row in found] == [(5, "k0", "v"), (8, "k3", "v")]


def test_an_archive_is_dumped_by_topic_partition_and_object(tmp_path: Path) -> None:
    storage = open_uri(tmp_path.as_uri())
    archive_of(storage, chunk(storage, 0, 30), chunk(storage, 0, 10, partition=1))
    assert len(rows(tmp_path)) == 4
    assert len(rows(tmp_path.as_uri(), "--topic", "orders", "--partition", "1")) == 1
    log = next(tmp_path.glob("topics/orders/*/partition=0/*.log"))
    assert len(rows(log)) == len(rows(log.parent)) == 3
    assert len(rows(log.with_suffix(".timeindex"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/none"], "error: {}/none: this file or folder does not exist.\n"),
        (["{}/empty"], "error: {}/empty: there is neither an archive nor a log.\n"),
        (["{}/notes.txt"], "error: {}/notes.txt is not a file of a log.\n"),
        (
            ["{}/orders-3", "--topic", "other"],
            "error: {}/orders-3: there is no topic other.\nhint: There are: orders.\n",
        ),
        (["{}/orders-3", "--partition", "9"], "error: {}/orders-3: there is no partition 9.\n"),
        (["{}/orders-3", "--offset", "x"], "error: --offset 'x' is not a range\nhint: Write A..B, A.., ..B or A.\n"),
        (["{}/orders-3", "--offset", "5..2"], "error: --offset '5..2' ends before it begins\n"),
        (["{}/orders-3", "--time", "yesterday.."], "error: 'yesterday' is not a time\n"),
        (["{}/orders-3", "--time", "5"], "error: --time '5' is not a range\n"),
        (["{}/orders-3", "--time", "9..5"], "error: --time '9..5' ends before it begins\n"),
        (["{}/orders-3", "--key-regex", "("], "error: --key-regex '(' is not a valid regular expression"),
        (["{}/orders-3", "--value-decoder", "avro"], "error: the decoder avro needs a schema\n"),
        (
            ["{}/orders-3", "--value-decoder", "avro", "--avro-schema", "{}/none"],
            "error: {}/none: No such file or directory\n",
        ),
        (
            ["{}/orders-3", "--value-decoder", "avro", "--avro-schema", "{}/notes.txt"],
            "error: {}/notes.txt: not an Avro schema: ",
        ),
        (["{}/orders-3", "--confluent"], "error: --confluent has no effect: it is for the decoder avro\n"),
        (
            ["{}/orders-3", "--value-decoder", "json", "--avro-schema", "{}/none"],
            "error: --avro-schema has no effect: it is for the decoder avro\n",
        ),
        (["ftp://host/x"], "error: StorageRefused: 'ftp://host"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, arguments: list[str], message: str) -> None:
    above = folder.parent
    (above / "empty").mkdir()
    (above / "notes.txt").write_text("notes")
    done = run("dump", *(argument.replace("{}", str(above)) for argument in arguments))
    assert done.exit_code == 2
    assert done.stderr.startswith(message.replace("{}", str(above)))


def test_a_terminal_gets_tables(folder: Path) -> None:
    code, text = on_a_terminal("dump", folder, "--deep")
    assert code == 0
    assert "baseOffset: 20" not in text
    assert "22 to 24" in text
    assert "transactional, aborted" in text
    assert "ABORT" in text


@pytest.mark.parametrize("option", ["--key-decoder", "--value-decoder"])
def test_a_decoder_means_that_data_is_printed(folder: Path, option: str) -> None:
    """Kafka's own tool does so too."""
    record = next(row for row in rows(folder, option, "string") if row["type"] == "record")
    assert "payload" in record
    assert all("payload" not in row for row in rows(folder, "--deep"))
