"""The rows of a dump: what each has, and its text as Kafka's own tool prints it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logkeep_engine.toolbox.decoders import text as decoded_text


class RowKind(StrEnum):
    FILE = "file"
    BATCH = "batch"
    RECORD = "record"
    DAMAGE = "damage"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TXN_INDEX = "transaction index"
    RECORDS_INDEX = "records index"
    PARTITION_INDEX = "partition index"
    PRODUCER = "producer"
    LEADER_EPOCH = "leader epoch"
    GROUP_POSITION = "group position"


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `fields` can be JSON and are in the order of the text."""

    kind: RowKind
    fields: Mapping[str, Any]

    def lines(self) -> list[str]:
        """Return the lines that Kafka's tool prints. Line breaks that a name or a record holds are in them."""
        if self.kind is RowKind.FILE:
            return _lines_of_file(self.fields)
        return [_TEXTS[self.kind](self.fields)]

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind.value, **self.fields}


def _lines_of_file(fields: Mapping[str, Any]) -> list[str]:
    start = [f"Log starting offset: {fields['baseOffset']}"] if "baseOffset" in fields else []
    return [f"Dumping {fields['file']}", *start]


def _text_of_batch(fields: Mapping[str, Any]) -> str:
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "timestampType":
            continue
        if name == "timestamp":
            shown[fields["timestampType"]] = value
        elif name == "deleteHorizonMs":
            shown[name] = _optional(value)
        else:
            shown[name] = value
    return _pairs(shown)


def _text_of_record(fields: Mapping[str, Any]) -> str:
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "timestamp":
            shown[fields["timestampType"]] = value
        elif name == "headerKeys":
            shown[name] = f"[{','.join(value)}]"
        elif name == "headers":
            shown[name] = f"[{','.join(f'{key}={header}' for key, header in value)}]"
        elif name == "controlType":
            shown[name] = f"{value}({fields['controlTypeId']})"
        elif name not in ("timestampType", "controlTypeId", "key", "payload", "keyProblem", "payloadProblem"):
            shown[name] = value
    for name in ("key", "payload"):
        if fields.get(name) is not None:
            problem = fields.get(f"{name}Problem")
            shown[name] = f"<{problem}; hex {fields[name]}>" if problem else decoded_text(fields[name])
    line = _pairs({name: value for name, value in shown.items() if not isinstance(value, dict)})
    for name, value in shown.items():
        if isinstance(
            value, dict
        ):  # a control record of the metadata log; Kafka's tool has a colon in some of them only
            colon = ":" if name == "LeaderChange" else ""
            line += f" {name}{colon} {json.dumps(value, separators=(',', ':'))}"
    return f"| {line}"


def _text_of_damage(fields: Mapping[str, Any]) -> str:
    size = f"{fields['size']} invalid bytes" if fields["size"] >= 0 else "invalid bytes"
    where = f" at position {fields['position']}" if fields["position"] >= 0 else ""
    return f"Found {size}{where} of {fields['file']}, offset {fields['offset']}: {fields['what']}"


def _text_of_producer(fields: Mapping[str, Any]) -> str:
    return _pairs({**fields, "currentTxnFirstOffset": _optional(fields["currentTxnFirstOffset"])})


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _pairs(fields: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()
    )


_TEXTS = dict.fromkeys(RowKind, _pairs) | {
    RowKind.BATCH: _text_of_batch,
    RowKind.RECORD: _text_of_record,
    RowKind.DAMAGE: _text_of_damage,
    RowKind.PRODUCER: _text_of_producer,
}
