"""Positions of consumer groups in the Records format: JSON, to the byte, and strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.errors import CorruptSegment
from logkeep_engine.formats.records_groups import pack_consumer_offsets, read_consumer_offsets
from tests.unit.formats.records_golden import golden

GROUPS = {"audit": 7, "billing": 10_000_000_001}


def test_golden_consumer_offsets_are_read_and_written_to_the_byte() -> None:
    data = golden("consumer_offsets_partition_000")
    assert read_consumer_offsets(data) == GROUPS
    assert pack_consumer_offsets(dict(reversed(GROUPS.items()))) == data


def test_file_that_was_made_and_never_written_has_no_groups() -> None:
    assert read_consumer_offsets(b"") == {}
    assert read_consumer_offsets(pack_consumer_offsets({})) == {}


@given(st.dictionaries(st.text(max_size=9), st.integers(0, 2**63 - 1), max_size=5))
def test_groups_come_back_whatever_their_names(groups: dict[str, int]) -> None:
    assert read_consumer_offsets(pack_consumer_offsets(groups)) == groups


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_what_is_no_offset_is_not_written(offset: int) -> None:
    with pytest.raises(ValueError, match=f"consumer group 'audit' cannot have committed offset {offset}"):
        pack_consumer_offsets({"audit": offset})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"audit":7', "The consumer offsets are not a JSON object of group and offset: "),
        (b"\xff\xfe", "The consumer offsets are not a JSON object of group and offset: "),
        (b'{"a":1,"b":2,"a":3}', "The consumer offsets are not a JSON object of group and offset: 'a' appears twice."),
        (b'[["audit",7]]', "The consumer offsets are a JSON list, not an object."),
        (b'{"audit":-1}', "The committed offset of consumer group 'audit' is -1, not an offset."),
        (b'{"audit":"7"}', """The committed offset of consumer group 'audit' is "7", not an offset."""),
        (b'{"audit":7.0}', "The committed offset of consumer group 'audit' is 7.0, not an offset."),
        (b'{"audit":true}', "The committed offset of consumer group 'audit' is true, not an offset."),
        (b'{"audit":null}', "The committed offset of consumer group 'audit' is null, not an offset."),
        (b'{"audit":9223372036854775808}', "is 9223372036854775808, not an offset."),
    ],
)
def test_what_is_no_object_of_offsets_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptSegment) as caught:
        read_consumer_offsets(data)
    assert message in str(caught.value)
