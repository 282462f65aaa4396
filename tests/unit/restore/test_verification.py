"""The report of a verification: a document for programs, and a page."""

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from logkeep_engine.archive.maintenance.record_digests import RecordTimes
from logkeep_engine.compare.aligning import Difference, DifferenceKind
from logkeep_engine.restore.verification.document import IdlePartition, VerificationReport, facts_of
from logkeep_engine.restore.verification.page import MAX_ROWS, page_of
from logkeep_engine.restore.verification.task import Verdict, VerifiedPartition, shortened

TIME = 1_700_000_000_000


def partition(number: int, verdict: Verdict, *differences: Difference, reason: str = "") -> VerifiedPartition:
    return VerifiedPartition(
        source="orders",
        target="<orders>",
        partition=number,
        verdict=verdict,
        expected=10,
        records=9,
        bytes=1000,
        reasons=(reason,) if reason else (),
        differences=differences,
        stretches=3,
        differing=((3, 7),) if differences else (),
        times=RecordTimes(10, ((TIME >> 10, 9, 90), (-1, 1, 3))),
        offsets=(0, 10),
        compared_until=10,
    )


LOST = Difference(DifferenceKind.LOST, 4, None)


def report(*partitions: VerifiedPartition, idle: Sequence[IdlePartition] = (), empty: int = 0) -> VerificationReport:
    before = {item.where: RecordTimes(4, ((TIME >> 4, 10, 100),)) for item in partitions}
    return VerificationReport("run-1", "a", "c", 1.0, 2.0, partitions, idle, empty, before)


TAKEN = IdlePartition("t<", 0, Verdict.NOT_VERIFIED, "4 offsets are used")
GONE = IdlePartition("t", 1, Verdict.DIFFERENT, "the partition is gone")


class TestReport:
    def test_the_worst_partition_decides(self) -> None:
        good = partition(0, Verdict.VERIFIED)
        other = partition(1, Verdict.NOT_VERIFIED, reason="it compacts")
        bad = partition(2, Verdict.DIFFERENT, LOST)
        assert report(good, empty=1).outcome is Verdict.VERIFIED
        assert report(good, idle=[TAKEN]).outcome is Verdict.NOT_VERIFIED
        assert report(good, idle=[TAKEN, GONE]).outcome is Verdict.DIFFERENT
        assert report(good, other).outcome is Verdict.NOT_VERIFIED
        assert report(good, other, bad).outcome is Verdict.DIFFERENT
        assert report(good, other, bad).message == "topic <orders> partition 2: source offset 4 is not in the target"
        assert report(good, other).message == "topic <orders> partition 1 is not verified: it compacts"
        facts = report(good, other, bad, idle=[TAKEN], empty=1).facts("uri")
        assert (facts.partitions, facts.verified, facts.not_verified, facts.different) == (5, 2, 2, 1)

    def test_the_message_is_about_a_partition_of_the_outcome(self) -> None:
        compacts = partition(0, Verdict.NOT_VERIFIED, LOST, reason="it compacts")  # what it lost may be compacted
        bad = partition(1, Verdict.DIFFERENT, LOST)
        assert report(compacts, bad).message == "topic <orders> partition 1: source offset 4 is not in the target"
        assert report(compacts).message == "topic <orders> partition 0 is not verified: it compacts"
        assert report(bad, idle=[GONE]).message.endswith("is not in the target, and 1 more partition differs")
        assert report(compacts, idle=[GONE]).message == "topic t partition 1: the partition is gone"
        both = report(compacts, idle=[TAKEN, TAKEN])
        assert both.message.endswith("it compacts, and 2 more partitions are not verified")

    def test_the_facts_are_read_again(self) -> None:
        found = report(partition(0, Verdict.VERIFIED), partition(1, Verdict.DIFFERENT, LOST), idle=[TAKEN], empty=3)
        document = b"".join(found.blocks())
        assert facts_of(document, "uri") == found.facts("uri")
        body = json.loads(document)
        assert [item["partition"] for item in body["partitions"]] == [0, 1]
        assert body["idle"] == [
            {"target": "t<", "partition": 0, "verdict": "NotVerified", "reason": "4 offsets are used"}
        ]
        for wrong in (b"", b"[]", b"{}", document.replace(b'"format":1', b'"format":2')):
            assert facts_of(wrong, "uri") is None
        assert json.loads(b"".join(report().blocks()))["partitions"] == []

    def test_the_page_stands_alone_and_names_are_text(self) -> None:
        page = page_of(
            report(
                partition(0, Verdict.VERIFIED),
                partition(1, Verdict.NOT_VERIFIED, reason="<b>"),
                partition(2, Verdict.DIFFERENT, LOST),
                idle=[TAKEN],
            )
        )
        tree = ElementTree.fromstring(
            page.removeprefix("<!DOCTYPE html>\n").replace('<meta charset="utf-8">', "").replace("&nbsp;", " ")
        )
        assert len(list(tree.iter("svg"))) == 4
        assert not [node for node in tree.iter() if node.get("src") or node.get("href")]
        text = "".join(tree.itertext())
        assert "source offset 4 is not in the target" in text
        assert "<orders>" in text

    def test_the_page_shows_where_records_differ(self) -> None:
        page = page_of(report(partition(2, Verdict.DIFFERENT, LOST)))
        assert '<rect class="listed" x="270.00" y="0" width="360.00" height="14"><title>offsets 3 to 6</title>' in page
        assert '<rect class="differs" x="360.00" y="0" width="90.00" height="14"><title>offset 4</title>' in page

    def test_a_page_of_very_many_partitions_says_how_many_it_leaves_out(self) -> None:
        others = [IdlePartition("t", number, Verdict.NOT_VERIFIED, "taken") for number in range(MAX_ROWS + 7)]
        page = page_of(report(idle=others))
        assert page.count("<li>taken</li>") == MAX_ROWS
        assert "And 7 more partitions." in page
        assert shortened([str(number) for number in range(9)], 2) == ("0", "1", "and 7 more")

    def test_times_of_other_widths_are_put_together(self) -> None:
        wide, narrow = RecordTimes(10, ((5, 1, 10),)), RecordTimes(0, ((5 << 10, 2, 20), (7, 3, 30)))
        for parts in ((wide, narrow), (narrow, wide)):
            assert RecordTimes.together(parts) == RecordTimes(10, ((0, 3, 30), (5, 3, 30)))
        many = RecordTimes(0, tuple((number, 1, 1) for number in range(64)))
        assert RecordTimes.together([many], 10) == RecordTimes(3, tuple((number, 8, 8) for number in range(8)))


def test_the_page_accounts_for_each_partition_that_its_summary_counts() -> None:
    page = page_of(report(partition(0, Verdict.VERIFIED), idle=[TAKEN], empty=1))
    assert "2 verified, 1 not verified, 0 different" in page
    listed = page.partition("<h2>Partitions</h2>")[2]
    assert listed.count("<tr>") == 2, "the head, and the partition with records"
    assert "And 1 partition without records in the archive and in the target." in listed
    assert "And 1 partition above to which nothing was restored." in listed
    assert "And " not in page_of(report(partition(0, Verdict.VERIFIED))).partition("<h2>Partitions</h2>")[2]
