"""The commands `logkeep convert` and `logkeep import`: one archive out of another, and archives out of what other tools
wrote. Imports that take long happen inside the commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.common import (
    EXIT_CODES,
    MAX_FAULTS,
    Debug,
    Endpoint,
    Output,
    OutputFormat,
    Region,
    errors,
    facts,
    human_bytes,
    print_json,
    refuse,
    say,
    stdout,
    table,
)
from logkeep_engine.cli.running import Master, RunId, end, leave, on_spark, run_id_or_new
from logkeep_engine.contract.spec import (
    AvroCodec,
    BatchCompression,
    Compatibility,
    Compression,
    FormatName,
    FormatOptions,
    parse_quantity,
)
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.convert.run import ConvertOptions, ConvertResult
    from logkeep_engine.convert.source import Source
    from logkeep_engine.report import Reporter
    from logkeep_engine.storage import Storage
    from logkeep_engine.tasks import TaskRunner

MAX_LOSSES = 50
MIN_SEGMENT_BYTES = 1 << 20
MAX_SEGMENT_BYTES = 1 << 30

Job = Callable[[Callable[[], "TaskRunner"], "Reporter"], "ConvertResult"]

From = Annotated[
    str,
    typer.Argument(help="What is read: s3://bucket/prefix or file:///path.", metavar="SRC", show_default=False),
]
To = Annotated[str, typer.Argument(help="The new archive, in the same notation.", metavar="DST", show_default=False)]
MaybeTo = Annotated[
    str | None,
    typer.Argument(
        help="The new archive; without it SRC becomes one where it lies.", metavar="[DST]", show_default=False
    ),
]
Format = Annotated[FormatName, typer.Option("--format", help="Format of the new archive.", show_default=False)]
MaybeFormat = Annotated[
    FormatName | None, typer.Option("--format", help="Format of the new archive; by default that of SRC.")
]
Topics = Annotated[
    list[str], typer.Option("--topic", help="Regular expression of whole names; only these. Repeatable.")
]
Exclude = Annotated[
    list[str], typer.Option("--exclude", help="Regular expression of whole names; not these. Repeatable.")
]
Segments = Annotated[str | None, typer.Option("--segment-bytes", help="Size of new segments; 128Mi by default.")]
WholeCompression = Annotated[
    Compression | None,
    typer.Option("--compression", help="Kafka: segments compressed as a whole besides; Passthrough by default: not."),
]
BatchCodec = Annotated[
    BatchCompression | None,
    typer.Option("--batch-compression", help="Kafka: of batches that are made from records; Zstd by default."),
]
Compat = Annotated[
    Compatibility | None,
    typer.Option("--compatibility", help="Avro: lossless (default), or strict: the published schema."),
]
BlockCodec = Annotated[AvroCodec | None, typer.Option("--codec", help="Avro: of the blocks of an object.")]
AllowLoss = Annotated[bool, typer.Option("--allow-loss", help="Strict: go on when it cannot hold what records carry.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; say what would be lost.")]
TargetEndpoint = Annotated[str | None, typer.Option(help="URL of the S3 server of DST; by default that of --endpoint.")]
TargetRegion = Annotated[str | None, typer.Option(help="Region of the bucket of DST; by default that of --region.")]
Mend = Annotated[
    bool,
    typer.Option("--repair", help="Cut torn tails off and make wrong indexes again; the originals are kept."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `logkeep`."""
    app.command(epilog=EXIT_CODES)(convert)
    app.command("import", epilog=EXIT_CODES)(import_)


def convert(
    source: From,
    target: To,
    format_name: Format,
    topic: Topics = [],  # noqa: B006 (typer makes a new list)
    exclude: Exclude = [],  # noqa: B006
    segment_bytes: Segments = None,
    compression: WholeCompression = None,
    batch_compression: BatchCodec = None,
    compatibility: Compat = None,
    codec: BlockCodec = None,
    allow_loss: AllowLoss = False,
    dry_run: DryRun = False,
    run_id: RunId = None,
    master: Master = "local[2]",
    endpoint: Endpoint = None,
    region: Region = None,
    target_endpoint: TargetEndpoint = None,
    target_region: TargetRegion = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Make an archive of any format out of an archive of any format. SRC is not changed.

    Doing it again adds what SRC has gained. What the new format cannot hold of records is found before anything is
    written, and refused without --allow-loss.
    """
    with errors(debug):
        from logkeep_engine.convert.run import run_convert
        from logkeep_engine.convert.source import archive_source
        from logkeep_engine.storage import open_uri

        options = convert_options(
            format_name, segment_bytes, compression, batch_compression, compatibility, codec, allow_loss
        )
        chosen = topic_chooser(topic, exclude)
        here = open_uri(source, endpoint, region)
        there = _open_target(target, endpoint, region, target_endpoint, target_region)
        run = run_id_or_new(run_id)

        def prepare(runner_factory: Callable[[], TaskRunner], reporter: Reporter) -> Source:
            found = archive_source(here)
            if found.format is FormatName.KAFKA and format_name is FormatName.KAFKA:
                _check_copy(segment_bytes, batch_compression)
            return chosen(found)

        job = partial(run_convert, run, prepare, there, options, dry_run=dry_run)
        _perform(run, "Convert", master, [here, there], job, output)


def import_(
    source: From,
    target: MaybeTo = None,
    format_name: MaybeFormat = None,
    repair: Mend = False,
    topic: Topics = [],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
    segment_bytes: Segments = None,
    compression: WholeCompression = None,
    batch_compression: BatchCodec = None,
    compatibility: Compat = None,
    codec: BlockCodec = None,
    allow_loss: AllowLoss = False,
    dry_run: DryRun = False,
    run_id: RunId = None,
    master: Master = "local[2]",
    endpoint: Endpoint = None,
    region: Region = None,
    target_endpoint: TargetEndpoint = None,
    target_region: TargetRegion = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Make an archive of what another tool wrote: folders of the Records or the Avro format, or a backup of
    osodevops/kafka-backup (that one needs DST and --format).

    Everything is read and checked first. Without DST, archive.json and a catalog are added where SRC lies, and nothing
    else of it is changed but missing indexes.
    """
    with errors(debug):
        from logkeep_engine.convert.imported import adopt, foreign_source
        from logkeep_engine.convert.run import run_convert
        from logkeep_engine.storage import open_uri

        run = run_id_or_new(run_id)
        here = open_uri(source, endpoint, region)
        if target is None:
            refuse(
                {
                    "--format": format_name,
                    "--topic": topic,
                    "--exclude": exclude,
                    "--segment-bytes": segment_bytes,
                    "--compression": compression,
                    "--batch-compression": batch_compression,
                    "--compatibility": compatibility,
                    "--codec": codec,
                    "--allow-loss": allow_loss,
                    "--target-endpoint": target_endpoint,
                    "--target-region": target_region,
                },
                "has no effect: what is imported where it lies is imported as it is",
                hint="Name DST to make another archive.",
            )
            in_place = partial(adopt, run, here, repair=repair, dry_run=dry_run)
            _perform(run, "Import", master, [here], in_place, output)
            return
        there = _open_target(target, endpoint, region, target_endpoint, target_region)
        chosen = topic_chooser(topic, exclude)
        format_name = format_name or _format_of(here)
        options = convert_options(
            format_name, segment_bytes, compression, batch_compression, compatibility, codec, allow_loss
        )
        find = foreign_source(here, repair=repair)

        def prepare(runner_factory: Callable[[], TaskRunner], reporter: Reporter) -> Source:
            return chosen(find(runner_factory, reporter))

        job = partial(run_convert, run, prepare, there, options, dry_run=dry_run, kind="Import")
        _perform(run, "Import", master, [here, there], job, output)


def convert_options(
    format_name: FormatName,
    segment_bytes: str | None = None,
    compression: Compression | None = None,
    batch_compression: BatchCompression | None = None,
    compatibility: Compatibility | None = None,
    codec: AvroCodec | None = None,
    allow_loss: bool = False,
) -> ConvertOptions:
    """What the options say together; those that are not given are None. Raises SpecError, which names the one that
    does not fit."""
    from logkeep_engine.convert.run import ConvertOptions
    from logkeep_engine.log.compression import Codec

    of_format: dict[FormatName, dict[str, object]] = {
        FormatName.KAFKA: {"--compression": compression, "--batch-compression": batch_compression},
        FormatName.AVRO: {"--compatibility": compatibility, "--codec": codec},
    }
    for other, options in of_format.items():
        if other is not format_name:
            refuse(options, f"is an option of format {other}, not of {format_name}")
    if compatibility is not Compatibility.STRICT:
        refuse({"--allow-loss": allow_loss}, "has no effect: only --compatibility strict can lose what records carry")
    made = ConvertOptions(
        format_name, format_options=FormatOptions(allow_loss=allow_loss, compatibility=compatibility, codec=codec)
    )
    return replace(
        made,
        segment_bytes=made.segment_bytes if segment_bytes is None else _segment_bytes(segment_bytes),
        compression=compression or made.compression,
        codec=made.codec if batch_compression is None else Codec[batch_compression.name],
    )


def _segment_bytes(text: str) -> int:
    try:
        size = parse_quantity(text)
    except ValueError as error:
        raise SpecError(f"--segment-bytes {text!r}: {error}", hint="Write a number of bytes, such as 128Mi.") from error
    if not MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES:
        raise SpecError(f"--segment-bytes {text}: must be 1Mi to 1Gi")
    return size


def topic_chooser(include: Sequence[str], exclude: Sequence[str]) -> Callable[[Source], Source]:
    """Takes what is wanted of a source. Raises SpecError for what is no regular expression, and later if nothing is."""
    wanted, unwanted = _patterns("--topic", include), _patterns("--exclude", exclude)

    def choose(source: Source) -> Source:
        from logkeep_engine.convert.source import select

        if not wanted and not unwanted:
            return source
        names = {
            topic.name
            for topic in source.topics
            if (not wanted or any(one.fullmatch(topic.name) for one in wanted))
            and not any(one.fullmatch(topic.name) for one in unwanted)
        }
        if not names:
            raise SpecError(
                f"--topic and --exclude leave none of the {len(source.topics)} topics",
                hint="They are regular expressions for whole names.",
            )
        return select(source, frozenset(names))

    return choose


def _patterns(option: str, texts: Sequence[str]) -> list[re.Pattern[str]]:
    patterns = []
    for text in texts:
        try:
            patterns.append(re.compile(text))
        except re.error as error:
            raise SpecError(f"{option} {text!r} is no regular expression: {error}") from error
    return patterns


def _check_copy(segment_bytes: str | None, batch_compression: BatchCompression | None) -> None:
    refuse(
        {"--segment-bytes": segment_bytes, "--batch-compression": batch_compression},
        "has no effect: from Kafka to Kafka segments are copied with their batches as they are",
        hint="Leave it out; --compression says whether segments are compressed as a whole.",
    )


def _open_target(
    target: str, endpoint: str | None, region: str | None, target_endpoint: str | None, target_region: str | None
) -> Storage:
    from logkeep_engine.storage import open_uri

    opened = open_uri(target, target_endpoint or endpoint, target_region or region)
    if opened.uri.startswith("file:"):
        given = {"--target-endpoint": target_endpoint, "--target-region": target_region}
        refuse(given, "has no effect: DST is a folder")
    return opened


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


# ---- running it


def _perform(run_id: str, kind: str, master: str, storages: Sequence[Storage], job: Job, output: Output) -> None:
    s3 = any(storage.uri.startswith("s3://") for storage in storages)
    with on_spark(run_id, kind, master, s3=s3) as (session, reporter):
        done = job(session.runner, reporter)
        end(session, reporter, done.result)
    _print(done, output)
    leave(done.result)


def _print(done: ConvertResult, output: Output) -> None:
    if output is Output.JSON:
        document: dict[str, Any] = json.loads(done.result.to_json())
        document |= {"dryRun": done.dry_run, "losses": done.losses.rows(), "faults": list(done.faults)}
        print_json(document)
    else:
        _print_text(done)
    for warning in done.result.warnings:
        say(f"warning: {warning}")
    for fault in done.faults[:MAX_FAULTS] if len(done.faults) > 1 else ():
        say(f"fault: {fault}")
    if done.result.outcome != "Succeeded":
        say(f"error: {done.result.message}")


def _print_text(done: ConvertResult) -> None:
    out, result = stdout(), done.result
    if result.outcome != "Succeeded":
        return
    if not done.dry_run:
        rows = (
            ("run", result.run_id),
            ("outcome", result.outcome),
            ("topics", str(result.topics)),
            ("partitions", str(result.partitions)),
            ("records", str(result.records)),
            ("bytes", f"{result.bytes} ({human_bytes(result.bytes)})"),
            ("segments", str(result.segments)),
            ("groups", str(result.groups)),
            ("seconds", f"{result.end_time - result.start_time:.1f}"),
            ("archive", result.archive_id),
        )
        out.print(facts(rows))
    losses = done.losses.losses
    if losses:
        lost = table("what is lost", "topic", "partition", "count", "first offset")
        for loss in losses[:MAX_LOSSES]:
            lost.add_row(loss.kind.value, loss.topic, str(loss.partition), str(loss.count), str(loss.offset))
        out.print(lost)
        if len(losses) > MAX_LOSSES:
            say(f"and {len(losses) - MAX_LOSSES} more losses: -o json has all")
    elif done.dry_run:
        print("nothing is lost")
