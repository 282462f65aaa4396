"""Options of all commands of the plugin, named as kubectl names its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.kubectl.lines import SHORT_NAMES
from logkeep_engine.contract.names import BACKUP, KAFKA_ARCHIVE, PLURALS, RESTORE
from logkeep_engine.contract.spec import GROUP
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.cli.kubectl.calls import Kubernetes

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, may succeed when tried again; 2 refused: an option, a right, a resource or the "
    "archive must change first; 3 another run owns the archive; 4 data loss; 5 the target of a restore was written to, "
    "and is not known to match the archive; 130 interrupted. A command that waits for a run ends with the code "
    "of that run."
)
_KINDS = {
    word: kind
    for kind in (BACKUP, RESTORE, KAFKA_ARCHIVE)
    for word in (SHORT_NAMES[kind], kind.lower(), PLURALS[kind], f"{PLURALS[kind]}.{GROUP}")
}

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="The namespace; by default that of the context.")
]
Context = Annotated[
    str | None, typer.Option(metavar="NAME", help="The context of the kubeconfig; by default the current one.")
]
Kubeconfig = Annotated[
    str | None, typer.Option(metavar="FILE", help="The kubeconfig; by default $KUBECONFIG, or ~/.kube/config.")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In all namespaces.")]
Resource = Annotated[str, typer.Argument(metavar="NAME", help="The resource: NAME, kbak/NAME or krst/NAME.")]
ResourceOrArchive = Annotated[
    str, typer.Argument(metavar="NAME", help="The resource: NAME, kbak/NAME, krst/NAME or karc/NAME.")
]
Backup = Annotated[str, typer.Argument(metavar="BACKUP", help="Name of the KafkaBackup.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the run to its end, and end with its exit code.")]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="With --wait: give up after this many seconds. The run continues.", min=1),
]


@dataclass(frozen=True)
class Where:
    """The cluster and the namespace."""

    namespace: Namespace = None
    context: Context = None
    kubeconfig: Kubeconfig = None

    def connect(self) -> Kubernetes:
        """Return a connection to the cluster. Raises ClusterUnreachable."""
        from logkeep_engine.cli.kubectl.calls import connect

        return connect(self.kubeconfig, self.context, self.namespace)


def named(text: str, *kinds: str) -> tuple[tuple[str, ...], str]:
    """Return the kinds that a name may be of, and the name: `kbak/nightly` is of one kind. Raises SpecError for another
    kind than those."""
    prefix, slash, name = text.rpartition("/")
    if not slash:
        return kinds, text
    kind = _KINDS.get(prefix.lower())
    if kind not in kinds:
        wanted = " or ".join(f"{SHORT_NAMES[kind]}/NAME of a {kind}" for kind in kinds)
        raise SpecError(
            f"{text!r} is of a kind that this command does not take", hint=f"Write NAME alone, or {wanted}."
        )
    return (kind,), name


def backup_name(text: str) -> str:
    """Return the name of a KafkaBackup. Raises SpecError."""
    return named(text, BACKUP)[1]
