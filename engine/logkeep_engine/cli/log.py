"""The commands `logkeep log …`: looking into logs and repairing them, in archives and in a broker's log folders.

    logkeep log dump s3://bucket/prefix --topic orders --deep
    logkeep log index check /var/lib/kafka/data/orders-0
    logkeep log diff s3://bucket/prefix --bootstrap-server localhost:9092

`docs/cli.md` is the reference. Imports that take long happen inside the commands.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.common import (
    Debug,
    Endpoint,
    Mechanism,
    Output,
    OutputFormat,
    Region,
    SecurityProtocol,
    cluster_connection,
    errors,
    human_bytes,
    json_text,
    print_json,
    refuse,
    say,
    stdout,
    table,
    visible,
)
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.model import ArchiveState
    from logkeep_engine.log.transactions import Spans
    from logkeep_engine.toolbox.diff import Difference, Side
    from logkeep_engine.toolbox.dump import Options, Row
    from logkeep_engine.toolbox.indexes import Index
    from logkeep_engine.toolbox.offsets import StateRecord
    from logkeep_engine.toolbox.source import Segment, Source
    from logkeep_engine.toolbox.timestamps import Place, Times

EXIT_CODES = (
    "Exit codes: 0 done, nothing found; 1 something is damaged, wrong, different, or would be changed; 2 refused: the "
    "path or the options must change first; 130 interrupted."
)
ROWS = 500  # of a table on a terminal, which are gathered before they are shown
MAX_DIFFERENCES = 20
_SIZES = re.compile(r"(-?[0-9]+)?\.\.(-?[0-9]+)?|(-?[0-9]+)")

log_app = typer.Typer(
    name="log",
    help="Look into logs and repair them: archives, a broker's log folders, single files.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)
index_app = typer.Typer(
    name="index",
    help="Check indexes, and make them again.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)
log_app.add_typer(index_app)


class DecoderChoice(StrEnum):
    STRING = "string"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    AVRO = "avro"


class BucketChoice(StrEnum):
    NONE = "none"
    HOUR = "hour"
    DAY = "day"


class StateChoice(StrEnum):
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


class Ignored(StrEnum):
    HEADERS = "headers"
    TIMESTAMP = "timestamp"


Where = Annotated[
    str,
    typer.Argument(
        help="An archive's URI, a broker's log folder, or a file or folder of these.",
        metavar="SOURCE",
        show_default=False,
    ),
]
Sources = Annotated[
    list[str],
    typer.Argument(
        help="Archives' URIs, a broker's log folders, or files of these.", metavar="SOURCE", show_default=False
    ),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic; may be given again.", show_default=False)
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", help="Only this partition; may be given again.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="The same as --output json.")]
Lines = Annotated[Output, typer.Option("--output", "-o", help="json prints JSON on stdout, a document a line.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, it is only said what would be done.")]
Interval = Annotated[int, typer.Option(min=0, help="The broker's log.index.interval.bytes.")]


@log_app.command(epilog=EXIT_CODES)
def dump(
    sources: Sources,
    topic: Topics = None,
    partition: Partitions = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also the records of every batch.")] = False,
    print_data: Annotated[
        bool, typer.Option("--print-data", help="Also keys, values and headers; a decoder means it too.")
    ] = False,
    indexes: Annotated[bool, typer.Option("--indexes", help="Also the indexes beside each log.")] = False,
    key_decoder: Annotated[DecoderChoice | None, typer.Option(help="How keys are shown; string by default.")] = None,
    value_decoder: Annotated[
        DecoderChoice | None, typer.Option(help="How values are shown; string by default.")
    ] = None,
    avro_schema: Annotated[Path | None, typer.Option(help="File with the schema for the decoder avro.")] = None,
    confluent: Annotated[
        bool, typer.Option("--confluent", help="Avro data begins with 0x00 and the id of its schema in a registry.")
    ] = False,
    offset: Annotated[str | None, typer.Option(help="Offsets A..B, A.., ..B or A; both are included.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Times FROM..TO, ISO 8601 (UTC unless it says otherwise) or ms; both included.")
    ] = None,
    key_regex: Annotated[str | None, typer.Option(help="Only records whose key has this regular expression.")] = None,
    endpoint: Endpoint = None,
    region: Region = None,
    output: Lines = Output.TEXT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print batches, records and indexes, as Kafka's own tool does. What is damaged is passed over and said: exit code
    1.
    """
    with errors(debug):
        from logkeep_engine.toolbox.decoders import DecoderName, decoder
        from logkeep_engine.toolbox.dump import Options

        first, last = _offsets(offset)
        begin, end = _times(time)
        if DecoderChoice.AVRO not in (key_decoder, value_decoder):
            refuse(
                {"--avro-schema": avro_schema, "--confluent": confluent},
                "has no effect: it is for the decoder avro",
                hint="Add --key-decoder avro or --value-decoder avro, or leave it out.",
            )
        options = Options(
            deep=deep,
            data=print_data or key_decoder is not None or value_decoder is not None,
            first_offset=first,
            last_offset=last,
            from_time=begin,
            to_time=end,
            key=_pattern(key_regex),
            key_decoder=decoder(DecoderName(key_decoder or "string"), schema=avro_schema, confluent=confluent),
            value_decoder=decoder(DecoderName(value_decoder or "string"), schema=avro_schema, confluent=confluent),
        )
        shown = _Rows(Output.JSON if as_json else output)
        for where in sources:
            source = _open(where, topic, partition, endpoint, region)
            for row in _dump(source, options, shown, indexes=indexes):
                shown.add(row)
        shown.end()
        if shown.undecodable:
            say(f"warning: {shown.undecodable} keys or values could not be decoded and are shown in hex")
        if shown.damages:
            raise typer.Exit(int(ExitCode.FAILED))


def _dump(source: Source, options: Options, shown: _Rows, *, indexes: bool) -> Iterator[Row]:
    from logkeep_engine.archive import names
    from logkeep_engine.toolbox.dump import Row as DumpRow
    from logkeep_engine.toolbox.dump import RowKind, dump_file, dump_segment, file_row
    from logkeep_engine.toolbox.source import display

    named = source.single
    if named and not any(segment.path == named for segment in source.segments):
        base = source.segments[0].base_offset if source.segments else _base_offset(named)
        yield DumpRow(RowKind.FILE, {"file": display(source.storage, named)})
        yield from dump_file(source.storage, named, base)
        return
    for segments in source.partitions(checkpoints=True).values():
        aborted = _aborted(segments, source.state, shown)
        for segment in segments:
            yield file_row(segment)
            yield from dump_segment(segment, options, aborted)
            suffixes: Sequence[str] = (names.INDEX, names.TIMEINDEX, names.TXNINDEX)
            for suffix in suffixes if segment.has_batches else (names.RECORDS_INDEX,):
                if indexes and segment.beside(suffix) is not None:
                    path = segment.stem + suffix
                    yield DumpRow(RowKind.FILE, {"file": display(source.storage, path)})
                    yield from dump_file(source.storage, path, segment.base_offset)


def _aborted(segments: Sequence[Segment], state: ArchiveState | None, shown: _Rows) -> Spans | None:
    from logkeep_engine.errors import CorruptIndex
    from logkeep_engine.toolbox.transactions import outcomes

    try:
        return outcomes(segments, state).aborted
    except CorruptIndex as error:
        shown.damages += 1
        say(f"fault: aborted transactions are not marked: {error.message}")
        return None


def _base_offset(path: str) -> int:
    digits = path.rpartition("/")[2].partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


class _Rows:
    """Rows of a dump as they come: JSON lines, Kafka's text, or tables on a terminal."""

    def __init__(self, output: Output) -> None:
        self._json = output is Output.JSON
        self._console = stdout() if not self._json and sys.stdout.isatty() else None
        self._gathered: list[Row] = []
        self.damages = 0
        self.undecodable = 0

    def add(self, row: Row) -> None:
        from logkeep_engine.toolbox.dump import RowKind

        if row.kind is RowKind.DAMAGE or "problem" in row.fields:
            self.damages += 1
        self.undecodable += ("keyProblem" in row.fields) + ("payloadProblem" in row.fields)
        if self._json:
            print(json_text(row.to_json()))
        elif self._console is None:
            print(_printable(row.text()))
        elif row.kind in (RowKind.FILE, RowKind.DAMAGE):
            self.end()
            lines = "\n".join(map(visible, _printable(row.text()).split("\n")))
            self._console.print(lines, style="bold" if row.kind is RowKind.FILE else "red")
        else:
            if self._gathered and (len(self._gathered) == ROWS or self._gathered[0].kind is not row.kind):
                self.end()
            self._gathered.append(row)

    def end(self) -> None:
        """Show what was gathered."""
        if self._console is None or not self._gathered:
            return
        cells = [_cells(row) for row in self._gathered]
        columns = list(dict.fromkeys(name for row in cells for name in row))
        shown = table(*columns)
        for row in cells:
            shown.add_row(*(row.get(name, "") for name in columns))
        self._console.print(shown)
        self._gathered = []


def _printable(text: str) -> str:
    """Bytes that are no text (of a header key, say) as \\udcff: printing them raw is an error, or garbage."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cells(row: Row) -> dict[str, str]:
    """A row of a dump for a terminal: what does not fit beside each other in a line of a log is put together."""
    from logkeep_engine.toolbox.dump import RowKind

    fields = row.fields
    if row.kind is RowKind.RECORD:
        left_out = ("timestampType", "headerKeys", "controlTypeId", "keyProblem", "payloadProblem")
        return {name: _cell(name, value) for name, value in fields.items() if name not in left_out}
    if row.kind is not RowKind.BATCH:
        return {name: _cell(name, value) for name, value in fields.items()}
    flags = {"isTransactional": "transactional", "isControl": "control", "aborted": "aborted"}
    return {
        "offsets": f"{fields['baseOffset']} to {fields['lastOffset']}" if "count" in fields else str(fields["offset"]),
        "count": str(fields.get("count", "")),
        "position": str(fields["position"]),
        "size": str(fields["size"]),
        "codec": fields["compresscodec"],
        "latest": moment(fields["timestamp"]),
        "producer": f"{fields['producerId']}/{fields['producerEpoch']}" if fields.get("producerId", -1) >= 0 else "-",
        "sequence": str(fields.get("baseSequence", "-")),
        "epoch": str(fields.get("partitionLeaderEpoch", "-")),
        "flags": ", ".join(word for name, word in flags.items() if fields.get(name)) or "-",
        "CRC": "holds" if fields["isvalid"] else "WRONG",
    }


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("timestamp", "lastTimestamp") and isinstance(value, int):
        return moment(value)
    return _printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


# ---- indexes


@index_app.command("check", epilog=EXIT_CODES)
def index_check(
    sources: Sources,
    topic: Topics = None,
    partition: Partitions = None,
    endpoint: Endpoint = None,
    region: Region = None,
    output: OutputFormat = Output.TEXT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Hold indexes against their logs, as a broker checks them when it starts, and every entry. Exit code 1 if faults
    were found.
    """
    with errors(debug):
        in_json = as_json or output is Output.JSON
        documents: list[dict[str, Any]] = []
        count = faulty = 0
        for index in _survey(sources, topic, partition, endpoint, region, None):
            count += 1
            faulty += bool(index.faults)
            if in_json:
                documents.append(_index_json(index))
            else:
                for fault in index.faults:
                    print(f"{index.name}: {fault}", flush=True)
        if in_json:
            print_json(documents)
        else:
            print(f"{count} indexes, {faulty} with faults")
        if faulty:
            raise typer.Exit(int(ExitCode.FAILED))


@index_app.command("rebuild", epilog=EXIT_CODES)
def index_rebuild(
    sources: Sources,
    topic: Topics = None,
    partition: Partitions = None,
    yes: Yes = False,
    interval_bytes: Interval = 4096,
    endpoint: Endpoint = None,
    region: Region = None,
    output: OutputFormat = Output.TEXT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the indexes again that are not what their log says. In a log folder the old ones are kept as .bak, .bak.2
    and so on; in an archive an object gets back the bytes that the catalog knows. Exit code 1 if one could not be made,
    or, without --yes, if one would be.
    """
    with errors(debug):
        from logkeep_engine.toolbox.indexes import rewrite

        done: list[dict[str, Any]] = []
        left = False
        for index in _survey(sources, topic, partition, endpoint, region, interval_bytes):
            if not index.stale:
                left = left or bool(index.faults)
                if index.faults:
                    done.append(_index_json(index) | {"done": False})
                continue
            kept = rewrite(index) if yes else ""
            done.append(_index_json(index) | {"done": yes} | ({"kept": kept} if kept else {}))
            left = left or not yes
        if as_json or output is Output.JSON:
            print_json(done)
        else:
            for item in done:
                _print_rebuilt(item)
            if not done:
                print("nothing to do")
        if left:
            raise typer.Exit(int(ExitCode.FAILED))


def _print_rebuilt(item: Mapping[str, Any]) -> None:
    why = "; ".join(item["faults"]) or item["state"]
    if item["done"]:
        kept = f", the old one is {item['kept']}" if "kept" in item else ""
        print(f"{item['index']}: written anew ({why}){kept}")
    elif item["canBeMade"]:
        print(f"{item['index']}: would be written anew ({why})")
    else:
        print(f"{item['index']}: cannot be made ({why})")


def _survey(
    sources: Sequence[str],
    topic: list[str] | None,
    partition: list[int] | None,
    endpoint: str | None,
    region: str | None,
    interval: int | None,
) -> Iterator[Index]:
    from logkeep_engine.log.segment import INDEX_INTERVAL_BYTES
    from logkeep_engine.toolbox.indexes import survey

    for where in sources:
        source = _open(where, topic, partition, endpoint, region)
        yield from survey(source, interval_bytes=INDEX_INTERVAL_BYTES if interval is None else interval)


def _index_json(index: Index) -> dict[str, Any]:
    return {
        "index": index.name,
        "topic": index.topic,
        "partition": index.partition,
        "state": index.state.value,
        "canBeMade": index.made is not None,
        "faults": list(index.faults),
    }


# ---- recovery


@log_app.command("recover", epilog=EXIT_CODES)
def recover_log(
    source: Where,
    yes: Yes = False,
    interval_bytes: Interval = 4096,
    output: OutputFormat = Output.TEXT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Cut a log after its last valid batch, as a broker does after a crash, and make its indexes again. What is cut is
    kept as .orig. Stop the broker first. Exit code 1 if something would be cut and --yes is not given.
    """
    with errors(debug):
        from logkeep_engine.toolbox.recover import carry_out, plan_recovery

        plans = list(plan_recovery(_open(source, None, None, None, None)))
        kept = carry_out(plans, interval_bytes=interval_bytes) if yes else {}
        documents = [
            {
                "segment": plan.segment.name,
                "position": plan.at,
                "validBytes": plan.valid_bytes,
                "cutBytes": plan.cut_bytes,
                "nextOffset": plan.next_offset,
                "dropped": plan.dropped,
                "lostRecords": plan.lost_records,
                "reason": plan.reason,
                "kept": [str(path) for path in kept.get(plan.segment.name, ())],
            }
            for plan in plans
        ]
        if as_json or output is Output.JSON:
            print_json(documents)
        else:
            for plan, document in zip(plans, documents, strict=True):
                _print_plan(document, plan.whole, yes)
        if not yes and not all(plan.whole for plan in plans):
            raise typer.Exit(int(ExitCode.FAILED))


def _print_plan(plan: Mapping[str, Any], whole: bool, done: bool) -> None:
    name = plan["segment"]
    if whole:
        print(f"{name}: whole, {plan['validBytes']} bytes, next offset {plan['nextOffset']}")
        return
    kept = f"; kept: {', '.join(plan['kept'])}" if done and plan["kept"] else ""
    if not any((plan["cutBytes"], plan["dropped"], plan["validBytes"])):
        print(f"{name}: {'taken away' if done else 'would be taken away'}: {plan['reason']}{kept}")
        return
    if not plan["cutBytes"] and not plan["dropped"]:
        made = "its indexes were made" if done else "its indexes would be made"
        size = f"{plan['validBytes']} bytes"
        print(f"{name}: whole, {size}, next offset {plan['nextOffset']}; {made}: {plan['reason']}{kept}")
        return
    size = f"{plan['cutBytes']} bytes ({human_bytes(plan['cutBytes'])})"
    if plan["dropped"]:
        print(f"{name}: {'dropped' if done else 'would be dropped'}, {size}: {plan['reason']}{kept}")
        return
    verb = "cut" if done else "would be cut"
    print(
        f"{name}: {verb} at position {plan['position']}, {size} go, the next offset is {plan['nextOffset']}: "
        f"{plan['reason']}{kept}"
    )


# ---- what the coordinators keep


@log_app.command(epilog=EXIT_CODES)
def offsets(
    source: Where,
    history: Annotated[bool, typer.Option("--history", help="Every record, not only what is in force.")] = False,
    kind: Annotated[
        StateChoice | None,
        typer.Option("--as", help="Only one of the topics; also what a log is whose folder does not name its topic."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Only this consumer group, or transactional id.")] = None,
    endpoint: Endpoint = None,
    region: Region = None,
    output: Lines = Output.TEXT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Decode committed offsets and groups (__consumer_offsets) and transactions (__transaction_state)."""
    with errors(debug):
        from logkeep_engine.toolbox.offsets import StateTopic
        from logkeep_engine.toolbox.state import Entry, last_state, open_state
        from logkeep_engine.toolbox.state import history as all_records

        chosen = None
        if kind is not None:
            chosen = StateTopic.OFFSETS if kind is StateChoice.OFFSETS else StateTopic.TRANSACTIONS
        problems: list[Entry] = []
        in_json = as_json or output is Output.JSON
        kept: list[StateRecord] = []
        for topic, found in open_state(source, chosen, endpoint=endpoint, region=region):
            if history:
                for entry in all_records(found, topic):
                    if entry.record is None:
                        problems.append(entry)
                    elif group is None or entry.record.owner == group:
                        print(json_text(entry.to_json()) if in_json else _history_line(entry))
            else:
                state = last_state(all_records(found, topic), problems)
                kept += [record for record in state if group is None or record.owner == group]
        if not history:
            if in_json:
                print_json([record.to_json() for record in kept])
            else:
                _print_state(kept)
        for entry in problems:
            say(f"fault: {entry.topic}-{entry.partition} offset {entry.offset}: {entry.problem}")
        if problems:
            raise typer.Exit(int(ExitCode.FAILED))


def _history_line(entry: Any) -> str:
    record: StateRecord = entry.record
    value = "<DELETE>" if record.value is None else json.dumps(record.value, ensure_ascii=False)
    when = moment(entry.timestamp) if entry.timestamp is not None else "-"
    fate = " aborted" if entry.aborted else " undecided" if entry.undecided else ""
    key = json.dumps(record.key, ensure_ascii=False)
    line = f"{entry.topic}-{entry.partition} offset: {entry.offset} {when}{fate} {record.kind} {key} {value}"
    return visible(line) if sys.stdout.isatty() else line


def _print_state(records: Sequence[StateRecord]) -> None:
    out = stdout()
    commits = sorted(
        (record.commit for record in records if record.commit is not None),
        key=lambda item: (item.group, item.topic, item.partition),
    )
    if commits:
        shown = table("consumer group", "topic", "partition", "offset", "leader epoch", "committed", "metadata")
        for commit in commits:
            epoch = "-" if commit.leader_epoch is None else str(commit.leader_epoch)
            when = "-" if commit.commit_timestamp is None else moment(commit.commit_timestamp)
            place = (commit.group, commit.topic, str(commit.partition), str(commit.offset))
            shown.add_row(*place, epoch, when, commit.metadata)
        out.print(shown)
    transactions = [record for record in records if record.kind == "TransactionLog" and record.value is not None]
    if transactions:
        shown = table("transactional id", "producer", "epoch", "state", "updated", "partitions")
        for record in transactions:
            value = record.value or {}
            parts = [
                f"{item['topic']}-{number}"
                for item in value["transactionPartitions"] or ()
                for number in item["partitionIds"]
            ]
            updated = moment(value["transactionLastUpdateTimestampMs"])
            producer, epoch = str(value["producerId"]), str(value["producerEpoch"])
            shown.add_row(record.owner, producer, epoch, value["state"], updated, " ".join(parts) or "-")
        out.print(shown)
    others = [record for record in records if record.commit is None and record.kind != "TransactionLog"]
    if others:
        shown = table("group", "record", "key", "value")
        for record in others:
            rest = {name: item for name, item in record.key.items() if name not in ("group", "groupId")}
            shown.add_row(
                record.owner, record.kind, *(json.dumps(item, ensure_ascii=False) for item in (rest, record.value))
            )
        out.print(shown)
    if not records:
        print("nothing is kept")


# ---- times


@log_app.command("timestamps", epilog=EXIT_CODES)
def show_timestamps(
    source: Where,
    topic: Topics = None,
    partition: Partitions = None,
    at: Annotated[
        str | None, typer.Option(help="Where does this time lie, ISO 8601 (UTC unless it says otherwise) or ms?")
    ] = None,
    bucket: Annotated[BucketChoice, typer.Option(help="The first offset of every hour or day.")] = BucketChoice.NONE,
    segments: Annotated[bool, typer.Option("--segments", help="Segment by segment.")] = False,
    endpoint: Endpoint = None,
    region: Region = None,
    output: OutputFormat = Output.TEXT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """From when to when records are, how well their times are ordered, and where a moment lies."""
    with errors(debug):
        from logkeep_engine.toolbox.timestamps import Bucket, places, timestamps

        if at is not None:
            refuse(
                {"--bucket": bucket is not BucketChoice.NONE, "--segments": segments},
                "has no effect with --at, which answers for each partition",
            )
        opened = _in_place(_open(source, topic, partition, endpoint, region))
        in_json = as_json or output is Output.JSON
        if at is not None:
            found = list(places(opened, parse_time(at)))
            if in_json:
                print_json([place.to_json() for place in found])
            else:
                _print_places(found)
            _end_with([damage for place in found for damage in place.damage])
            return
        read = list(timestamps(opened, bucket=Bucket(bucket), per_segment=segments))
        if in_json:
            print_json([times.to_json() for times in read])
        else:
            _print_times(read, segments=segments)
        _end_with([damage for times in read for damage in times.damage])


def _end_with(damages: Sequence[str]) -> None:
    for damage in damages:
        say(f"fault: {damage}")
    if damages:
        raise typer.Exit(int(ExitCode.FAILED))


def _print_places(found: Sequence[Place]) -> None:
    where = _columns_of_logs(found)
    shown = table(*where, "offset", "time", "first", "last", "verdict")
    for place in found:
        when = [_time(item) for item in (place.timestamp, place.first, place.last)]
        offset = "-" if place.offset is None else str(place.offset)
        shown.add_row(*_log(place, where), offset, *when, place.verdict)
    stdout().print(shown)


def _columns_of_logs(found: Sequence[Times | Place]) -> Sequence[str]:
    """How a log is named: by its folder too, where a partition lies in several, and by the topic's id, where a topic
    was deleted and made again.
    """
    logs = {(item.topic, item.topic_id, item.partition, item.folder) for item in found}
    folders = len({log[:3] for log in logs}) < len(logs)
    topics = {log[:2] for log in logs}
    again = len({topic for topic, _ in topics}) < len(topics)
    return (*(["folder"] if folders else []), "topic", *(["topic id"] if again else []), "partition")


def _log(item: Times | Place, columns: Sequence[str]) -> list[str]:
    return [str(getattr(item, column.replace(" ", "_"))) or "-" for column in columns]


def _print_times(read: Sequence[Times], *, segments: bool) -> None:
    where = _columns_of_logs(read)
    columns = ("records", "offsets", "first", "last", "types", "without time", "out of order", "in the future")
    shown = table(*(("segment",) if segments else where), *columns)
    for times in read:
        place = (times.segment,) if segments else _log(times, where)
        offsets = "-" if times.first_offset is None else f"{times.first_offset} to {times.last_offset}"
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(times.types.items())) or "-"
        counts = map(str, (times.without, times.out_of_order, times.future))
        shown.add_row(*place, str(times.records), offsets, _time(times.first), _time(times.last), kinds, *counts)
    stdout().print(shown)
    if any(times.buckets for times in read):
        shown = table(*where, "from", "offset")
        for times in read:
            for start, offset in sorted(times.buckets.items()):
                shown.add_row(*_log(times, where), moment(start), str(offset))
        stdout().print(shown)


# ---- comparison


@log_app.command(epilog=EXIT_CODES)
def diff(
    a: Annotated[str, typer.Argument(help="An archive, or a broker's log folders.", metavar="A", show_default=False)],
    b: Annotated[str | None, typer.Argument(help="The other one.", metavar="[B]", show_default=False)] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option(help="Compare with the live topics of this cluster, host:port[,host:port] (not B).")
    ] = None,
    security_protocol: SecurityProtocol = None,
    sasl_mechanism: Mechanism = None,
    topic: Topics = None,
    partition: Partitions = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="a=b: topic a of A is topic b on the other side.", show_default=False)
    ] = None,
    offsets: Annotated[bool, typer.Option("--offsets", help="Offsets must be equal too.")] = False,
    ignore: Annotated[
        list[Ignored] | None, typer.Option(help="Not compared; may be given again.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Differences that are printed; all are counted.")] = MAX_DIFFERENCES,
    endpoint: Endpoint = None,
    region: Region = None,
    output: OutputFormat = Output.TEXT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the committed records of two archives, or of an archive and live topics. Exit code 1 if they differ."""
    with errors(debug), ExitStack() as stack:
        from logkeep_engine.toolbox.diff import ArchiveSide, Comparison, LiveSide, Rules

        if (b is None) == (bootstrap_server is None):
            raise SpecError("one of B and --bootstrap-server must be given", hint="A is compared with exactly one.")
        if b is not None:
            refuse(
                {"--security-protocol": security_protocol, "--sasl-mechanism": sasl_mechanism},
                "has no effect: it is for --bootstrap-server",
            )
        renames = _renames(rename)
        left = ArchiveSide(_in_place(_open(a, topic, partition, endpoint, region)))
        for name in sorted(renames.keys() - left.topics):
            what = f"--rename {name}={renames[name]} has no effect: {a} has no topic {name}"
            raise SpecError(what, hint="Leave it out.")
        names = {renames.get(name, name) for name in left.topics}
        right: Side
        if b is not None:
            wanted = [renames.get(name, name) for name in topic] if topic else None
            right = other = ArchiveSide(_in_place(_open(b, wanted, partition, endpoint, region)))
            names |= other.topics
        else:
            connection = cluster_connection(
                "--bootstrap-server", bootstrap_server or "", security_protocol, sasl_mechanism
            )
            right = stack.enter_context(LiveSide(connection, sorted(names), partition or ()))
        if not names:
            raise SpecError("there is no topic to compare", hint="Name an archive or a log folder that has one.")
        rules = Rules(offsets=offsets, ignore=frozenset(item.value for item in ignore or ()), rename=renames)
        comparison = Comparison(left, right, rules)
        first: list[Difference] = []
        for difference in comparison:
            if len(first) < limit:
                first.append(difference)
                if not as_json and output is Output.TEXT:
                    print(difference)
        counts = comparison.counts
        if as_json or output is Output.JSON:
            print_json({"same": counts.same, **counts.to_json(), "differences": [item.to_json() for item in first]})
        else:
            found = (
                counts.different + counts.only_a + counts.only_b + counts.partitions_only_a + counts.partitions_only_b
            )
            if found > len(first):
                print(f"and {found - len(first)} more")
            print(
                f"{'same' if counts.same else 'different'}: {counts.partitions} partitions compared, "
                f"{counts.equal} records equal, {counts.different} different, {counts.only_a} only in A, "
                f"{counts.only_b} only in B; partitions only in A {counts.partitions_only_a}, "
                f"only in B {counts.partitions_only_b}"
            )
        if not counts.same:
            raise typer.Exit(int(ExitCode.FAILED))


def _renames(pairs: Sequence[str] | None) -> dict[str, str]:
    renames: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, other = pair.partition("=")
        if not equals or not name or not other or name in renames:
            raise SpecError(f"--rename {pair!r}: two names and = between them are wanted, each topic once")
        renames[name] = other
    if len(set(renames.values())) < len(renames):
        raise SpecError("--rename: two topics of A have the same name on the other side")
    return renames


# ---- options


def _open(
    where: str, topic: list[str] | None, partition: list[int] | None, endpoint: str | None, region: str | None
) -> Source:
    from logkeep_engine.toolbox.source import Selection, open_source

    selection = Selection(tuple(topic or ()), tuple(partition or ()))
    return open_source(where, selection, endpoint=endpoint, region=region)


def _in_place(source: Source) -> Source:
    """Without folders that a broker has put aside, which is said."""
    for folder in source.moved_folders:
        say(f"warning: {folder} is left out: the broker has put it aside")
    return source.in_place()


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    match = _SIZES.fullmatch(text.strip())
    if match is None or text.strip() == "..":
        raise SpecError(f"--offset {text!r} is no range", hint="Write A..B, A.., ..B or A.")
    if match[3] is not None:
        return int(match[3]), int(match[3])
    first, last = (int(part) if part else None for part in match.groups()[:2])
    if first is not None and last is not None and last < first:
        raise SpecError(f"--offset {text!r} ends before it begins")
    return first, last


def _times(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    begin, dots, end = text.partition("..")
    if not dots or not (begin or end):
        raise SpecError(f"--time {text!r} is no range", hint="Write FROM..TO, FROM.. or ..TO.")
    first, last = (parse_time(part) if part else None for part in (begin, end))
    if first is not None and last is not None and last < first:
        raise SpecError(f"--time {text!r} ends before it begins")
    return first, last


def parse_time(text: str) -> int:
    """ms since the epoch of a time in ISO 8601 (UTC unless it says otherwise), or of ms as they are."""
    text = text.strip()
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise SpecError(f"{text!r} is no time", hint="Write 2026-11-17T14:05:00Z, or ms since the epoch.") from error
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def moment(timestamp: int) -> str:
    """A time (ms) in ISO 8601, UTC."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(timestamp)


def _time(timestamp: int | None) -> str:
    return "-" if timestamp is None else moment(timestamp)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise SpecError(f"--key-regex {text!r} is no regular expression: {error}") from error
