"""The network of a node: bytes recorded as they pass between pods, and attempts to connect."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.node import Node
from tests.cluster.process import Process
from tests.cluster.state import State

# Runs in the node's network namespace, where every packet between pods passes. 0x0003: of every protocol.
_RECORD = """
import socket, sys
port, file = int(sys.argv[1]).to_bytes(2, "big"), open(sys.argv[2], "ab", buffering=0)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
print("ready", flush=True)
while True:
    packet = wire.recv(1 << 17)
    if packet[0] >> 4 != 4 or packet[9] != 6:
        continue
    tcp = packet[(packet[0] & 15) * 4 :]
    if port in (tcp[0:2], tcp[2:4]):
        file.write(tcp[(tcp[12] >> 4) * 4 :])
"""


class Wire:
    """All bytes of TCP from and to a port of any pod, from entering to leaving. Each passes at least once."""

    def __init__(self, node: Node, port: int) -> None:
        self._node = node
        self._port = port

    def __enter__(self) -> Self:
        self._state = State.create("wire")
        self._file = self._state.path / "bytes"
        argv: list[str | Path] = [sys.executable, "-c", _RECORD, str(self._port), self._file]
        self._process = Process(self._state, "wire", argv, netns=self._node.netns)
        self._process.start()
        self._process.wait_ready(lambda: "ready" in self._process.output)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._state.destroy(grace=0)

    @property
    def bytes(self) -> bytes:
        """All that has passed until now."""
        return self._file.read_bytes()


def connect(node: Node, namespace: str, pod: str, address: str, port: int) -> str:
    """Let a pod try to connect. Returns how that ends: `connected`, `refused` or `lost`."""
    script = (
        "import socket\n"
        f"try: socket.create_connection(('{address}', {port}), 4); print('connected')\n"
        "except TimeoutError: print('lost')\n"
        "except ConnectionRefusedError: print('refused')\n"
    )
    return node.kubectl("exec", "-n", namespace, pod, "--", "python3", "-c", script).stdout.strip()
