"""The base of servers that tests run in their own process."""

import socketserver
import sys
import threading
from types import TracebackType
from typing import Any, Self


class OnLoopback(socketserver.BaseServer):
    """Serves from entering to leaving, in a thread of its own."""

    daemon_threads = True
    block_on_close = False

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *given: Any) -> None:
        """A client that has gone, or does not trust the certificate, is no news; a fault of the server is."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(*given)
