"""The command `logkeep convert`: makes an archive out of another one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.converting import DryRun, From, NewArchive, Servers, before, perform, topic_chooser
from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, refuse, spread
from logkeep_engine.cli.running import SparkOptions
from logkeep_engine.contract.archive_format import FormatName

if TYPE_CHECKING:
    from logkeep_engine.convert.source import ConvertSource
    from logkeep_engine.report import Reporter
    from logkeep_engine.tasks import TaskRunner

To = Annotated[str, typer.Argument(help="The new archive, in the same notation.", metavar="DST", show_default=False)]
Format = Annotated[FormatName, typer.Option("--format", help="Format of the new archive.", show_default=False)]


@spread
def convert(
    source: From,
    target: To,
    format_name: Format,
    *,
    new: NewArchive,
    dry_run: DryRun = False,
    spark: SparkOptions,
    servers: Servers,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Make an archive of any format out of an archive of any format. SRC is not changed.

    Doing it again adds what SRC has gained. What the new format cannot hold of records is found before anything is
    written, and refused without --allow-loss.
    """
    with errors(debug), before("Convert", spark, output, dry_run=dry_run):
        from logkeep_engine.convert.run import run_convert
        from logkeep_engine.convert.source import archive_source

        options = new.options(format_name)
        choose = topic_chooser(new.topic, new.exclude)
        here = servers.storage(source)
        there = servers.target_storage(target)
        run = spark.run_id_or_new()

        def prepare(runner_factory: Callable[[], TaskRunner], reporter: Reporter) -> ConvertSource:
            found = archive_source(here)
            if found.format is FormatName.KAFKA and format_name is FormatName.KAFKA:
                _check_copy(new)
            return choose(found)

        job = partial(run_convert, run, prepare, there, options, dry_run=dry_run)
        perform(run, "Convert", spark.master, [here, there], job, output)


def _check_copy(new: NewArchive) -> None:
    refuse(
        {"--segment-bytes": new.segment_bytes, "--batch-compression": new.batch_compression},
        "has no effect: from Kafka to Kafka segments are copied with their batches as they are",
        hint="Leave it out; --compression says whether segments are compressed as a whole.",
    )
