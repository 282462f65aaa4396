"""The command `logkeep import`: makes archives out of what other tools wrote.

Imports that take long happen inside the command.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.converting import DryRun, From, NewArchive, Servers, before, perform, topic_chooser
from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, options_of, refuse, spread
from logkeep_engine.cli.running import SparkOptions
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.convert.source import ConvertSource
    from logkeep_engine.report import Reporter
    from logkeep_engine.storage import Storage
    from logkeep_engine.tasks import TaskRunner

MaybeTo = Annotated[
    str | None,
    typer.Argument(
        help="The new archive; without it SRC becomes an archive in place.", metavar="DST", show_default=False
    ),
]
MaybeFormat = Annotated[
    FormatName | None, typer.Option("--format", help="Format of the new archive; by default that of SRC.")
]
Mend = Annotated[
    bool,
    typer.Option("--repair", help="Cut off torn tails and rebuild wrong indexes; the originals are kept."),
]


@spread
def import_(
    source: From,
    target: MaybeTo = None,
    format_name: MaybeFormat = None,
    repair: Mend = False,
    *,
    new: NewArchive,
    dry_run: DryRun = False,
    spark: SparkOptions,
    servers: Servers,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Make an archive of what another tool wrote: folders of the Records or the Avro format, or a backup of
    osodevops/kafka-backup (that one needs DST and --format).

    Everything is read and checked first. Without DST, archive.json and a catalog are added where SRC lies, and nothing
    else of it is changed but missing indexes.
    """
    with errors(debug), before("Import", spark, output, dry_run=dry_run):
        from logkeep_engine.convert.imported import adopt, foreign_source
        from logkeep_engine.convert.run import run_convert

        run = spark.run_id_or_new()
        here = servers.storage(source)
        if target is None:
            refuse(
                {"--format": format_name, **options_of(replace(new, digest=None)), **servers.target},
                "has no effect: an import in place changes nothing",
                hint="Name DST to make another archive.",
            )
            in_place = partial(adopt, run, here, repair=repair, dry_run=dry_run, digest=new.digest)
            perform(run, "Import", spark.master, [here], in_place, output)
            return
        there = servers.target_storage(target)
        choose = topic_chooser(new.topic, new.exclude)
        options = new.options(format_name or _format_of(here))
        find = foreign_source(here, repair=repair)

        def prepare(runner_factory: Callable[[], TaskRunner], reporter: Reporter) -> ConvertSource:
            return choose(find(runner_factory, reporter))

        job = partial(run_convert, run, prepare, there, options, dry_run=dry_run, kind="Import")
        perform(run, "Import", spark.master, [here, there], job, output)


def _format_of(storage: Storage) -> FormatName:
    from logkeep_engine.convert.folder import manifests, scan

    storage.check()
    objects = storage.list()
    if manifests(objects):
        raise SpecError(
            "--format: required, since no archive can have the format of osodevops/kafka-backup",
            hint="Write --format Kafka, which keeps the most.",
        )
    return scan(objects, storage.uri).format
