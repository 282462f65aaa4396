"""Object names: exact, sortable, and read back."""

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.names import SegmentObjectName

ID = "ab-_56789012345678901A"


def test_segment_names_are_exact() -> None:
    first = names.segment_stem("my.topic_1-x", ID, 7, 1234, 3, 0)
    assert first == f"topics/my.topic_1-x/{ID}/partition=7/00000000000000001234.0000000003"
    again = names.segment_stem("my.topic_1-x", ID, 7, 1234, 3, 2)
    assert again == f"topics/my.topic_1-x/{ID}/partition=7/00000000000000001234.0000000003-2"


@pytest.mark.parametrize("suffix", names.SUFFIXES)
@pytest.mark.parametrize("attempt", [0, 1, 12])
@pytest.mark.parametrize("offset", [0, 2**63 - 1])
def test_segment_names_are_read_back(suffix: str, attempt: int, offset: int) -> None:
    path = names.segment_stem("t", ID, 0, offset, 42, attempt) + suffix
    assert names.parse_segment(path) == SegmentObjectName("t", ID, 0, offset, 42, attempt, suffix)


@pytest.mark.parametrize(
    "path",
    [
        f"topics/t/{ID}/partition=0/00000000000000000000.0000000001-0.log",
        f"topics/t/{ID}/partition=00/00000000000000000000.0000000001.log",
        f"topics/t/{ID}/partition=0/0.0000000001.log",
        f"topics/t/{ID}/partition=0/00000000000000000000.0000000001.log2",
        "topics/t/short/partition=0/00000000000000000000.0000000001.log",
        "catalog/00000000000000000000.json",
    ],
)
def test_other_objects_are_no_segments(path: str) -> None:
    assert names.parse_segment(path) is None


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ä", "a" * 250])
def test_what_kafka_would_not_name_a_topic_gets_no_path(topic: str) -> None:
    with pytest.raises(ValueError, match="is not a topic name"):
        names.segment_stem(topic, ID, 0, 0, 1, 0)


def test_catalog_names_are_exact_and_read_back() -> None:
    assert names.commit_path(42) == "catalog/00000000000000000042.json"
    assert names.checkpoint_path(40, 3) == "catalog/00000000000000000040-0000000003.checkpoint"
    assert names.parse_commit("catalog/00000000000000000042.json") == 42
    assert names.parse_checkpoint("catalog/00000000000000000040-0000000003.checkpoint") == (40, 3)
    assert names.parse_commit("catalog/00000000000000000040-0000000003.checkpoint") is None
    assert names.parse_checkpoint("catalog/00000000000000000042.json") is None


def test_run_files_stay_in_their_run() -> None:
    assert names.run_file("nightly-1", "maps/orders.csv") == "runs/nightly-1/maps/orders.csv"
    with pytest.raises(ValueError, match="is not a run id"):
        names.run_file("../x", "plan.json")
    with pytest.raises(ValueError, match="is not a file name"):
        names.run_file("x", "../plan.json")
