"""The commands `logkeep log index …`: they check indexes against their logs, and make them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from logkeep_engine.cli.commands import Commands
from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.log.options import EXIT_CODES, Chosen, Form, Interval, Sources, Yes
from logkeep_engine.cli.options import Debug, Server, spread
from logkeep_engine.cli.output import print_json, print_line
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.values import so_many

if TYPE_CHECKING:
    from logkeep_engine.toolbox.index import Index

app = typer.Typer(
    name="index",
    cls=Commands,
    help="Check and rebuild indexes.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("check", epilog=EXIT_CODES)
@spread
def index_check(
    sources: Sources,
    *,
    chosen: Chosen,
    server: Server,
    form: Form,
    debug: Debug = False,
) -> None:
    """Hold indexes against their logs, as a broker checks them when it starts, and every entry. Exit code 6 if faults
    were found.
    """
    with errors(debug):
        documents: list[dict[str, Any]] = []
        count = faulty = 0
        for index in _survey(sources, chosen, server, None):
            count += 1
            faulty += bool(index.faults)
            if form.json:
                documents.append(_index_json(index))
            else:
                for fault in index.faults:
                    print_line(f"{index.name}: {fault}", flush=True)
        if form.json:
            print_json(documents)
        else:
            print_line(f"{so_many(count, 'index', 'indexes')}, {faulty} with faults")
        if faulty:
            raise typer.Exit(int(ExitCode.DIFFERS))


@app.command("rebuild", epilog=EXIT_CODES)
@spread
def index_rebuild(
    sources: Sources,
    *,
    chosen: Chosen,
    yes: Yes = False,
    interval_bytes: Interval = 4096,
    server: Server,
    form: Form,
    debug: Debug = False,
) -> None:
    """Make the indexes again that are not what their log says. In a log folder the old ones are kept as .bak, .bak.2
    and so on; in an archive an object gets back the bytes that the catalog knows. Exit code 6 if one could not be made,
    or, without --yes, if one would be.
    """
    with errors(debug):
        from logkeep_engine.toolbox.indexes import rewrite

        done: list[dict[str, Any]] = []
        left = False
        for index in _survey(sources, chosen, server, interval_bytes):
            if not index.stale:
                left = left or bool(index.faults)
                if index.faults:
                    done.append(_index_json(index) | {"done": False})
                continue
            kept = rewrite(index) if yes else ""
            done.append(_index_json(index) | {"done": yes} | ({"kept": kept} if kept else {}))
            left = left or not yes
        if form.json:
            print_json(done)
        else:
            for item in done:
                _print_rebuilt(item)
            if not done:
                print_line("nothing to do")
        if left:
            raise typer.Exit(int(ExitCode.DIFFERS))


def _print_rebuilt(item: Mapping[str, Any]) -> None:
    why = "; ".join(item["faults"]) or item["state"]
    if item["done"]:
        kept = f", the old one is {item['kept']}" if "kept" in item else ""
        print_line(f"{item['index']}: rewritten ({why}){kept}")
    elif item["canBeMade"]:
        print_line(f"{item['index']}: would be rewritten ({why})")
    else:
        print_line(f"{item['index']}: cannot be made ({why})")


def _survey(sources: Sequence[str], chosen: Chosen, server: Server, interval: int | None) -> Iterator[Index]:
    from logkeep_engine.log.segment import INDEX_INTERVAL_BYTES
    from logkeep_engine.toolbox.indexes import survey

    for where in sources:
        source = chosen.source(where, server)
        yield from survey(source, interval_bytes=INDEX_INTERVAL_BYTES if interval is None else interval)


def _index_json(index: Index) -> dict[str, Any]:
    return {
        "index": index.name,
        "topic": index.topic,
        "partition": index.partition,
        "state": index.state.value,
        "canBeMade": index.made is not None,
        "faults": list(index.faults),
    }
