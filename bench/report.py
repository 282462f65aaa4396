"""Results as tables: on the terminal, and in docs/benchmarks.md.

    python -m bench.report [RESULTS.json ...]   writes the tables of docs/benchmarks.json into the marked sections of
                                                docs/benchmarks.md; files that are given are published there before,
                                                several runs of one machine as one
    python -m bench.report --formats RESULTS.json ...   the same with docs/benchmarks-formats.json, for the tables of
                                                decoding and of formats

A marked section lies between `<!-- bench:NAME -->` and `<!-- /bench -->`; what is between is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import results
from bench.figures import lines, ratio
from bench.plot import line_chart
from bench.requests import per_tib
from bench.results import Results, Row
from logkeep_engine.contract.model import replace

DOCS = Path(__file__).parents[1] / "docs"
PUBLISHED = DOCS / "benchmarks.json"
PUBLISHED_FORMATS = DOCS / "benchmarks-formats.json"  # measured on another machine than the others
PAGE = DOCS / "benchmarks.md"
PLOT = DOCS / "benchmarks-memory.svg"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; numbers are to be set flush right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table in Markdown."""
        align = ["---" if number < _LEFT else "---:" for number in range(len(self.head))]
        lines = [self.head, tuple(align), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def text(self) -> str:
        """The table as plain text in columns."""
        widths = [max(len(row[n]) for row in (self.head, *self.rows)) for n in range(len(self.head))]
        lines = []
        for row in (self.head, *self.rows):
            cells = [
                cell.ljust(width) if n < _LEFT else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([f"== {self.title}", *lines])


_LEFT = 2  # columns of words before the columns of numbers


# ---- cells


def seconds(row: Row, name: str) -> str:
    """Median and spread of a time: `1.23 (1.20–1.31)`."""
    middle, spread = row.median(name), row.spread(name)
    if middle is None or spread is None:
        return ""
    if len(row.samples) == 1:
        return f"{middle:.2f}"
    return f"{middle:.2f} ({spread[0]:.2f}–{spread[1]:.2f})"


def megabytes(size: float | None) -> str:
    """Bytes as MB of 10^6."""
    return "" if size is None else f"{size / 1e6:,.0f}"


# ---- tables


def moved(found: Results, section: str, title: str) -> Table | None:
    """Rows of backups or restores."""
    rows = found.section(section)
    if not rows:
        return None
    head = (
        "topic", "who", "work s", "whole process s", "start s", "CPU s", "broker CPU s", "peak MB", "MB/s", "records/s",
        "archive MB", "× floor", "× peer",
    )  # fmt: skip
    peer = _peer_name(found)
    order = {name: number for number, name in enumerate(found.topics)}
    lines = []
    for row in sorted(rows, key=lambda row: (order.get(row.topic, 99), row.where)):
        floor = found.find(section, row.topic, "floor")
        other = found.find(section, row.topic, peer, row.where)
        where = "" if row.where == "file" else f", {row.where.upper()}"
        lines.append(
            (
                row.topic,
                row.who + where,
                seconds(row, "work"),
                seconds(row, "wall"),
                seconds(row, "start"),
                seconds(row, "cpu"),
                seconds(row, "broker_cpu"),
                _above_bare(found, row),
                f"{row.mb_per_second:,.0f}",
                f"{row.records_per_second:,.0f}",
                megabytes(row.median("archive")),
                ratio(row.mb_per_second, floor.mb_per_second if floor else None),
                ratio(row.records_per_second, other.records_per_second if other else None),
            )
        )
    return Table(title, head, tuple(lines))


def trust_table(found: Results) -> Table | None:
    """Whole processes: a restore of everything, one to a point, and a drill of the same archive."""
    lines = []
    for row in found.section("trust"):
        whole, everything = row.median("wall"), found.find("trust", row.topic, "restore of everything")
        lines.append(
            (
                row.topic,
                row.who,
                f"{row.median('records') or 0:,.0f}",
                seconds(row, "wall"),
                seconds(row, "work"),
                seconds(row, "cpu"),
                seconds(row, "broker_cpu"),
                _above_bare(found, row),
                ratio(whole or 0, everything.median("wall") if everything else None),
            )
        )
    head = (
        "topic", "who", "records", "whole process s", "records moved s", "CPU s", "broker CPU s", "peak MB",
        "× restore of everything",
    )  # fmt: skip
    return Table("A point in time, and a drill", head, tuple(lines)) if lines else None


def decode_table(found: Results) -> Table | None:
    """Records taken apart and dropped, beside librdkafka."""
    lines = []
    for row in found.section("decode"):
        other = found.find("decode", row.topic, "librdkafka")
        lines.append(
            (
                row.topic,
                row.who,
                seconds(row, "work"),
                seconds(row, "cpu"),
                seconds(row, "broker_cpu"),
                _above_bare(found, row),
                f"{row.mb_per_second:,.0f}",
                f"{row.records_per_second:,.0f}",
                ratio(row.records_per_second, other.records_per_second if other else None),
            )
        )
    head = ("topic", "who", "work s", "CPU s", "broker CPU s", "peak MB", "MB/s", "records/s", "× librdkafka")
    return Table("Records taken apart", head, tuple(lines)) if lines else None


def format_table(found: Results) -> Table | None:
    """Backups, restores and conversions by format, beside the same of format Kafka."""
    lines = []
    for row in found.section("formats"):
        verb, _, _ = row.who.partition(", ")
        other = found.find("formats", row.topic, f"{verb}, Kafka")
        lines.append(
            (
                row.topic,
                row.who,
                seconds(row, "work"),
                seconds(row, "wall"),
                seconds(row, "cpu"),
                _above_bare(found, row),
                f"{row.mb_per_second:,.0f}",
                f"{row.records_per_second:,.0f}",
                megabytes(row.median("archive")),
                ratio(row.records_per_second, other.records_per_second if other else None),
            )
        )
    head = (
        "topic", "who", "work s", "whole process s", "CPU s", "peak MB", "MB/s", "records/s", "archive MB", "× Kafka",
    )  # fmt: skip
    return Table("The formats", head, tuple(lines)) if lines else None


def _above_bare(found: Results, row: Row) -> str:
    peak = row.median("peak")
    return "" if peak is None else f"{(peak - found.bare) / 1e6:,.0f}"


def figures(found: Results, *apart: Results) -> Table | None:
    """The figures that the design asks for, as far as they were measured, here or in runs of another machine."""
    measured = tuple(line for run in (found, *apart) for line in lines(run, _peer_name(run)))
    return Table("The figures of the design", ("figure", "topic", "wanted", "measured"), measured) if measured else None


def _peer_name(found: Results) -> str:
    return str(found.facts.get("peer", {}).get("name", ""))


def cores(found: Results) -> Table | None:
    """The rate that N executor cores would reach if the brokers kept up, from the CPU that the pinned task took."""
    lines = []
    for row in found.section("pinned"):
        task, broker, wire = row.median("work_cpu"), row.median("broker_cpu"), row.median("wire")
        if row.who in ("engine", "floor") and task and broker and wire:
            per_gb, broker_per_gb = task / wire * 1e9, broker / wire * 1e9
            rates = [f"{n / per_gb:.1f}" for n in (1, 2, 4, 8, 16)]
            lines.append((row.topic, row.who, f"{per_gb:.2f}", f"{broker_per_gb:.2f}", *rates))
    head = ("topic", "who", "task CPU s/GB", "broker CPU s/GB", *(f"{n} cores GB/s" for n in (1, 2, 4, 8, 16)))
    return Table("What the CPU of tasks allows", head, tuple(lines)) if lines else None


def request_table(found: Results) -> Table | None:
    """Requests to S3, measured and for a TiB."""
    facts = found.facts.get("requests")
    if not facts:
        return None
    lines = []
    wire = facts["wire"]
    for verb in ("backup", "restore"):
        for kind, title in (("segments", "grows with bytes"), ("run", "once a run")):
            for name, number in sorted(facts[verb][kind].items()):
                scaled = f"{per_tib(number, wire):,.0f}" if kind == "segments" else f"{number}"
                lines.append((verb, name, title, f"{number}", scaled))
        lines.append((verb, "executor-seconds", "grows with bytes", f"{facts[verb]['seconds']:.1f}",
                      f"{per_tib(facts[verb]['seconds'], wire):,.0f}"))  # fmt: skip
        lines.append((verb, "executor CPU seconds", "grows with bytes", f"{facts[verb]['cpu']:.1f}",
                      f"{per_tib(facts[verb]['cpu'], wire):,.0f}"))  # fmt: skip
    title = f"Requests to S3 for {wire / 1e9:.2f} GB of {facts['topic']}"
    return Table(title, ("run", "request", "kind", "measured", "for a TiB"), tuple(lines))


def scale_table(found: Results) -> Table | None:
    """Planning, commits and opening at scale, as `bench.scale` measured them."""
    rows = found.facts.get("scale")
    if not rows:
        return None
    head = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(
        "Many partitions and segments", head, tuple(tuple(_cell(row.get(name)) for name in head) for row in rows)
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def parts_table(found: Results) -> Table | None:
    """The table of what single steps cost."""
    lines = [("one thread", row["step"], f"{row['CPU s/GB']:.3f}") for row in found.facts.get("parts", ())]
    return Table("What the steps cost", ("where", "step", "CPU s/GB"), tuple(lines)) if lines else None


def digest_table(found: Results) -> Table | None:
    """The table of the digests of records."""
    lines = [
        (
            "one thread",
            row["topic"],
            f"{row['records/s'] / 1e6:.1f}",
            f"{row['with unpacking, records/s'] / 1e6:.1f}",
        )
        for row in found.facts.get("digest", ())
    ]
    head = ("where", "topic", "M records/s", "with unpacking, M records/s")
    return Table("Digests of records", head, tuple(lines)) if lines else None


def memory_table(found: Results) -> Table | None:
    """Peak memory against the size of a partition."""
    lines = [
        (row["what"], f"{row['gb']} GB", f"{(row['peak'] - found.bare) / 1e6:.0f}", f"{row['work']:.1f}")
        for row in found.facts.get("memory", ())
    ]
    head = ("task", "partition", "peak MB above the interpreter", "seconds")
    return Table("Memory of a task", head, tuple(lines)) if lines else None


def hostile_table(found: Results) -> Table | None:
    """Peak memory against data that unpack to far more than they take."""
    lines = [
        (row["what"], row["format"], row["topic"], f"{(row['peak'] - found.bare) / 1e6:.0f}", f"{row['work']:.1f}")
        for row in found.facts.get("hostile", ())
    ]
    head = ("task", "format", "topic", "peak MB above the interpreter", "seconds")
    return Table("Memory against hostile data", head, tuple(lines)) if lines else None


def memory_plot(found: Results) -> str:
    """The same as a chart, SVG."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in found.facts["memory"]:
        series.setdefault(row["what"], []).append((row["gb"], (row["peak"] - found.bare) / (1 << 20)))
    title = "Peak memory of a task above the interpreter"
    return line_chart(title, "size of the partition, GB", "MiB", series, 256)


_TABLES: dict[str, Callable[[Results], Table | None]] = {
    "figures": figures,
    "pinned": lambda found: moved(found, "pinned", "Backup, one core for the engine and one for the broker"),
    "backup": lambda found: moved(found, "backup", "Backup"),
    "restore": lambda found: moved(found, "restore", "Restore"),
    "scaling": lambda found: moved(found, "scaling", "One and two cores"),
    "cores": cores,
    "decode": decode_table,
    "formats": format_table,
    "trust": trust_table,
    "parts": parts_table,
    "digest": digest_table,
    "memory": memory_table,
    "hostile": hostile_table,
    "scale": scale_table,
    "requests": request_table,
}


_FORMAT_TABLES = ("decode", "formats")


def tables(found: Results) -> dict[str, Table]:
    """Every table there are figures for, by the name of its section."""
    made = {name: make(found) for name, make in _TABLES.items()}
    return {name: table for name, table in made.items() if table is not None}


def print_tables(found: Results) -> None:
    """To standard output: with rich on a terminal, else as plain text."""
    all_tables = tables(found).values()
    if not sys.stdout.isatty():
        print("\n\n".join(table.text() for table in all_tables))
        return
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    for table in all_tables:
        shown = RichTable(title=table.title)
        for number, name in enumerate(table.head):
            shown.add_column(name, justify="left" if number < _LEFT else "right")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)


# ---- the page


def fill(page: str, parts: dict[str, str]) -> str:
    """The page with its marked sections replaced; a section without figures keeps what it has."""
    for name, text in parts.items():
        begin, end = f"<!-- bench:{name} -->", "<!-- /bench -->"
        before, found, rest = page.partition(begin)
        if found:
            _, _, after = rest.partition(end)
            page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def main(arguments: Sequence[str]) -> int:
    """Publish results and write them into the page. With `--formats` before them, those of decoding and of formats."""
    only_formats = arguments[:1] == ["--formats"]
    target, names = (PUBLISHED_FORMATS, arguments[1:]) if only_formats else (PUBLISHED, arguments)
    if names:
        target.write_text(results.merge([results.read(Path(name)) for name in names]).to_json())
    found = results.read(PUBLISHED)
    parts = {"machine": _machine(found), **{name: table.markdown() for name, table in tables(found).items()}}
    if PUBLISHED_FORMATS.exists():
        apart = results.read(PUBLISHED_FORMATS)
        parts["machine-formats"] = _machine(apart)
        parts |= {name: table.markdown() for name, table in tables(apart).items() if name in _FORMAT_TABLES}
        if both := figures(found, replace(apart, facts={})):
            parts["figures"] = both.markdown()
    if "memory" in found.facts:
        PLOT.write_text(memory_plot(found))
    PAGE.write_text(fill(PAGE.read_text(), parts))
    return 0


def _machine(found: Results) -> str:
    facts = found.machine
    peer = found.facts.get("peer")
    others = f" The peer is {peer['name']} {peer['version']}." if peer else ""
    return (
        f"Measured {found.started} at commit {found.commit}: {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory'] / 1e9:.0f} GB, Linux {facts['kernel']}, Python {facts['python']}. A bare interpreter has "
        f"{found.bare / 1e6:.0f} MB; it is taken off every peak.{others}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
