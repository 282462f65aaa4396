"""The plots of a verification's report show what there is, whatever the times of records are."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from logkeep_engine.archive.maintenance.record_digests import RecordTimes
from logkeep_engine.page import LEFT, RIGHT, WIDTH
from logkeep_engine.restore.verification.plots import plots_of

TIME = 1_700_000_000_000 >> 20 << 20
MINUTE = 60_000


def times(counts: dict[int, int], shift: int = 10) -> RecordTimes:
    return RecordTimes(shift, tuple((time >> shift, count, 100 * count) for time, count in sorted(counts.items())))


def parsed(parts: list[str]) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{''.join(parts)}</div>")


def texts(tree: ElementTree.Element) -> list[str]:
    return ["".join(node.itertext()) for node in tree.iter("text")]


def drawn(tree: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [node for node in tree.iter("rect") if node.get("class") == name]


def caption(tree: ElementTree.Element) -> str:
    return "".join(tree[1].itertext())


def test_records_and_bytes_are_shown_side_by_side_at_round_values() -> None:
    before = times({TIME + 10 * MINUTE * number: 1000 + number for number in range(12)})
    tree = parsed(plots_of(before, before))
    assert [len(drawn(tree, name)) for name in ("before", "after", "differs")] == [24, 24, 0]
    assert {"0", "500", "1,000", "32 KiB", "64 KiB", "96 KiB", "11-14 22:30"} <= set(texts(tree))
    assert caption(tree).startswith("From 2023-11-14 22:")
    for node in tree.iter("text"):
        half = 3.3 * len("".join(node.itertext()))
        at, ends = float(node.get("x", 0)), node.get("text-anchor") == "end"
        assert at - (2 * half if ends else half) >= 0
        assert at + (0 if ends else half) <= WIDTH


def test_what_is_not_the_same_is_marked_however_little_it_is() -> None:
    before = {TIME + MINUTE * number: 1_000_000 for number in range(60)}
    after = {**before, TIME: 999_999}
    del after[TIME + 59 * MINUTE]
    tree = parsed(plots_of(times(before), times(after)))
    marked = ["".join(node.itertext()) for node in drawn(tree, "differs")[:2]]
    assert marked[0].endswith(": 1,000,000 in the archive, 999,999 in the target")
    assert marked[1].endswith(": 1,000,000 in the archive, 0 in the target")
    assert len(drawn(tree, "differs")) == 4


def test_few_records_of_wrong_clocks_leave_room_for_the_others() -> None:
    usual = {TIME + MINUTE * number: 100 for number in range(60)}
    usual[TIME - 5 * MINUTE] = 1
    before = times({0: 2, **usual, TIME << 1: 1})
    tree = parsed(plots_of(before, times({0: 2, **usual})))
    assert caption(tree).startswith("From 2023-11-14 ")
    assert caption(tree).endswith("Records of other times: 3 in the archive, 2 in the target.")
    assert len(drawn(tree, "after")) == 122
    many = times({0: 2000, **usual})
    assert caption(parsed(plots_of(many, many))).startswith("From 1970-01-01 ")
    nearby = times({TIME - MINUTE: 1, **usual})
    assert "other times" not in caption(parsed(plots_of(nearby, nearby)))


def test_years_without_a_record_are_cut_out_of_the_axis() -> None:
    year = 365 * 24 * 60 * MINUTE
    old, new = TIME - 10 * year, TIME
    found = times({start + 7 * 24 * 60 * MINUTE * week: 1000 for start in (old, new) for week in range(26)}, shift=30)
    parts = plots_of(found, found)
    tree = parsed(parts)
    assert "From 2014-" in caption(tree)
    assert caption(tree).endswith("there is nothing, and the axis is cut.")
    bars = sorted(float(bar.get("x", 0)) for bar in drawn(parsed(parts[3:4]), "before"))
    gaps = sorted(after - before for before, after in pairwise(bars))
    assert gaps[-1] < 24 + 2 * gaps[-2], "the cut is narrow, and all else has the room"
    assert LEFT <= bars[0] < bars[-1] < RIGHT
    years = {text[:4] for text in texts(tree) if text.count("-") == 2}
    assert years == {"2013", "2014", "2023", "2024"} & years
    assert {"2014", "2024"} <= years
    whole = times({old + 7 * 24 * 60 * MINUTE * week: 1000 for week in range(520)}, shift=30)
    assert "cut" not in caption(parsed(plots_of(whole, whole)))
    ends = times({old: 1000, new: 1000}, shift=30)
    tree = parsed(plots_of(ends, ends))
    assert [len(drawn(tree, name)) for name in ("before", "after")] == [4, 4]
    assert len({round(float(bar.get("x", 0))) for bar in drawn(tree, "after")}) == 2


def test_records_without_a_time_are_counted() -> None:
    assert plots_of(RecordTimes(4, ((-1, 5, 50),)), RecordTimes()) == []
    tree = parsed(plots_of(RecordTimes(4, ((-1, 5, 50), (7, 1, 10))), RecordTimes(0, ((115, 1, 10),))))
    assert caption(tree).endswith("Records without a time: 5 in the archive, 0 in the target.")


@pytest.mark.parametrize("shift", [0, 7, 30, 62])
@pytest.mark.parametrize("numbers", [(0,), (0, 1), (1, 1 << 40), (3, 4, 5, 200)])
def test_no_time_is_too_odd(shift: int, numbers: tuple[int, ...]) -> None:
    found = RecordTimes(shift, tuple((number, 1, 0) for number in numbers))
    tree = parsed(plots_of(found, found))
    assert len([text for text in texts(tree) if text]) <= 30
