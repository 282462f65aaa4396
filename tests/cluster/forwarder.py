"""A port that leads to another one, and from some moment on to a third: an address that somebody has moved."""

import contextlib
import socket
import socketserver
import threading

from tests.cluster.on_loopback import OnLoopback


class Forwarder(OnLoopback, socketserver.ThreadingTCPServer):
    """Listens on a port of loopback from entering to leaving. Each connection leads to the `target` of its beginning,
    an address `host:port`, and stays with it."""

    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Connection)
        self.target = ""
        self.led_to: list[str] = []
        """The targets of all connections so far."""


class _Connection(socketserver.BaseRequestHandler):
    server: Forwarder

    def handle(self) -> None:
        target = self.server.target
        self.server.led_to.append(target)
        host, _, port = target.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=_pass_on, args=(there, self.request), daemon=True)
            back.start()
            _pass_on(self.request, there)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until either end is closed, and close both."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
