"""The command `logkeep log diff`: compares the committed records of two archives, or of one and live topics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.log.options import Chosen, Form
from logkeep_engine.cli.options import Debug, SecurityOptions, Server, spread
from logkeep_engine.cli.output import print_json, print_line
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.compare.streams import PlacedDifference, Side, StreamComparison

MAX_DIFFERENCES = 20


class Ignored(StrEnum):
    HEADERS = "headers"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True)
class DiffRules:
    """The rules of a comparison: which topics belong together, and what of their records must be equal."""

    rename: Annotated[
        list[str] | None, typer.Option(help="a=b: topic a of A is topic b on the other side.", show_default=False)
    ] = None
    offsets: Annotated[bool, typer.Option("--offsets", help="Offsets must be equal too.")] = False
    ignore: Annotated[list[Ignored] | None, typer.Option(help="Not compared. Repeatable.", show_default=False)] = None


@spread
def diff(
    a: Annotated[str, typer.Argument(help="An archive, or a broker's log folders.", metavar="A", show_default=False)],
    b: Annotated[str | None, typer.Argument(help="The other one.", metavar="B", show_default=False)] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option(help="Compare with the live topics of this cluster, host:port[,host:port] (not B).")
    ] = None,
    *,
    security: SecurityOptions,
    chosen: Chosen,
    compared: DiffRules,
    limit: Annotated[int, typer.Option(min=0, help="Differences that are printed; all are counted.")] = MAX_DIFFERENCES,
    server: Server,
    form: Form,
    debug: Debug = False,
) -> None:
    """Compare the committed records of two archives, or of an archive and live topics. Exit code 6 if they differ."""
    with errors(debug), ExitStack() as stack:
        from logkeep_engine.compare.streams import Rules, StreamComparison
        from logkeep_engine.toolbox.diff import ArchiveSide, live_side

        if (b is None) == (bootstrap_server is None):
            raise SpecError("one of B and --bootstrap-server must be given", hint="A is compared with exactly one.")
        if b is not None:
            security.refuse_without("--bootstrap-server")
        renames = _renames(compared.rename)
        left = ArchiveSide(chosen.source_in_place(a, server))
        for name in sorted(renames.keys() - left.topics):
            what = f"--rename {name}={renames[name]} has no effect: {a} has no topic {name}"
            raise SpecError(what, hint="Leave it out.")
        names = {renames.get(name, name) for name in left.topics}
        right: Side
        if b is not None:
            wanted = [renames.get(name, name) for name in chosen.topic] if chosen.topic else None
            right = other = ArchiveSide(replace(chosen, topic=wanted).source_in_place(b, server))
            names |= other.topics
        else:
            connection = security.connection("--bootstrap-server", bootstrap_server or "")
            right = stack.enter_context(live_side(connection, names, chosen.partition or ()))
        if not names:
            raise SpecError("there is no topic to compare", hint="Name an archive or a log folder that has one.")
        ignored = frozenset(item.value for item in compared.ignore or ())
        rules = Rules(offsets=compared.offsets, ignore=ignored, rename=renames, shown=limit)
        comparison = StreamComparison(left, right, rules)
        _print(comparison, limit, form)
        if not comparison.counts.same:
            raise typer.Exit(int(ExitCode.DIFFERS))


def _print(comparison: StreamComparison, limit: int, form: Form) -> None:
    """Go through the comparison, which finds the differences while it is asked for them."""
    first: list[PlacedDifference] = []
    found = 0
    for difference in comparison:
        found += 1
        if found <= limit:
            first.append(difference)
            if not form.json:
                print_line(difference)
    counts = comparison.counts
    if form.json:
        print_json({"same": counts.same, **counts.to_json(), "differences": [item.to_json() for item in first]})
        return
    if found > len(first):
        print_line(f"and {found - len(first)} more")
    print_line(
        f"{'same' if counts.same else 'different'}: {so_many(counts.partitions, 'partition')} compared, "
        f"{so_many(counts.equal, 'record')} equal, {counts.different} different, {counts.only_a} only in A, "
        f"{counts.only_b} only in B; partitions only in A {counts.partitions_only_a}, "
        f"only in B {counts.partitions_only_b}"
    )


def _renames(pairs: Sequence[str] | None) -> dict[str, str]:
    renames: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, other = pair.partition("=")
        if not equals or not name or not other or name in renames:
            raise SpecError(f"--rename {pair!r}: give two names with = between them, each topic once")
        renames[name] = other
    if len(set(renames.values())) < len(renames):
        raise SpecError("--rename: two topics of A have the same name on the other side")
    return renames
