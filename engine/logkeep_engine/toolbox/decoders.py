"""Keys and values for the eye: text, hex, base64, JSON, Avro.

decode = decoder(DecoderName.AVRO, schema=Path("order.avsc"), confluent=True)
shown = decode(b"...")          # anything that JSON can hold; raises Undecodable
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

from logkeep_engine.errors import SpecError

_WIRE_HEADER = 5  # 0x00, then the id of the schema in four bytes

Decoder = Callable[[bytes], Any]


class DecoderName(StrEnum):
    STRING = "string"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    AVRO = "avro"


class Undecodable(ValueError):
    """Bytes that are not what the decoder is for."""


def decoder(name: DecoderName, *, schema: Path | None = None, confluent: bool = False) -> Decoder:
    """`schema`: a file with the Avro schema (.avsc). `confluent`: the bytes begin with 0x00 and a schema's id, as
    serializers with a registry write them; the id is not looked up. Raises SpecError if the schema cannot be used.
    """
    if name is DecoderName.AVRO:
        return _avro(schema, confluent)
    return _DECODERS[name]


def text(value: Any) -> str:
    """Return a decoded value on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise Undecodable("not JSON that can be shown: too many values inside one another") from None
    except ValueError as error:
        raise Undecodable(f"not JSON: {error}") from error


def _finite(text: str) -> float:
    """Python's parser also takes NaN and Infinity, and makes Infinity of 1e999."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of it")
    return number


_DECODERS: dict[DecoderName, Decoder] = {
    DecoderName.STRING: lambda data: data.decode("utf-8", "replace"),
    DecoderName.HEX: lambda data: data.hex(),
    DecoderName.BASE64: lambda data: base64.b64encode(data).decode(),
    DecoderName.JSON: _json,
}


def _avro(path: Path | None, confluent: bool) -> Decoder:
    import fastavro

    if path is None:
        raise SpecError("the decoder avro needs a schema", hint="Name its file with --avro-schema.")
    try:
        schema = fastavro.parse_schema(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}", hint="Name a file with an Avro schema.") from error
    except Exception as error:  # fastavro has errors of many kinds for what is not a schema
        raise SpecError(f"{path}: not an Avro schema: {error}") from error

    def decode(data: bytes) -> Any:
        if confluent and (len(data) < _WIRE_HEADER or data[0] != 0):
            raise Undecodable("it does not begin with 0x00 and the id of a schema")
        stream = io.BytesIO(data[_WIRE_HEADER:] if confluent else data)
        try:
            found = _plain(fastavro.schemaless_reader(stream, schema, None))
        except Exception as error:  # whatever bytes of another schema lead to
            raise Undecodable(f"not of this Avro schema: {type(error).__name__} {error}".rstrip()) from error
        if stream.read(1):
            raise Undecodable(f"not of this Avro schema: bytes are left over after {stream.tell() - 1}")
        return found

    return decode


def _plain(value: Any) -> Any:
    """Return the value in types that JSON can hold."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, (Decimal, UUID)) else value
