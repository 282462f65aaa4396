"""The command `logkeep log dump`: prints batches, records and indexes as Kafka's own tool does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.log.options import Chosen, FormOfLines, Sources
from logkeep_engine.cli.log.times import moment, offset_range, time_range
from logkeep_engine.cli.options import Debug, Server, pattern, refuse, spread
from logkeep_engine.cli.output import print_json_line, print_line, say, stdout, table, visible
from logkeep_engine.contract.names import ExitCode

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.state import ArchiveState
    from logkeep_engine.log.transactions import Spans
    from logkeep_engine.toolbox.dump import Options
    from logkeep_engine.toolbox.rows import Row
    from logkeep_engine.toolbox.segment import ToolboxSegment
    from logkeep_engine.toolbox.source import LogSource


ROWS = 500  # of a table on a terminal, which are gathered before they are shown


class DecoderChoice(StrEnum):
    STRING = "string"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True)
class Decoding:
    """The options that say how keys and values are shown."""

    key_decoder: Annotated[DecoderChoice | None, typer.Option(help="How keys are shown; string by default.")] = None
    value_decoder: Annotated[DecoderChoice | None, typer.Option(help="How values are shown; string by default.")] = None
    avro_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the schema for the decoder avro.")
    ] = None
    confluent: Annotated[
        bool, typer.Option("--confluent", help="Avro data begins with 0x00 and the id of its schema in a registry.")
    ] = False

    @property
    def given(self) -> bool:
        """Whether a decoder was named."""
        return self.key_decoder is not None or self.value_decoder is not None

    def refuse_without_avro(self) -> None:
        """Raises SpecError for an option of the decoder avro if neither is that one."""
        if DecoderChoice.AVRO not in (self.key_decoder, self.value_decoder):
            refuse(
                {"--avro-schema": self.avro_schema, "--confluent": self.confluent},
                "has no effect: it is for the decoder avro",
                hint="Add --key-decoder avro or --value-decoder avro, or leave it out.",
            )


@dataclass(frozen=True)
class DumpFilter:
    """The options that say which batches and records are shown."""

    offset: Annotated[
        str | None, typer.Option(metavar="A..B", help="Offsets A..B, A.., ..B or A; both are included.")
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            metavar="FROM..TO", help="Times FROM..TO, ISO 8601 (UTC unless it says otherwise) or ms; both included."
        ),
    ] = None
    key_regex: Annotated[str | None, typer.Option(help="Only records whose key has this regular expression.")] = None


@spread
def dump(
    sources: Sources,
    *,
    chosen: Chosen,
    deep: Annotated[bool, typer.Option("--deep", help="Also the records of every batch.")] = False,
    print_data: Annotated[
        bool, typer.Option("--print-data", help="Also keys, values and headers; implied by a decoder.")
    ] = False,
    indexes: Annotated[bool, typer.Option("--indexes", help="Also the indexes next to each log.")] = False,
    decoding: Decoding,
    wanted: DumpFilter,
    server: Server,
    form: FormOfLines,
    debug: Debug = False,
) -> None:
    """Print batches, records and indexes, as Kafka's own tool does. What is damaged is passed over and said: exit code
    6.
    """
    with errors(debug):
        options = _options(wanted, decoding, deep=deep, data=print_data or decoding.given)
        shown = Rows(form.json)
        for where in sources:
            for row in _dump(chosen.source(where, server), options, shown, indexes=indexes):
                shown.add(row)
        shown.end()
        if shown.undecodable:
            say(f"warning: {shown.undecodable} keys or values could not be decoded and are shown in hex")
        if shown.damages:
            raise typer.Exit(int(ExitCode.DIFFERS))


def _options(wanted: DumpFilter, decoding: Decoding, *, deep: bool, data: bool) -> Options:
    from logkeep_engine.toolbox.decoders import Decoder, DecoderName, decoder
    from logkeep_engine.toolbox.dump import Options

    first, last = offset_range(wanted.offset)
    begin, end = time_range(wanted.time)
    decoding.refuse_without_avro()
    key = None if wanted.key_regex is None else pattern("--key-regex", wanted.key_regex)

    def decoder_for(name: DecoderChoice | None) -> Decoder:
        return decoder(DecoderName(name or "string"), schema=decoding.avro_schema, confluent=decoding.confluent)

    return Options(
        deep=deep,
        data=data,
        first_offset=first,
        last_offset=last,
        from_time=begin,
        to_time=end,
        key=key,
        key_decoder=decoder_for(decoding.key_decoder),
        value_decoder=decoder_for(decoding.value_decoder),
    )


def _dump(source: LogSource, options: Options, shown: Rows, *, indexes: bool) -> Iterator[Row]:
    from logkeep_engine.archive import names
    from logkeep_engine.toolbox.dump import dump_segment, file_row
    from logkeep_engine.toolbox.dump_files import dump_file
    from logkeep_engine.toolbox.files import display
    from logkeep_engine.toolbox.rows import Row as DumpRow
    from logkeep_engine.toolbox.rows import RowKind

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


def _aborted(segments: Sequence[ToolboxSegment], state: ArchiveState | None, shown: Rows) -> Spans | None:
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


class Rows:
    """Shows rows, and counts what is damaged in them and what could not be decoded."""

    def __init__(self, in_json: bool) -> None:
        self._json = in_json
        self._console = stdout() if not self._json and sys.stdout.isatty() else None
        self._gathered: list[Row] = []
        self.damages = 0
        self.undecodable = 0

    def add(self, row: Row) -> None:
        from logkeep_engine.toolbox.rows import RowKind

        if row.kind is RowKind.DAMAGE or "problem" in row.fields:
            self.damages += 1
        self.undecodable += ("keyProblem" in row.fields) + ("payloadProblem" in row.fields)
        if self._json:
            print_json_line(row.to_json())
        elif self._console is None:
            for line in row.lines():
                print_line(line)
        elif row.kind in (RowKind.FILE, RowKind.DAMAGE):
            self.end()
            for line in row.lines():
                self._console.print(visible(line), style="bold" if row.kind is RowKind.FILE else "red")
        else:
            if self._gathered and (len(self._gathered) == ROWS or self._gathered[0].kind is not row.kind):
                self.end()
            self._gathered.append(row)

    def end(self) -> None:
        """Print the rows that were gathered."""
        if self._console is None or not self._gathered:
            return
        cells = [_cells(row) for row in self._gathered]
        columns = list(dict.fromkeys(name for row in cells for name in row))
        shown = table(*columns)
        for row in cells:
            shown.add_row(*(row.get(name, "") for name in columns))
        self._console.print(shown)
        self._gathered = []


def _cells(row: Row) -> dict[str, str]:
    """Return the cells of a row for a terminal. Fields that do not fit next to each other are put together."""
    from logkeep_engine.toolbox.rows import RowKind

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
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
