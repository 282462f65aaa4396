"""The numbers of the Avro format that only its oracle looks up."""

from logkeep_engine.formats.avro_numbers import FIRST, long
from logkeep_engine.formats.avro_schema import TIMESTAMP_TYPES

LOW_BITS = 14
LOW_MASK = (1 << LOW_BITS) - 1
LOW = [bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(1 << LOW_BITS)]
"""The first two bytes of a number that continues: offsets and times that rise mostly change in these only."""

NO_HEADER_LIST = FIRST

KINDS = {kind: long(number) for number, kind in enumerate(TIMESTAMP_TYPES.values())}
"""How the field `timestampType` is written."""
