"""Text of others in a page is text there: it is not markup, and each of its characters is visible."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from logkeep_engine.page import Axis, Html, document, escaped, plot, rectangle, table
from tests.unit.hostile import HOSTILE, doing

ROOT = Path(__file__).parents[2]
BAD = f"<script>alert(1)</script>\"'&{HOSTILE}"


def test_text_is_escaped_wherever_it_comes_into_a_page() -> None:
    cells = table([BAD, f"#{BAD}"], [[BAD, BAD]])
    page = document(BAD, [cells, rectangle("after", 1, 2, 3, 4, BAD), f"<p>{escaped(BAD)}</p>"])
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;pwned") == 7
    assert "<script" not in page
    assert doing(page) == []
    page.encode()


def test_a_part_that_is_markup_stays_as_it_is() -> None:
    assert "<td><b>1</b></td>" in table((), [[Html("<b>1</b>")]])


def test_only_the_page_escapes() -> None:
    """A page that escapes by itself would forget it somewhere."""
    found = [path.name for path in (ROOT / "engine").rglob("*.py") if "from html import" in path.read_text()]
    assert found == ["page.py"]


def ticks(begin: str, end: str) -> list[str]:
    span = [int(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000) for text in (begin, end)]
    return re.findall(r'text-anchor="middle">([^<]+)<', plot([], Axis(span[0], span[1])))


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ("2025-11-17T10:00", "2026-05-02T03:00",
         ["2025-12-01", "2026-01-01", "2026-02-01", "2026-03-01", "2026-04-01", "2026-05-01"]),
        ("2024-02-03T00:00", "2026-02-03T00:00",
         ["2024-07-01", "2025-01-01", "2025-07-01", "2026-01-01"]),
        ("2026-11-03T00:00", "2026-12-15T00:00",
         ["2026-11-09", "2026-11-16", "2026-11-23", "2026-11-30", "2026-12-07", "2026-12-14"]),
        ("2026-11-03T00:00", "2026-11-04T00:00",
         ["11-03 00:00", "11-03 06:00", "11-03 12:00", "11-03 18:00", "11-04 00:00"]),
    ],
    ids=["months", "half years", "Mondays", "hours"],
)  # fmt: skip
def test_an_axis_has_round_times(begin: str, end: str, expected: list[str]) -> None:
    assert ticks(begin, end) == expected


def test_times_beyond_all_calendars_have_an_axis() -> None:
    assert "<svg" in plot([], Axis(0, (1 << 63) - 1))
    assert "<svg" in plot([], Axis((1 << 63) - 9, (1 << 63) - 1))
