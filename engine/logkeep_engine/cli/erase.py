"""The command `logkeep erase`: takes the records of some keys out of an archived topic.

Imports that take long happen inside the command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.errors import errors, say_failure
from logkeep_engine.cli.options import ActsFor, Debug, Output, OutputFormat, Server, Uri, pattern, spread
from logkeep_engine.cli.output import facts, print_json, say, stdout
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
from logkeep_engine.contract.keys import KeyEncoding
from logkeep_engine.contract.names import ERASURE, ExitCode
from logkeep_engine.contract.values import human_bytes, so_many
from logkeep_engine.errors import NoTopicMatches, SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.contract.patterns import Pattern
    from logkeep_engine.contract.run import RunResult
    from logkeep_engine.erasure.preview import ErasurePreview

_SHOWN = 5

Topic = Annotated[
    str,
    typer.Option(
        "--topic",
        metavar="REGEX",
        help="The archived topic. A regular expression that matches one whole name: more than one is refused.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Write nothing: read the topic, and print how many records would be erased."),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", help="A key to erase. Process lists show it; --keys-file keeps it out of them.", show_default=False
    ),
]
KeysFile = Annotated[str | None, typer.Option("--keys-file", help="A file with one key per line; - is standard input.")]
Encoding = Annotated[KeyEncoding, typer.Option("--encoding", help="How the keys are written.")]
AskedBy = Annotated[
    str,
    typer.Option("--asked-by", metavar="WHO", help="Who asked for it, or a ticket: kept in the audit entry forever."),
]


@spread
def erase(
    uri: Uri,
    topic: Topic,
    *,
    key: Keys = None,
    keys_file: KeysFile = None,
    encoding: Encoding = KeyEncoding.TEXT,
    asked_by: AskedBy = "",
    owner: ActsFor = None,
    dry_run: DryRun = False,
    spark: SparkOptions,
    server: Server,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Take the records of some keys out of an archive for ever, of all incarnations and branches of a topic.

    All other records stay, with their offsets. First erase the keys in Kafka: a backup archives what is there.
    """
    with errors(debug), failing_as_json(ERASURE, spark.run_id, output):
        from logkeep_engine.archive.catalog.claim import ArchiveClaim
        from logkeep_engine.contract.keys import different
        from logkeep_engine.erasure.preview import preview
        from logkeep_engine.erasure.run import ErasureAsked
        from logkeep_engine.erasure.run import erase as perform

        keys, run = different(_keys(key or (), keys_file, encoding)), spark.run_id_or_new()
        wanted, claim = pattern("--topic", topic), ArchiveClaim(acts_for=owner)
        archive = server.archive(uri, claim)
        asked = ErasureAsked(_one_of(archive, wanted), keys, asked_by)
        storage = archive.storage
        with on_spark(run, ERASURE, spark.master, s3=storage.uri.startswith("s3://")) as (session, reporter):
            if dry_run:
                found = preview(run, archive, asked, session.runner, reporter)
                reporter.close()
                _print_preview(found, output)
                return
            result = perform(run, storage, asked, session.runner, reporter, claim)
            end(session, reporter, result)
        _print(result, output)
        leave(result)


def _one_of(archive: Archive, wanted: Pattern) -> str:
    """Return the name of the one topic of the archive that the pattern matches. Raises SpecError, NoTopicMatches."""
    names = sorted({topic.name for topic in archive.load().topics.values() if wanted.matches(topic.name)})
    if not names:
        raise NoTopicMatches(
            f"The archive at {archive.storage.uri} has no topic that --topic {wanted.text!r} matches.",
            hint="logkeep inspect lists its topics.",
        )
    if len(names) > 1:
        raise SpecError(
            f"--topic {wanted.text!r} matches {len(names)} topics of the archive: {', '.join(names[:_SHOWN])}",
            hint="An erasure is of one topic. In a name, write a dot as \\.: 'orders\\.v1'.",
        )
    return names[0]


def _print_preview(found: ErasurePreview, output: Output) -> None:
    """Print what an erasure would do. Raises ArchiveDamaged if it would fail."""
    if output is Output.JSON:
        print_json({"dryRun": found.to_json()})
    else:
        rows = (
            ("dry run", "nothing was written"),
            ("topic", found.topic),
            ("incarnations", str(len(found.topic_ids))),
            ("partitions", str(found.partitions)),
            ("keys", str(found.keys)),
            ("would erase", so_many(found.records, "record")),
            ("would rewrite", f"{so_many(found.segments, 'segment')} of {found.read}, {human_bytes(found.bytes)}"),
        )
        stdout().print(facts(rows))
    for fault in found.faults:
        say(f"fault: {fault}")
    if found.faults:
        say("refused: the erasure would fail: these segments cannot be read to the end")
        raise typer.Exit(int(ExitCode.REFUSED))


def _keys(given: list[str] | tuple[str, ...], file: str | None, encoding: KeyEncoding) -> Iterator[bytes]:
    """Yield the keys of both options. Raises SpecError."""
    from logkeep_engine.contract.keys import key_of, keys_in

    if not given and file is None:
        raise SpecError("--key or --keys-file must say what to erase", hint="Give either one, or both.")
    try:
        for number, text in enumerate(given, start=1):
            yield key_of(text.encode("utf-8", "surrogateescape"), encoding, f"--key number {number}")
        if file is not None:
            yield from keys_in(_content(file), encoding, f"--keys-file {file}")
    except ValueError as error:
        raise SpecError(str(error), hint="Write one key per line, in the encoding that --encoding names.") from None


def _content(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise SpecError(f"--keys-file {file}: {error.strerror}", hint="Name a file that can be read.") from error


def _print(result: RunResult, output: Output) -> None:
    if output is Output.JSON:
        print_json(result.to_dict())
    elif result.outcome == "Succeeded":
        stdout().print(
            facts([*rows_of_counts(result), ("segments", str(result.segments)), ("seconds", seconds(result))])
        )
    say_warnings(result)
    if result.outcome != "Succeeded":
        say_failure(result)
