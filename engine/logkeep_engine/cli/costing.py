"""The command `logkeep inspect --cost` prints what an archive costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.options import Output, options_of, refuse
from logkeep_engine.cli.output import facts, print_json, say, stdout, table
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.archive.maintenance.cost.archive_cost import ArchiveCost
    from logkeep_engine.archive.maintenance.retention import RetentionLimits
    from logkeep_engine.contract.prices import Prices
    from logkeep_engine.contract.retention import Retention

_WITH_COST = "With --cost: "


@dataclass(frozen=True)
class CostOptions:
    """Which facts to show about the cost of an archive."""

    cost: Annotated[
        bool,
        typer.Option("--cost", help="Show what is stored, the requests of runs, the growth, and what they cost."),
    ] = False
    prices: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"{_WITH_COST}the prices of the object store, as YAML.")
    ] = None
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"{_WITH_COST}also write it as a page with plots.")
    ] = None
    max_age: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help=f"{_WITH_COST}what retention with this maxAge would save, such as 30d."),
    ] = None
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help=f"{_WITH_COST}what retention with this maxBytes would save, such as 1Ti."),
    ] = None

    def refuse_without_cost(self) -> None:
        """Raises SpecError if an option for the cost was given, but not the one for the cost."""
        refuse(options_of(self), "has no effect: it is for --cost")

    def retention(self, spec: Retention | None) -> Retention | None:
        """Return the retention that the options give, else that of `spec`. Raises SpecError."""
        from pydantic import ValidationError

        from logkeep_engine.contract.retention import Retention

        given = {"maxAge": self.max_age, "maxBytes": self.max_bytes}
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            return spec
        try:
            return Retention.model_validate(given)
        except ValidationError as error:
            problem = error.errors()[0]
            option = {"maxAge": "--max-age", "maxBytes": "--max-bytes"}[str(problem["loc"][0])]
            raise SpecError(f"{option}: {str(problem['msg']).removeprefix('Value error, ')}") from error


def show_cost(
    archive: Archive, options: CostOptions, output: Output, spec: Retention | None = None, prices: Prices | None = None
) -> None:
    """Print what an archive costs, and write it as a page if that is asked for. `spec` and `prices` are what resources
    say where no option does. Raises SpecError, and what the storage raises."""
    from logkeep_engine.archive.history.compacted import with_snapshots
    from logkeep_engine.archive.maintenance.cost.estimate import CostQuestion, cost_of
    from logkeep_engine.archive.reading.visible import shows

    prices = prices if options.prices is None else read_prices(options.prices)
    asked = CostQuestion(prices, _limits(options.retention(spec)))
    state = archive.load()
    found = cost_of(archive, state, asked, time.time_ns() // 1_000_000, shows(archive.storage, with_snapshots(state)))
    if options.html is not None:
        _write_page(options.html, found)
    if output is Output.JSON:
        print_json(found.to_json())
    else:
        _print_cost(found)


def read_prices(file: str) -> Prices:
    """Return the prices in a YAML file (`-`: standard input). Raises SpecError that names the file and the field."""
    from logkeep_engine.cli.documents import name_of, read_yaml
    from logkeep_engine.contract.parsing import SpecInvalid, parse_model
    from logkeep_engine.contract.prices import Prices

    documents = read_yaml(file, "--prices")
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise SpecError(f"{name_of(file)}: holds no prices", hint="It must hold one YAML mapping: see docs/cli.md.")
    try:
        return parse_model(Prices, documents[0])
    except SpecInvalid as error:
        problems = [(f"{name_of(file)}: {path.removeprefix('spec.')}", what) for path, what in error.problems]
        raise SpecInvalid(problems) from None


def _limits(retention: Retention | None) -> RetentionLimits | None:
    from logkeep_engine.archive.maintenance.retention import RetentionLimits

    if retention is None or (retention.max_age is None and retention.max_bytes is None):
        return None
    age = retention.max_age_seconds
    return RetentionLimits(max_age=None if age is None else age * 1000, max_bytes=retention.max_bytes_int)


def _write_page(file: str, cost: ArchiveCost) -> None:
    from logkeep_engine.archive.maintenance.cost.page import page_of

    try:
        Path(file).write_text(page_of(cost), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--html {file}: {error.strerror}", hint="Name a file that can be written.") from error
    say(f"wrote {file}")


def _print_cost(cost: ArchiveCost) -> None:
    from logkeep_engine.archive.maintenance.cost.words import (
        CostWords,
        operations_of,
        projected_of,
        summary_of,
        topic_heads,
        topics_of,
    )

    words, out = CostWords(cost), stdout()
    out.print(facts((name, value) for name, value in summary_of(cost, words)))
    tables = [
        (topic_heads(cost), topics_of(cost, cost.topics, words)),
        operations_of(cost, words),
        projected_of(cost, words),
    ]
    for heads, rows in tables:
        shown = table(*heads)
        for row in rows:
            shown.add_row(*row)
        out.print(shown)
