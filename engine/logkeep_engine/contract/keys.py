"""The keys that a user wants to be erased, as they are written in a file or on a command line. Pure.

A key is never part of a message: an error names the line.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from enum import StrEnum


class KeyEncoding(StrEnum):
    """How keys are written: as UTF-8 text, or in base64."""

    TEXT = "text"
    BASE64 = "base64"


def key_of(text: bytes, encoding: KeyEncoding, where: str) -> bytes:
    """Return the key that is written so. Raises ValueError, which says `where`."""
    if encoding is KeyEncoding.TEXT:
        return text
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{where} is not base64") from None


def keys_in(content: bytes, encoding: KeyEncoding, name: str) -> list[bytes]:
    """Return the keys in a file, one a line. Lines without anything are left out. Raises ValueError, which names the
    file as `name`, for a line that is not a key, and if there is none."""
    lines = (line.removesuffix(b"\r") for line in content.split(b"\n"))
    found = [
        key_of(line, encoding, f"{name}: line {number}") for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if not found:
        raise ValueError(f"{name} has no key")
    return found


def different(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the keys, each once."""
    return tuple(dict.fromkeys(keys))
