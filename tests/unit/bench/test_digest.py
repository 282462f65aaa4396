"""The digest of records is measured, and held against one that plain Python computes."""

import pytest

from bench import digest, plan, report, topics
from tests.unit.bench.test_results import measured


@pytest.fixture(autouse=True)
def _small_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a real rate needs many records."""
    monkeypatch.setattr(digest, "_SHRUNK", 500)
    monkeypatch.setattr(topics, "POOL_BATCHES", 4)


def test_each_topic_of_small_records_has_a_rate() -> None:
    rows = digest.measure(1000)
    assert [row["topic"] for row in rows] == ["lz4-100", "single-100", "five-100"]
    assert all(row["records/s"] > 0 and row["with unpacking, records/s"] > 0 for row in rows)
    tables = report.tables(measured(digest=rows))
    assert [line[:2] for line in tables["digest"].rows] == [("one thread", row["topic"]) for row in rows]
    assert [line[1:3] for line in tables["figures"].rows] == [(row["topic"], "≥ 10") for row in rows]
    assert "digest" in plan.SECTIONS


def test_a_wrong_digest_is_an_error_and_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_POINT", digest._POINT + 1)
    with pytest.raises(digest.WrongDigest):
        digest.measure(1000)
