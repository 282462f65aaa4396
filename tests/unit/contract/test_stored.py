"""Documents that Logkeep stores: what is written is read again, and anything else is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.contract.stored import DocumentDamaged, DocumentUnknown, Maybe, StoredDocument

NOTE = StoredDocument(
    "note",
    7,
    {
        "name": str,
        "count": int,
        "seconds": float,
        "end": int | None,
        "rows": [(str, int, int | None)],
        "times": [(int, float)],
        "ids": {str: str},
        "inner": Maybe({"flag": bool, "lists": [[int]]}),
    },
    most=4000,
)
BODY: dict[str, Any] = {
    "name": "a",
    "count": 3,
    "seconds": 1.5,
    "end": None,
    "rows": [["x", 1, 2], ["y", 2, None]],
    "times": [[1, 2.5], [2, 3]],
    "ids": {"orders": "1"},
    "inner": {"flag": True, "lists": [[], [1, 2]]},
}


def text(**altered: Any) -> bytes:
    return json.dumps({"format": 7, **BODY, **altered}).encode()


def test_what_is_written_is_read_again() -> None:
    assert NOTE.loads(NOTE.dumps(BODY)) == BODY
    assert NOTE.loads(NOTE.dumps(BODY, indent=1)) == BODY
    assert NOTE.loads(NOTE.dumps({**BODY, "inner": None, "end": 4, "seconds": 2}))["inner"] is None
    assert NOTE.dumps(BODY).startswith(b'{"format":7,"name":"a",')


def test_a_name_that_is_no_text_survives() -> None:
    assert NOTE.loads(NOTE.dumps({**BODY, "name": "\udcff"}))["name"] == "\udcff"


def test_every_key_must_be_written() -> None:
    for body in ({**BODY, "more": 1}, {key: value for key, value in BODY.items() if key != "end"}):
        with pytest.raises(ValueError, match="note: keys"):
            NOTE.dumps(body)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (text(format=8), "note of format 8; this version reads 7"),
        (text(format=True), "note of format True"),
        (text(format="7"), "note of format '7'"),
        (text(later=1), r"note: unknown keys \['later'\]"),
        (text(inner={"flag": True, "lists": [], "more": 0}), r"note: unknown keys \['more'\] of inner"),
    ],
)
def test_what_another_version_wrote_is_refused(data: bytes, expected: str) -> None:
    with pytest.raises(DocumentUnknown, match=expected):
        NOTE.loads(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "it is not complete JSON"),
        (text()[:-1], "it is not complete JSON"),
        (b"\xff", "it is not complete JSON"),
        (b"[" * 3900, "it nests too deeply"),
        (b"[]", "a list of 0, not an object"),
        (b"null", "None, not an object"),
        (b"{}", "it has no format number"),
        (b'{"format":7}', "key 'count' is missing"),
        (text() + b" " * 4000, "bytes, of at most 4000"),
        (text(name=1), "name is 1"),
        (text(count=True), "count is True"),
        (text(count=1.0), "count is 1.0"),
        (text(count=None), "count is None"),
        (text(seconds="1"), "seconds is '1'"),
        (text(seconds=float("nan")), "seconds is nan"),
        (text(seconds=float("inf")), "seconds is inf"),
        (text(end="x"), "end is 'x'"),
        (text(rows={}), "rows is an object of 0, not a list"),
        (text(rows=[["x", 1, 2], ["x", 1]]), r"rows\[1\] is a list of 2, not a row of 3"),
        (text(rows=[["x", 1, 2], ["x", "1", 2]]), r"rows\[1\]\[1\] is '1'"),
        (text(rows=[["x", 1, 2], "abc"]), r"rows\[1\] is 'abc', not a row of 3"),
        (text(times=[[1, 2.0], [1, float("inf")]]), r"times\[1\]\[1\] is inf"),
        (text(ids={"a": 1}), r"ids\['a'\] is 1"),
        (text(ids=[]), "ids is a list of 0, not an object"),
        (text(inner={"flag": True}), "key 'lists' of inner is missing"),
        (text(inner={"flag": 0, "lists": []}), "inner.flag is 0"),
        (text(inner={"flag": True, "lists": [[None]]}), r"inner.lists\[0\]\[0\] is None"),
    ],
)
def test_what_is_altered_is_refused_by_name(data: bytes, expected: str) -> None:
    with pytest.raises(DocumentDamaged, match=f"not a note: .*{expected}"):
        NOTE.loads(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)


@given(st.sampled_from(sorted(BODY)), JSON)
def test_whatever_a_value_becomes_it_is_read_as_it_is_or_refused(key: str, value: Any) -> None:
    data = text(**{key: value})
    try:
        found = NOTE.loads(data)
    except (DocumentUnknown, DocumentDamaged):
        return
    assert found == {**BODY, key: value}
