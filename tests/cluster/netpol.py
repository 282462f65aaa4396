"""The program that makes NetworkPolicies hold on a node, whose own network enforces none."""

from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster import system, tools
from tests.cluster.node import NAME, Node
from tests.cluster.process import Process
from tests.cluster.state import State

# Every first packet of a connection between pods. The program's own rules are nftables' and want a module of the kernel
# that not every machine has; without them it judges what this rule brings. Nothing is judged while nobody listens.
_TO_THE_QUEUE = [
    "FORWARD",
    "--match",
    "conntrack",
    "--ctstate",
    "NEW",
    "--jump",
    "NFQUEUE",
    "--queue-num",
    "100",
    "--queue-bypass",
]


class Enforcer:
    """The NetworkPolicies of a node's pods hold from entering to leaving. Connections that are open stay open."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> Self:
        self._state = State.create("netpol")
        argv: list[str | Path] = [tools.netpol(), self._node.kubeconfig, NAME]
        self._process = Process(self._state, "netpol", argv, netns=self._node.netns)
        self._process.start()
        self._iptables("--insert")
        return self

    def _iptables(self, what: str) -> None:
        command = ["iptables", "--wait", "--table", "mangle", what, *_TO_THE_QUEUE]
        system.run(system.in_namespace(self._node.netns, command))

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        (folder / "netpol.log").write_text(self._process.output)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._iptables("--delete")
        self._process.stop(grace=20)
        self._state.destroy(grace=0)
