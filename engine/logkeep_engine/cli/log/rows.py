"""This module prints the rows of `logkeep log dump` as they come: JSON lines, Kafka's text, or tables on a terminal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from logkeep_engine.cli.log.times import moment
from logkeep_engine.cli.output import print_json_line, print_line, stdout, table, visible

if TYPE_CHECKING:
    from logkeep_engine.toolbox.rows import Row

ROWS = 500  # of a table on a terminal, which are gathered before they are shown


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
