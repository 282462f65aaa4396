"""The endpoints that the plugin sends credentials to.

A user who may write a resource names its endpoint, and the plugin runs with the rights of another, often those of an
administrator. So the caller's own cloud identity goes to Amazon's own endpoints, and to one that the caller names
(--endpoint). The keys of a Secret go also to endpoints that the installation allows, by a ConfigMap in the operator's
namespace, where no tenant may write, or that the caller allows (--allow-endpoint).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.kubectl.errors import EndpointNotAllowed
from logkeep_engine.contract import names
from logkeep_engine.contract.endpoints import allow_endpoint, check_allowed_endpoint, origin
from logkeep_engine.errors import LogkeepError, SpecError

if TYPE_CHECKING:
    from logkeep_engine.cli.kubectl.calls import Kubernetes
    from logkeep_engine.contract.storage import StorageSpec

Endpoint = Annotated[
    str | None, typer.Option(help="URL of the S3 server as reached from here, such as through a port-forward.")
]
AllowEndpoint = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="An endpoint of a resource that gets the keys of its Secret, such as https://minio.storage:9000; * stands "
        "for any characters. Repeatable. Those that the installation allows need not be named.",
    ),
]
OperatorNamespace = Annotated[
    str, typer.Option(help="The namespace of the operator, whose ConfigMap logkeep-endpoints names allowed endpoints.")
]


@dataclass(frozen=True)
class Endpoints:
    """The options that say where an archive is reached, and who gets keys."""

    endpoint: Endpoint = None
    allow_endpoint: AllowEndpoint = None
    operator_namespace: OperatorNamespace = names.OPERATOR_NAMESPACE

    def check(self, cluster: Kubernetes, spec: StorageSpec) -> None:
        """Refuse a storage of a resource that would have credentials sent where only the resource says. Raises
        EndpointNotAllowed, and SpecError for an option. No Secret is read for it."""
        for entry in self.allow_endpoint or ():
            try:
                check_allowed_endpoint(entry)
            except ValueError as error:
                raise SpecError(f"--allow-endpoint: {error}") from None
        if self.endpoint is not None:
            return
        if spec.credentials is None or spec.credentials.secret_ref is None:
            _refuse_own_identity(spec)
        elif spec.endpoint is not None and not allow_endpoint(spec.endpoint, self.allow_endpoint or ()):
            self._ask_installation(cluster, spec.endpoint)

    def _ask_installation(self, cluster: Kubernetes, endpoint: str) -> None:
        config_map = f"ConfigMap {names.ENDPOINTS_CONFIG_MAP} in namespace {self.operator_namespace}"
        try:
            found = cluster.in_namespace(self.operator_namespace).get("ConfigMap", names.ENDPOINTS_CONFIG_MAP)
        except LogkeepError as error:
            why = f"{config_map} cannot be read: {error.message}"
        else:
            entries = str((found.get("data") or {}).get(names.KEY_ENDPOINTS) or "").split()
            if allow_endpoint(endpoint, entries):
                return
            why = f"{config_map} does not name it"
        raise EndpointNotAllowed(
            f"The resource names the endpoint {origin(endpoint)}, and no keys of a Secret are sent there: "
            f"{why.rstrip('.')}.",
            hint=f"If you trust it: --allow-endpoint {origin(endpoint)}. If the operator runs elsewhere, name its "
            "--operator-namespace. The chart's engine.allowed.endpoints names it for everybody.",
        )


def _refuse_own_identity(spec: StorageSpec) -> None:
    if spec.endpoint is None and spec.tls is None:
        return
    what = f"the endpoint {origin(spec.endpoint)}" if spec.endpoint is not None else "certificate authorities (tls)"
    raise EndpointNotAllowed(
        f"The resource names {what} and no Secret, and your own cloud identity is not sent where a resource says.",
        hint="If it may go there, name the endpoint yourself, with --endpoint.",
    )
