"""Names of the objects of the Avro format: `<topic>/partition=<nr>/<topic>+<nr>-<seq>.data`, below `topics/`.

The published text does not say what `<seq>` counts; its tool wrote the offset of the first record, and so does Logkeep,
in 20 digits, so that names sort as offsets do. Other tools may count objects, padded or not: a number, and how many
digits it had, is what is known of such a name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SEQUENCE_WIDTH = 20
"""Digits of `<seq>` in names of Logkeep's own."""

_OBJECT = re.compile(r"(?s:.*/)?([a-zA-Z0-9._-]{1,249})/partition=(0|[1-9][0-9]*)/\1\+\2-([0-9]{1,40})\.data")


class AvroName(NamedTuple):
    """The parts of an object's name. `sequence` was written with `width` digits."""

    topic: str
    partition: int
    sequence: int
    width: int


def parse_path(path: str) -> AvroName | None:
    """The parts of an object's name, whatever folder is before it; None for any other object."""
    match = _OBJECT.fullmatch(path)
    if match is None:
        return None
    topic, partition, sequence = match.groups()
    return AvroName(topic, int(partition), int(sequence), len(sequence))
