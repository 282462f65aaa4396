"""The command `logkeep erase`: takes the records of some keys out of an archived topic.

Imports that take long happen inside the command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.errors import errors, say_failure
from logkeep_engine.cli.options import ActsFor, Debug, Output, OutputFormat, Server, Uri, spread
from logkeep_engine.cli.output import facts, print_json, stdout
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
from logkeep_engine.contract.names import ERASURE
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.contract.run import RunResult

Topic = Annotated[str, typer.Option("--topic", help="Exact name of the archived topic.", show_default=False)]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", help="A key to erase. Process lists show it; --keys-file keeps it out of them.", show_default=False
    ),
]
KeysFile = Annotated[str | None, typer.Option("--keys-file", help="A file with one key per line; - is standard input.")]
Encoding = Annotated[KeyEncoding, typer.Option("--encoding", help="How the keys are written.")]
AskedBy = Annotated[
    str, typer.Option("--asked-by", help="Who asked for it, or a ticket: kept in the audit entry forever.")
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
        from logkeep_engine.erasure.run import ErasureAsked
        from logkeep_engine.erasure.run import erase as perform

        asked = ErasureAsked(topic, different(_keys(key or (), keys_file, encoding)), asked_by)
        storage = server.storage(uri)
        run = spark.run_id_or_new()
        job = partial(perform, run, storage, asked)
        with on_spark(run, ERASURE, spark.master, s3=storage.uri.startswith("s3://")) as (session, reporter):
            result = job(session.runner, reporter, ArchiveClaim(acts_for=owner))
            end(session, reporter, result)
        _print(result, output)
        leave(result)


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
