"""Medians, JSON, tables and the marked sections of the page."""

import json
from pathlib import Path

import pytest

from bench import report, results
from bench.contenders import Sample
from bench.plot import line_chart
from bench.requests import count, per_tib
from bench.results import Results, Row
from logkeep_engine.contract.model import replace


def sample(work: float | None, wall: float = 5.0) -> Sample:
    return Sample(
        wall=wall, cpu=1.0, broker_cpu=0.5, records=1000, wire=2_000_000, peak=30_000_000, work=work, work_cpu=0.5
    )


def row(section: str, who: str, *works: float, topic: str = "zstd-1k") -> Row:
    return Row(section, topic, who, "file", tuple(sample(work) for work in works))


def measured(*rows: Row, **facts: object) -> Results:
    machine = {"processor": "p", "cores": 2, "memory": 8 << 30, "kernel": "6", "python": "3"}
    return Results(machine, "2026-01-01T00:00:00Z", "abc", "", 10_000_000, rows, {"zstd-1k": {}}, facts)


def test_medians_spread_and_rates() -> None:
    found = row("backup", "engine", 1.0, 4.0, 2.0)
    assert found.median("work") == 2.0
    assert found.spread("work") == (1.0, 4.0)
    assert found.seconds == 2.0
    assert found.mb_per_second == 1.0
    assert found.records_per_second == 500
    assert found.median("archive") is None


def test_the_whole_process_counts_where_the_work_is_not_known() -> None:
    assert Row("backup", "t", "spark", "file", (sample(None),)).seconds == 5.0


def test_json_comes_back_as_it_went(tmp_path: Path) -> None:
    found = measured(row("backup", "engine", 1.0, 2.0), peer={"name": "other", "version": "1"})
    path = tmp_path / "results.json"
    path.write_text(found.to_json())
    assert results.read(path) == found


def test_runs_of_one_machine_become_one() -> None:
    first = measured(row("backup", "engine", 1.0), row("backup", "floor", 1.0), scale=[])
    second = measured(row("backup", "engine", 2.0), memory=[])
    merged = results.merge([first, second])
    assert [(r.who, r.seconds) for r in merged.rows] == [("engine", 2.0), ("floor", 1.0)]
    assert set(merged.facts) == {"scale", "memory"}
    with pytest.raises(ValueError, match="another machine"):
        results.merge([first, replace(second, machine={"processor": "other"})])


def published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"PUBLISHED": "b.json", "PUBLISHED_FORMATS": "f.json", "PAGE": "b.md", "PLOT": "b.svg"}
    for name, file in files.items():
        monkeypatch.setattr(report, name, folder / file)


def test_formats_may_be_published_from_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path, monkeypatch)
    marks = ["machine", "figures", "machine-formats", "decode"]
    report.PAGE.write_text("".join(f"<!-- bench:{mark} -->\n<!-- /bench -->\n" for mark in marks))
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    first.write_text(measured(row("pinned", "engine", 1.0), row("pinned", "floor", 1.0)).to_json())
    apart = measured(row("decode", "engine", 1.0), row("decode", "librdkafka", 8.0))
    second.write_text(replace(apart, machine={**apart.machine, "processor": "other"}).to_json())
    assert report.main([str(first)]) == 0
    assert report.main(["--formats", str(second)]) == 0
    page = report.PAGE.read_text()
    assert ": p, 2 cores" in page
    assert ": other, 2 cores" in page
    assert "MB/s of the floor" in page
    assert "| 8.00 |" in page


def test_publishing_fills_the_page_and_draws_the_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path, monkeypatch)
    report.PAGE.write_text("<!-- bench:machine -->\n<!-- /bench -->\n<!-- bench:backup -->\n<!-- /bench -->\n")
    memory = [{"what": "backup", "gb": 1, "peak": 50_000_000, "work": 1.0, "tasks": 1}]
    stored = tmp_path / "run.json"
    stored.write_text(measured(row("backup", "engine", 1.0), memory=memory).to_json())
    assert report.main([str(stored)]) == 0
    assert "| zstd-1k | engine |" in report.PAGE.read_text()
    assert "2 cores" in report.PAGE.read_text()
    assert report.PLOT.read_text().startswith("<svg")
    assert report.main([]) == 0


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"format": 99, "rows": []}))
    with pytest.raises(ValueError, match="not of format"):
        results.read(path)


def test_a_table_tells_ratios_to_floor_and_peer() -> None:
    peer = {"name": "other", "version": "1"}
    found = measured(
        row("backup", "floor", 1.0), row("backup", "engine", 1.25), row("backup", "other", 10.0), peer=peer
    )
    table = report.tables(found)["backup"]
    engine = dict(zip(table.head, next(line for line in table.rows if line[1] == "engine"), strict=True))
    assert engine["× floor"] == "0.80"
    assert engine["× peer"] == "8.00"
    assert engine["peak MB"] == "20"
    assert table.text().splitlines()[1].startswith("topic")
    assert table.markdown().splitlines()[1].startswith("| --- | --- | ---:")


def test_the_design_figures_are_reported_with_what_is_wanted() -> None:
    found = measured(
        row("pinned", "floor", 1.0),
        row("pinned", "engine", 1.25),
        row("scaling", "1 process", 2.0),
        row("scaling", "2 processes", 1.1),
        memory=[{"what": "backup", "gb": 20, "peak": 110_000_000, "work": 9.0, "tasks": 1}],
    )
    lines = {line[0][0]: line[2:] for line in report.tables(found)["figures"].rows}
    assert lines == {"1": ("≥ 0.8", "0.80"), "4": ("≤ 268", "100"), "5": ("≥ 1.6", "1.82")}


def test_what_is_wanted_beside_the_peer_depends_on_the_topic() -> None:
    topics = ("zstd-1k", "txn", "five-100", "single-2m")
    rows = [
        row(section, who, work, topic=topic)
        for topic in topics
        for section in ("backup", "restore")
        for who, work in (("engine", 1.0), ("other", 3.0))
    ]
    facts = {topic: {"codec": "zstd" if topic in ("zstd-1k", "txn") else "none"} for topic in topics}
    found = replace(measured(*rows, peer={"name": "other", "version": "1"}), topics=facts)
    lines = report.tables(found)["figures"].rows
    wanted = {(line[0].split(",")[0], line[1], line[2]): line[3] for line in lines if "records/s" in line[0]}
    assert set(wanted) == {
        ("2: backup", "zstd-1k", "≥ 5"),
        ("3: restore", "zstd-1k", "≥ 5"),
        ("2: backup", "txn", "≥ 5"),
        ("3: restore", "txn", "≥ 3"),
        ("2: backup", "five-100", "≥ 2"),
        ("3: restore", "five-100", "≥ 2"),
        ("2: backup", "single-2m", "≥ 1"),
        ("3: restore", "single-2m", "≥ 1"),
    }
    assert set(wanted.values()) == {"3.00"}
    whole = [line for line in lines if "whole process" in line[0]]
    assert [(line[0], line[1], line[3]) for line in whole] == [
        ("2: backup, whole process, times the peer's", "single-2m", "1.00"),
        ("3: restore, whole process, times the peer's", "single-2m", "1.00"),
    ]


def test_formats_digests_and_requests_are_among_the_figures() -> None:
    works = {"backup, Kafka": 1.0, "backup, Records": 2.0, "restore, Kafka": 1.0, "restore, Avro": 4.0}
    rows = [row("formats", who, work, topic="lz4-100") for who, work in works.items()]
    counted = {"segments": {"UploadPart": 3, "PutObject": 2, "GetObject": 9}, "run": {"PutObject": 17}}
    verb = {**counted, "seconds": 1.0, "cpu": 1.0}
    found = measured(
        *rows,
        requests={"topic": "t", "wire": 1 << 30, "backup": verb, "restore": verb},
        digest=[{"topic": "lz4-100", "records/s": 12_340_000, "with unpacking, records/s": 9_000_000}],
    )
    assert [line[1:] for line in report.tables(found)["figures"].rows] == [
        ("lz4-100", "≥ 0.4", "0.50"),
        ("lz4-100", "≥ 0.3", "0.25"),
        ("lz4-100", "≥ 10", "12.3"),
        ("t", "≤ 50,000", "5,120"),
    ]


def test_only_sections_with_figures_are_replaced() -> None:
    page = "a\n<!-- bench:backup -->\nold\n<!-- /bench -->\nb\n<!-- bench:memory -->\nkept\n<!-- /bench -->\n"
    filled = report.fill(page, {"backup": "new", "scale": "nowhere"})
    assert "old" not in filled
    assert "<!-- bench:backup -->\n\nnew\n\n<!-- /bench -->\nb\n" in filled
    assert "kept" in filled
    assert report.fill(filled, {"backup": "new"}) == filled


def test_requests_are_counted_by_what_makes_them_more() -> None:
    prefix = "key bench [21/November/2026:12:03:46 +0000] 127.0.0.1 key ABC s3_"
    lines = [
        "log starts 2026-11-21",
        f"{prefix}UploadPart a/topics/t/id/partition=0/0.log /bench/a/topics 200",
        f"{prefix}UploadPart a/topics/t/id/partition=0/0.log /bench/a/topics 200",
        f"{prefix}ListObjectsV2 - /bench?list-type=2 200",
        f"{prefix}PutObject a/catalog/0.json /bench/a/catalog/0.json 200",
    ]
    counted = count(lines)
    assert counted["segments"] == {"UploadPart": 2}
    assert counted["run"] == {"ListObjectsV2": 1, "PutObject": 1}
    assert per_tib(2, 1 << 30) == 2048


def test_tables_of_facts() -> None:
    verb = {"segments": {"UploadPart": 8}, "run": {"PutObject": 9}, "seconds": 2.0, "cpu": 1.0, "archive": 5}
    requests = {"topic": "t", "wire": 1 << 30, "backup": verb, "restore": verb}
    scale: list[dict[str, object]] = [
        {"step": "run: planning", "seconds": 4.5, "peak_mib": 300, "partitions": 100_000},
        {"step": "open", "segments": 5},
    ]
    tables = report.tables(measured(row("pinned", "engine", 1.0), requests=requests, scale=scale))
    assert ("backup", "UploadPart", "grows with bytes", "8", "8,192") in tables["requests"].rows
    assert tables["scale"].rows == (("run: planning", "4.50", "300", "100,000", ""), ("open", "", "", "", "5"))
    assert ("6: planning, seconds", "100,000 partitions", "≤ 60", "4.5") in tables["figures"].rows
    assert tables["cores"].rows[0][2:5] == ("250.00", "250.00", "0.0")


def test_a_chart_has_a_line_for_each_series_and_the_limit() -> None:
    chart = line_chart("title", "x", "y", {"a": [(1, 100), (20, 110)], "b": [(1, 90)]}, 256)
    assert chart.count("<circle") == 3
    assert "limit 256" in chart
    assert chart.startswith("<svg")
    assert chart.endswith("</svg>\n")


def test_tables_go_to_a_pipe_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_tables(measured(row("backup", "engine", 1.0)))
    assert "== Backup" in capsys.readouterr().out


def test_samples_compare_by_value() -> None:
    assert replace(sample(1.0)) == sample(1.0)


def test_formats_are_put_beside_the_native_one() -> None:
    rows = [row("formats", who, work) for who, work in [("backup, Kafka", 1.0), ("backup, Avro", 4.0)]]
    table = report.tables(measured(*rows, row("formats", "convert, Kafka to Avro", 2.0)))["formats"]
    assert [(line[1], line[2], line[-1]) for line in table.rows] == [
        ("backup, Kafka", "1.00", "1.00"),
        ("backup, Avro", "4.00", "0.25"),
        ("convert, Kafka to Avro", "2.00", ""),
    ]


def test_decoding_is_put_beside_librdkafka_and_among_the_figures() -> None:
    found = measured(row("decode", "engine", 1.0), row("decode", "librdkafka", 5.0))
    assert [(line[1], line[-1]) for line in report.tables(found)["decode"].rows] == [
        ("engine", "5.00"),
        ("librdkafka", "1.00"),
    ]
    assert report.tables(found)["figures"].rows == (
        ("records taken apart, records/s of librdkafka", "zstd-1k", "≥ 4", "5.00"),
    )
