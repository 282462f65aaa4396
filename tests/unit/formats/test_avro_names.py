"""Names of the objects of the Avro format."""

import pytest

from logkeep_engine.archive import names
from logkeep_engine.formats.avro_names import SEQUENCE_WIDTH, AvroName, parse_path


def test_name_is_the_published_one_with_the_first_offset_in_twenty_digits() -> None:
    path = names.avro_stem("orders", 7, 1234, width=SEQUENCE_WIDTH) + names.DATA
    assert path == "topics/orders/partition=7/orders+7-00000000000000001234.data"
    largest = names.avro_stem("a.b_c-d", 12, 2**63 - 1, width=SEQUENCE_WIDTH) + names.DATA
    assert largest == "topics/a.b_c-d/partition=12/a.b_c-d+12-09223372036854775807.data"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("orders/partition=7/orders+7-00000000000000001234.data", AvroName("orders", 7, 1234, 20)),
        ("topics/orders/partition=0/orders+0-0.data", AvroName("orders", 0, 0, 1)),
        ("backup/2024/topics/a-1+/../a/partition=10/a+10-007.data", AvroName("a", 10, 7, 3)),
        ("a\nb/topics/o-1/partition=0/o-1+0-12.data", AvroName("o-1", 0, 12, 2)),
        ("topics/o-1/partition=0/o-1+0-12.data", AvroName("o-1", 0, 12, 2)),
        (
            "topics/__consumer_offsets/partition=49/__consumer_offsets+49-5.data",
            AvroName("__consumer_offsets", 49, 5, 1),
        ),
    ],
)
def test_name_is_taken_apart_with_or_without_padding(path: str, name: AvroName) -> None:
    assert parse_path(path) == name
    written = names.avro_stem(name.topic, name.partition, name.sequence, width=name.width) + names.DATA
    assert path.endswith(written.removeprefix(names.TOPICS))


@pytest.mark.parametrize(
    "path",
    [
        "orders/partition=7/orders+8-1.data",
        "orders/partition=7/other+7-1.data",
        "orders/partition=07/orders+07-1.data",
        "orders/partition=7/orders+7-.data",
        "orders/partition=7/orders+7-1.avro",
        "orders/partition=7/orders+7-1.data.tmp",
        "orders/7/orders+7-1.data",
        "orders+7-1.data",
        "orders/partition=7/orders+7--1.data",
    ],
)
def test_other_names_are_no_objects_of_the_format(path: str) -> None:
    assert parse_path(path) is None
