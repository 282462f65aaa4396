"""Options that several commands have. Those that belong together are the fields of a dataclass, and `spread` gives
them to typer one by one.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

import logkeep_engine
from logkeep_engine.cli.output import print_line
from logkeep_engine.contract.cluster import ClusterSpec, Protocol, SaslMechanism
from logkeep_engine.contract.endpoints import ENDPOINT, NOT_AN_ORIGIN
from logkeep_engine.contract.names import ENV_KAFKA_TOKEN_FILE, ENV_S3_OPTIONS, ENV_SIGNING_DIR, OPTION_KEYS
from logkeep_engine.contract.parsing import SpecInvalid, parse_model, parse_s3_options
from logkeep_engine.contract.pattern_lists import describe_unmatched
from logkeep_engine.contract.patterns import Pattern, PatternInvalid
from logkeep_engine.contract.storage import SCHEMES, SCHEMES_WITH, where_with
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.archive.catalog.claim import ArchiveClaim
    from logkeep_engine.kafka.connection import KafkaConnection
    from logkeep_engine.storage import Storage

_UNMATCHED_SHOWN = 5


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"logkeep {logkeep_engine.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="json prints one JSON document on stdout.")]
_Json = Annotated[bool, typer.Option("--json", help="The same as --output json.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log in detail, and show tracebacks.")]
Confirm = Annotated[
    list[str] | None,
    typer.Option(metavar="TOPIC", help="A topic of the target that Replace may delete (spec.confirm). Repeatable."),
]
Uri = Annotated[
    str,
    typer.Argument(
        help="The archive: s3://, gs:// or az:// with bucket/prefix, or file:///path.",
        metavar="URI",
        show_default=False,
    ),
]
MaybeUri = Annotated[
    str | None,
    typer.Argument(
        help="The place: s3://, gs:// or az:// with bucket/prefix, or file:///path.",
        metavar="URI",
        show_default=False,
    ),
]
ActsFor = Annotated[
    str | None,
    typer.Option(
        "--owner",
        metavar="NAME",
        help="Write once for the owner of the archive, as inspect names it: NAMESPACE/NAME of a KafkaBackup, or NAME.",
    ),
]
ExpectCommit = Annotated[
    str | None,
    typer.Option(
        metavar="N:SHA256",
        help="A commit that the archive must have, as inspect or a KafkaBackup's status.archive.anchor names it.",
    ),
]


def _folder(given: str | None) -> str | None:
    if given is not None and not Path(given or "-").is_dir():
        raise typer.BadParameter(f"{given!r} is not a folder.")
    return given


SigningDir = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        callback=_folder,
        help="A folder with the keys of storage.signing: publicKeys to trust, and ed25519 to sign with. By default "
        f"that of {ENV_SIGNING_DIR}.",
    ),
]


def origin(given: str | None) -> str | None:
    """Check an option that is the URL of a server, as a resource's `endpoint` is checked. It may hold a password."""
    if given is not None and not re.search(ENDPOINT, given):
        raise typer.BadParameter(f"{NOT_AN_ORIGIN}.")
    return given


def _s3(given: list[str] | None) -> list[str] | None:
    try:
        parse_s3_options(",".join(given or ()))
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    return given


S3 = Annotated[
    list[str] | None,
    typer.Option(
        "--s3",
        metavar="NAME=VALUE",
        callback=_s3,
        help="An option of requests to S3, as storage.s3 of a resource has it: requesterPays=true, "
        "serverSideEncryption=aws:kms, kmsKeyId=ARN, bucketKey=true, storageClass=STANDARD_IA, addressing=Virtual. "
        f"Repeatable; by default what {ENV_S3_OPTIONS} says, with commas.",
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(metavar="URL", callback=origin, help="URL of an S3 server other than AWS, or of an account of Azure."),
]
Region = Annotated[str | None, typer.Option(metavar="NAME", help="Region of the bucket.")]
SecurityProtocol = Annotated[
    Protocol | None,
    typer.Option(help="PLAINTEXT by default; with SASL and TLS, LOGKEEP_KAFKA_* in the environment hold the secrets."),
]
Mechanism = Annotated[SaslMechanism | None, typer.Option(help="For SASL_PLAINTEXT and SASL_SSL.")]
OAuthEndpoint = Annotated[
    str | None,
    typer.Option(
        "--token-endpoint",
        metavar="URL",
        help=f"What gives tokens for OAUTHBEARER. Without it the file of {ENV_KAFKA_TOKEN_FILE} has the token.",
    ),
]
OAuthScope = Annotated[str | None, typer.Option("--token-scope", metavar="SCOPE", help="For --token-endpoint.")]
AwsRegion = Annotated[
    str | None, typer.Option(metavar="REGION", help="Of the MSK cluster, for AWS_MSK_IAM; by default AWS_REGION.")
]


@dataclass(frozen=True)
class BucketOptions:
    """The place of the bucket of an s3:// URI."""

    endpoint: Endpoint = None
    region: Region = None

    def storage(self, uri: str) -> Storage:
        """Return the storage at a URI. Raises SpecError."""
        from logkeep_engine.storage import open_uri

        return open_uri(uri, self.endpoint, self.region, keys=OPTION_KEYS)

    def given_for(self, uris: Sequence[str]) -> Iterator[tuple[str, object, Sequence[str]]]:
        """Yield each option with its value and those of the command's URIs that it is for."""
        yield "endpoint", self.endpoint, uris
        yield "region", self.region, uris


@dataclass(frozen=True)
class Server(BucketOptions):
    """The place of the bucket of an archive."""

    def archive(self, uri: str, claim: ArchiveClaim | None = None) -> Archive:
        """Return the archive at a URI. Raises ArchiveMissing, ArchiveRolledBack, and what the storage raises."""
        from logkeep_engine.archive.catalog.archive import NO_CLAIM, Archive

        storage = self.storage(uri)
        storage.check()
        return Archive.open(storage, claim or NO_CLAIM)


_OF_LOGINS = {"oauth.tokenEndpoint": "--token-endpoint", "oauth.scope": "--token-scope", "aws.region": "--aws-region"}
"""The options that say fields of `security.sasl`."""


@dataclass(frozen=True)
class SecurityOptions:
    """The options that say how to talk to a cluster that another option names."""

    security_protocol: SecurityProtocol = None
    sasl_mechanism: Mechanism = None
    token_endpoint: OAuthEndpoint = None
    token_scope: OAuthScope = None
    aws_region: AwsRegion = None

    def refuse_without(self, option: str) -> None:
        """Raises SpecError if an option was given although the option that names the cluster was not."""
        refuse(options_of(self), f"has no effect: it is for {option}")

    def connection(self, option: str, servers: str) -> KafkaConnection:
        """Return the connection to the cluster that `option` names by `servers`. Raises SpecError,
        CredentialsMissing."""
        from logkeep_engine.kafka.connection import connection_from

        protocol = self.security_protocol or Protocol.PLAINTEXT
        document: dict[str, Any] = {
            "bootstrapServers": [server.strip() for server in servers.split(",") if server.strip()],
            "security": {"protocol": protocol.value},
        }
        if (sasl := self._sasl()) is not None:
            document["security"]["sasl"] = sasl
        try:
            spec = parse_model(ClusterSpec, document)
        except SpecInvalid as error:
            where, what = error.problems[0]
            if (name := _OF_LOGINS.get(where.removeprefix("spec.security.sasl."))) is not None:
                raise SpecError(f"{name}: {what}") from error
            raise SpecError(
                f"{option} {servers!r} with --security-protocol {protocol.value}: {what}",
                hint="Write host:port; --sasl-mechanism goes with SASL_PLAINTEXT and SASL_SSL.",
            ) from error
        return connection_from(spec, os.environ)

    def _sasl(self) -> dict[str, Any] | None:
        """Return what a resource would say in `security.sasl`, None for no login; secrets come from the environment."""
        mechanism = self.sasl_mechanism
        of_tokens = {"--token-endpoint": self.token_endpoint, "--token-scope": self.token_scope}
        of_aws = {"--aws-region": self.aws_region}
        if mechanism is None:
            refuse(of_tokens | of_aws, "has no effect without --sasl-mechanism")
            return None
        if mechanism is not SaslMechanism.OAUTHBEARER:
            refuse(of_tokens, "has no effect: it is for OAUTHBEARER")
        if mechanism is not SaslMechanism.AWS_MSK_IAM:
            refuse(of_aws, "has no effect: it is for AWS_MSK_IAM")
        said: dict[str, Any] = {"mechanism": mechanism.value}
        if mechanism is SaslMechanism.AWS_MSK_IAM:
            region = self.aws_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            if not region:
                raise SpecError("AWS_MSK_IAM needs the region of the cluster.", hint="Give --aws-region.")
            return {**said, "aws": {"region": region}}
        if mechanism is SaslMechanism.OAUTHBEARER and self.token_endpoint is None:
            refuse({"--token-scope": self.token_scope}, "has no effect without --token-endpoint")
            return {**said, "oauth": {"serviceAccountToken": {"audience": "environment"}}}
        if mechanism is SaslMechanism.OAUTHBEARER:
            scope = {"scope": self.token_scope} if self.token_scope else {}
            said["oauth"] = {"tokenEndpoint": self.token_endpoint, **scope}
        return {**said, "secretRef": {"name": "environment"}}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Give typer a command with a parameter for each option: a parameter that is a dataclass becomes its fields. Each
    command that reports also gets the option --json, and each that opens an archive, by a URI or a resource, the option
    for the keys by which it is signed; by a URI those of requests to S3, too. An option of a store that none of the
    command's URIs takes is refused."""
    groups: dict[str, type] = {}
    options: list[inspect.Parameter] = []
    positional: list[str] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[name] = kind
            hints = get_type_hints(kind, include_extras=True)
            options += [one.replace(annotation=hints[one.name]) for one in inspect.signature(kind).parameters.values()]
        else:
            options.append(parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD))
            if any(isinstance(one, ArgumentInfo) for one in get_args(kind)):
                positional.append(name)
    one_resource = any(option.name == "file" and get_args(option.annotation)[0] is str for option in options)
    by_uri = any(issubclass(kind, BucketOptions) for kind in groups.values())
    archive = one_resource or any(issubclass(kind, Server) for kind in groups.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if by_uri:
        options.append(inspect.Parameter("s3", kind, default=None, annotation=S3))
    if archive:
        options.append(inspect.Parameter("signing_dir", kind, default=None, annotation=SigningDir))
    reports = next((place for place, option in enumerate(options) if option.name == "output"), None)
    if reports is not None:
        options.insert(reports + 1, inspect.Parameter("as_json", kind, default=False, annotation=_Json))
    signature = inspect.Signature(options)

    @wraps(command)
    def called(*given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        values = bound.arguments
        if values.pop("as_json", False):
            values["output"] = Output.JSON
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        s3 = values.pop("s3", None)
        for place in made.values():
            if isinstance(place, BucketOptions):
                uris = list(_uris(values[name] for name in positional))
                for option, value, takers in (*place.given_for(uris), ("s3", s3, uris)):
                    if value and not uris:
                        raise typer.BadParameter(
                            "it goes with a URI: the resource in the file says it. Leave it out.",
                            param_hint=f"'--{option}'",
                        )
                    _refuse_untaken(option, value, takers)
        of_run = {ENV_SIGNING_DIR: values.pop("signing_dir", None), ENV_S3_OPTIONS: ",".join(s3) if s3 else None}
        with _environment({name: value for name, value in of_run.items() if value is not None}):
            command(**values, **made)

    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _uris(given: Iterable[object]) -> Iterator[str]:
    for one in given:
        if isinstance(one, str):
            yield one
        elif isinstance(one, list | tuple):
            yield from one


def _refuse_untaken(option: str, value: object, uris: Sequence[str]) -> None:
    """Raises BadParameter for an option that none of these URIs takes. What is no storage URI is refused elsewhere. A
    URI may hold a password: only its scheme is repeated."""
    name = option.removeprefix("target-")
    schemes = sorted({uri.partition("://")[0].lower() if "://" in uri else "file" for uri in uris})
    if value and schemes and all(scheme in SCHEMES and scheme not in SCHEMES_WITH[name] for scheme in schemes):
        raise typer.BadParameter(
            f"it has no effect on {where_with(name, schemes)}. Leave it out.", param_hint=f"'--{option}'"
        )


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """Let the command, and the processes that it starts, find these variables."""
    before = {name: os.environ[name] for name in given if name in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name)
        os.environ.update(before)


def refuse(options: Mapping[str, object], why: str, hint: str = "Leave it out.") -> None:
    """Raises SpecError for the first option that was given."""
    for name, value in options.items():
        if value:
            raise SpecError(f"{name} {why}", hint=hint)


def options_of(group: Any) -> dict[str, object]:
    """Return the options that are the fields of a dataclass, as a user writes them: --segment-bytes."""
    return {f"--{field.name.replace('_', '-')}": getattr(group, field.name) for field in fields(group)}


def refuse_unmatched(option: str, patterns: Sequence[str], names: Collection[str], what: str, hint: str) -> None:
    """Raises SpecError for patterns of an option that match none of these names. `what`: of what these are the
    names."""
    text = describe_unmatched(option, patterns, names, what)
    if text:
        raise SpecError("; ".join(text[:_UNMATCHED_SHOWN]), hint=hint)


WHOLE_NAMES = "A regular expression that matches whole names. Repeatable."


def pattern(option: str, text: str) -> Pattern:
    """Return the regular expression that an option gives. Raises SpecError."""
    try:
        return Pattern(text)
    except PatternInvalid as error:
        raise SpecError(f"{option} {text!r} is not a valid regular expression: {error}") from error
