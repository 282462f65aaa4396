"""The kernel's reader of a commit's segments says what Python's says, also of what is damaged."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog import tables
from logkeep_engine.archive.catalog.commits import dump_commit
from logkeep_engine.archive.catalog.documents import building, parse
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Commit, CommitKind, PassiveFacts, TopicEntry
from logkeep_engine.archive.catalog.packed import SegmentBatch
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from tests.examples import scaled
from tests.unit.archive.build import ORDERS, changed
from tests.unit.archive.catalog.test_packed import entries
from tests.unit.archive.catalog.test_state import entry

WIDE = settings(deadline=None, max_examples=scaled(60))


def document_of(*segments: SegmentEntry, passive: tuple[SegmentEntry, ...] = (), name: str = "orders") -> bytes:
    topic = TopicEntry(name, ORDERS.topic_id, 2, 3, {"note": ',"segments":{"columns":["'})
    facts: dict[str, Any] = {"topics": (topic,), "segments": segments, "passive": PassiveFacts((), passive)}
    return dump_commit(Commit(3, "id", "token", CommitKind.DATA, "run", 1, 0, **facts))


def contents(document: dict[str, Any]) -> tuple[list[Any], list[tuple[Any, bytes]]]:
    """All that is read of a document but the rows of segments, and these as they are kept."""
    segments = tables.SEGMENTS.read(document, "segments", "c")
    rest = {key: value for key, value in document.items() if key != "segments"}
    return [rest, document.get("segments", {}).get("columns")], list(segments.rows())


def outcome(data: bytes, read: Any) -> Any:
    try:
        return building(lambda: contents(read(data, "c")), "c")
    except (ArchiveDamaged, ArchiveMismatch) as error:
        return type(error), error.message
    except (AttributeError, RecursionError) as error:
        return type(error)


@WIDE
@given(st.lists(entries(), max_size=4), st.lists(entries(), max_size=2))
def test_the_kernel_packs_what_a_writer_writes(segments: list[SegmentEntry], passive: list[SegmentEntry]) -> None:
    data = document_of(*segments, passive=tuple(passive))
    document = tables.read_document(data, "c")
    assert not segments or isinstance(document["segments"]["rows"], SegmentBatch)
    assert document.get("segments", {"rows": []})["rows"] == segments
    assert contents(document) == contents(parse(data, "c"))


@WIDE
@given(
    st.lists(entries(), min_size=1, max_size=2),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 3),
    st.sampled_from([b"", b"0", b"-", b"-0", b"1e3", b"null", *(b"%c" % byte for byte in b'"\\ ,[]F\xff\x01')]),
)
def test_damage_is_reported_as_python_tells_it(
    segments: list[SegmentEntry], where: float, length: int, put: bytes
) -> None:
    data = document_of(*segments)
    at = int(where * len(data))
    damaged = data[:at] + put + data[at + length :]
    assert outcome(damaged, tables.read_document) == outcome(damaged, parse)


IMPOSSIBLE = [
    ({"base_offset": 1000, "next_offset": 1001}, b"1000,1001", b"1000,1000"),
    ({"base_offset": 1000}, b"1000", b"-1000"),
    ({"batches": 77777}, b"77777", b"0"),
    ({"bytes": 77777}, b"77777", b"0"),
    ({"bytes": 77777}, b"77777", b"9223372036854775808"),
    ({"max_batch_bytes": 77777}, b"77777", b"4294967296"),
    ({"partition": 77777}, b"77777", b"-1"),
    ({"codecs": {"lz4": 77777}}, b'"lz4":77777', b'"lzma":1'),
    ({"codecs": {"lz4": 77777}}, b"77777", b"4294967296"),
    ({"control": True}, b'"control"', b'"contral"'),
]


@pytest.mark.parametrize(("facts", "old", "new"), IMPOSSIBLE)
def test_a_segment_that_cannot_be_is_reported_as_python_tells_it(facts: dict[str, Any], old: bytes, new: bytes) -> None:
    data = document_of(changed(entry(5, 2000), **{"next_offset": 2000, **facts}))
    assert data.count(old) == 1
    damaged = data.replace(old, new)
    assert outcome(damaged, tables.read_document) == outcome(damaged, parse)
    assert outcome(damaged, parse)[0] is ArchiveDamaged


def test_another_table_of_the_same_name_is_not_taken_for_the_segments() -> None:
    whole = document_of(entry(0, 10))
    table = whole[whole.index(b'"segments":') : whole.index(b',"sha256":"', whole.index(b'"rows"'))]
    before = whole.replace(b',"topics"', b',"passiveEpochs":{"epochs":0,' + table + b'},"topics"', 1)
    assert before.index(table) < whole.index(table) + len(table)
    assert outcome(before, tables.read_document) == outcome(before, parse)
    twice = whole.replace(table, table + b"," + table.replace(b"[[", b"[7,["), 1)
    assert outcome(twice, tables.read_document) == outcome(twice, parse)
