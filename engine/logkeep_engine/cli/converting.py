"""The commands `convert` and `import` share this module: options of the new archive, the run, and what the user sees of
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import say_failure
from logkeep_engine.cli.options import WHOLE_NAMES, Output, Server, origin, pattern, refuse, refuse_unmatched
from logkeep_engine.cli.output import facts, print_json, print_line, say, say_damage, stdout, table
from logkeep_engine.cli.running import (
    SparkOptions,
    end,
    failing_as_json,
    leave,
    on_spark,
    rows_of_counts,
    say_warnings,
    seconds,
)
from logkeep_engine.contract.archive_format import (
    AvroCodec,
    Compatibility,
    Compression,
    DigestAlgorithm,
    FormatName,
    FormatOptions,
)
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import BatchCompression
from logkeep_engine.contract.values import parse_segment_bytes, so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.convert.run import ConvertOptions, ConvertResult
    from logkeep_engine.convert.source import ConvertSource
    from logkeep_engine.report import Reporter
    from logkeep_engine.storage import Storage
    from logkeep_engine.tasks import TaskRunner

MAX_LOSSES = 50

Job = Callable[[Callable[[], "TaskRunner"], "Reporter"], "ConvertResult"]

From = Annotated[
    str,
    typer.Argument(
        help="What is read: s3://, gs:// or az:// with bucket/prefix, or file:///path.",
        metavar="SRC",
        show_default=False,
    ),
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="REGEX", help=f"Only these topics. {WHOLE_NAMES}")]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="REGEX", help=f"Not these topics. {WHOLE_NAMES}")
]
Segments = Annotated[str | None, typer.Option("--segment-bytes", help="Size of new segments; 128Mi by default.")]
WholeCompression = Annotated[
    Compression | None,
    typer.Option("--compression", help="Kafka: segments as they are (Passthrough, the default) or compressed."),
]
BatchCodec = Annotated[
    BatchCompression | None,
    typer.Option("--batch-compression", help="Kafka: compression of batches made from records; Zstd by default."),
]
NewDigest = Annotated[
    DigestAlgorithm | None,
    typer.Option("--digest", help="Digest of segments; by default copies keep theirs, others get Blake3."),
]
Compat = Annotated[
    Compatibility | None,
    typer.Option("--compatibility", help="Avro: lossless (default), or strict: the published schema."),
]
BlockCodec = Annotated[AvroCodec | None, typer.Option("--codec", help="Avro: compression of an object's blocks.")]
AllowLoss = Annotated[
    bool, typer.Option("--allow-loss", help="Strict: continue even if it cannot hold what records carry.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; say what would be lost.")]
TargetEndpoint = Annotated[
    str | None, typer.Option(callback=origin, help="URL of the S3 server of DST; by default that of --endpoint.")
]
TargetRegion = Annotated[str | None, typer.Option(help="Region of the bucket of DST; by default that of --region.")]


@dataclass(frozen=True)
class NewArchive:
    """The options of the new archive: which topics it gets, and how it keeps their records. An option that was not
    given is None."""

    topic: Topics = None
    exclude: Exclude = None
    segment_bytes: Segments = None
    compression: WholeCompression = None
    batch_compression: BatchCodec = None
    digest: NewDigest = None
    compatibility: Compat = None
    codec: BlockCodec = None
    allow_loss: AllowLoss = False

    def options(self, format_name: FormatName) -> ConvertOptions:
        """Join the options. Raises SpecError, which names an option that does not fit the format."""
        from logkeep_engine.convert.run import ConvertOptions
        from logkeep_engine.log.compression import Codec

        of_format: dict[FormatName, dict[str, object]] = {
            FormatName.KAFKA: {"--compression": self.compression, "--batch-compression": self.batch_compression},
            FormatName.AVRO: {"--compatibility": self.compatibility, "--codec": self.codec},
        }
        for other, options in of_format.items():
            if other is not format_name:
                refuse(options, f"is an option of format {other}, not of {format_name}")
        if self.compatibility is not Compatibility.STRICT:
            refuse(
                {"--allow-loss": self.allow_loss},
                "has no effect: only --compatibility strict can lose what records carry",
            )
        of_records = FormatOptions(allow_loss=self.allow_loss, compatibility=self.compatibility, codec=self.codec)
        made = ConvertOptions(format_name, format_options=of_records)
        return replace(
            made,
            segment_bytes=made.segment_bytes if self.segment_bytes is None else _segment_bytes(self.segment_bytes),
            compression=self.compression or made.compression,
            codec=made.codec if self.batch_compression is None else Codec[self.batch_compression.name],
            digest=self.digest,
        )


@dataclass(frozen=True)
class Servers(Server):
    """The place of the source's bucket, and that of the new archive's bucket if it is elsewhere."""

    target_endpoint: TargetEndpoint = None
    target_region: TargetRegion = None

    @property
    def target(self) -> dict[str, object]:
        """The options for the new archive alone."""
        return {"--target-endpoint": self.target_endpoint, "--target-region": self.target_region}

    def given_for(self, uris: Sequence[str]) -> Iterator[tuple[str, object, Sequence[str]]]:
        """Yield each option with its value and those of SRC and DST that it is for."""
        yield "endpoint", self.endpoint, uris[:1] if self.target_endpoint else uris
        yield "region", self.region, uris[:1] if self.target_region else uris
        yield "target-endpoint", self.target_endpoint, uris[1:]
        yield "target-region", self.target_region, uris[1:]

    def target_storage(self, uri: str) -> Storage:
        """Return the storage of the new archive. Raises SpecError."""
        return Server(self.target_endpoint or self.endpoint, self.target_region or self.region).storage(uri)


def _segment_bytes(text: str) -> int:
    try:
        return parse_segment_bytes(text)
    except ValueError as error:
        raise SpecError(f"--segment-bytes: {error}", hint="Write a number of bytes, such as 128Mi.") from error


def topic_chooser(
    include: Sequence[str] | None, exclude: Sequence[str] | None
) -> Callable[[ConvertSource], ConvertSource]:
    """Return a function that takes the wanted topics of a source. Raises SpecError for a wrong regular expression, and
    the function raises it if no topic is left."""
    wanted = [pattern("--topic", text) for text in include or ()]
    unwanted = [pattern("--exclude", text) for text in exclude or ()]

    def choose(source: ConvertSource) -> ConvertSource:
        from logkeep_engine.convert.source import select

        if not wanted and not unwanted:
            return source
        hint = "They are regular expressions for whole names."
        refuse_unmatched("--topic", include or (), {topic.name for topic in source.topics}, "topic of the source", hint)
        names = {
            topic.name
            for topic in source.topics
            if (not wanted or any(one.matches(topic.name) for one in wanted))
            and not any(one.matches(topic.name) for one in unwanted)
        }
        if not names:
            raise SpecError(
                f"--topic and --exclude leave none of the {len(source.topics)} topics",
                hint=hint,
            )
        return select(source, frozenset(names))

    return choose


def before(kind: str, spark: SparkOptions, output: Output, *, dry_run: bool) -> AbstractContextManager[None]:
    """Print the document of a failure, if JSON is requested and an error ends the body before the run has one."""
    return failing_as_json(kind, spark.run_id, output, _of_conversion(dry_run=dry_run, losses=[], faults=[]))


def _of_conversion(*, dry_run: bool, losses: list[Any], faults: list[str]) -> dict[str, Any]:
    """Return the keys that the document of a conversion has in addition to those of any run."""
    return {"dryRun": dry_run, "losses": losses, "faults": faults}


def perform(run_id: str, kind: str, master: str, storages: Sequence[Storage], job: Job, output: Output) -> None:
    """Run the job on Spark, show its result, and end the command as it ended."""
    s3 = any(storage.uri.startswith("s3://") for storage in storages)
    with on_spark(run_id, kind, master, s3=s3) as (session, reporter):
        done = job(session.runner, reporter)
        end(session, reporter, done.result)
    _print(done, output)
    leave(done.result)


def _print(done: ConvertResult, output: Output) -> None:
    if output is Output.JSON:
        more = _of_conversion(dry_run=done.dry_run, losses=done.losses.rows(), faults=list(done.faults))
        print_json({**done.result.to_dict(), **more})
    else:
        _print_text(done)
    say_warnings(done.result)
    say_damage(done.faults)
    if done.result.outcome != "Succeeded":
        say_failure(done.result)


def _print_text(done: ConvertResult) -> None:
    out, result = stdout(), done.result
    if result.outcome != "Succeeded":
        return
    if not done.dry_run:
        rows = (
            *rows_of_counts(result),
            ("segments", str(result.segments)),
            ("groups", str(result.groups)),
            ("seconds", seconds(result)),
            ("archive", result.archive_id),
        )
        out.print(facts(rows))
    elif result.topics:
        shape = (("topics", result.topics), ("partitions", result.partitions), ("groups", result.groups))
        out.print(facts([("run", result.run_id), *((name, str(count)) for name, count in shape)]))
    losses = done.losses.losses
    if losses:
        lost = table("what is lost", "topic", "partition", "count", "first offset")
        for loss in losses[:MAX_LOSSES]:
            lost.add_row(loss.kind.value, loss.topic, str(loss.partition), str(loss.count), str(loss.offset))
        out.print(lost)
        if len(losses) > MAX_LOSSES:
            say(f"and {so_many(len(losses) - MAX_LOSSES, 'more loss', 'more losses')}: -o json has all")
    elif done.dry_run:
        print_line("nothing is lost")
