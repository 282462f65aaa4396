"""Text of others in a page is text there: it is not markup, and each of its characters is visible."""

from __future__ import annotations

from pathlib import Path

from logkeep_engine.page import Html, document, escaped, rectangle, table
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
