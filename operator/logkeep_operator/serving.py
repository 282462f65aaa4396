"""The operator's probe and its metrics over HTTP, at every address of the pod: of IPv4, of IPv6, or of both."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROBE_PATH = "/healthz"
LOOK_SECONDS = 5.0  # a loop that does not turn for this long is stuck, or as good as that

log = logging.getLogger(__name__)


def listen(port: int) -> socket.socket:
    """Return a socket that listens at the port for both families of addresses, or for IPv4 alone where the kernel has
    no IPv6. Raises OSError if the port is taken."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            # A kernel may know IPv6 and have no address of it (net.ipv6.conf.all.disable_ipv6).
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return socket.create_server(("0.0.0.0", port))


def serve(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Answer requests by the handler, from threads of their own, until the server is shut down."""
    server = ThreadingHTTPServer(("", port), handler, bind_and_activate=False)
    # The server has made a socket for IPv4 alone: another takes its place.
    with contextlib.closing(server.socket):
        server.socket = listen(port)
    threading.Thread(target=server.serve_forever, name=f"http-{port}", daemon=True).start()
    return server


def probe_handler(look: Callable[[], str], loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
    """Answers probes with the word that `look` returns in the event loop, or with status 500 if it raises or if the
    loop is stuck."""

    async def looked() -> str:
        return look()

    class Probe(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != PROBE_PATH:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                word = asyncio.run_coroutine_threadsafe(looked(), loop).result(LOOK_SECONDS)
            except Exception as error:
                log.error("the probe fails: %s", str(error) or "the event loop is stuck")
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
                return
            body = json.dumps({"work": word}).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        # A line for each probe would hide all others in the log.
        def log_message(self, format: str, *args: object) -> None:
            pass

    return Probe
