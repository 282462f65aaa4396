"""Processes for the tasks that a driver does itself, made at once and with everything imported.

A nursery is forked off the driver while that has one thread and no connection, and knows all modules of a run. It makes
a worker whenever the driver asks for one, by another fork: such a process has its modules at no cost, shares their
memory, and dies alone.

    nursery = Nursery()          # before the first thread
    worker = nursery.worker({"AWS_REGION": "eu-1"})
    worker.give((function, endpoint, index, item, attempt, max_failures))
    answer = worker.take()       # an Outcome or Raised; EOFError if it has died
    nursery.close()

Both end when the driver does, however it ends, and workers end with the nursery.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import logging
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from logkeep_engine.contract.visible import log_warnings_alone
from logkeep_engine.errors import SparkFailed
from logkeep_engine.spark.attempts import attempted

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">Q")
_REQUEST = struct.Struct(">qcq")  # a number, what is asked for, and the process that it is about
_ANSWER = struct.Struct(">qq")  # the number of the request, and what it has come to
_FORK, _KILL = b"F", b"K"
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>: Python has no name for it
_GONE_SECONDS = 10.0  # until all workers of a nursery that has died are gone


@dataclass(frozen=True)
class Raised:
    """An attempt has failed with an error after which another attempt is made."""

    text: str


class Worker:
    """A process that makes one attempt after another."""

    def __init__(self, nursery: Nursery, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._nursery = nursery
        self._connection = connection

    def fileno(self) -> int:
        """For `selectors`: there is something to take."""
        return self._connection.fileno()

    def give(self, work: tuple[Any, ...]) -> None:
        """Begin an attempt. If the process has died, `take` says so."""
        with contextlib.suppress(ConnectionError):
            _send(self._connection, work)

    def take(self) -> Any:
        """Return the outcome of the attempt, or Raised. Raises EOFError if the process has died."""
        return _receive(self._connection)

    def end(self) -> str:
        """End the process, whatever it does, and wait until it is gone. The answer says how it has ended. Raises
        SparkFailed if the nursery has died, and this process with it."""
        try:
            status = self._nursery.kill(self.pid)
        except SparkFailed:
            self._see_it_gone()
            raise
        finally:
            self._connection.close()
        code = os.waitstatus_to_exitcode(status)
        return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"

    def _see_it_gone(self) -> None:
        """Wait until the process has closed its end of the connection, which it does by ending."""
        self._connection.settimeout(_GONE_SECONDS)
        with contextlib.suppress(OSError):
            while self._connection.recv(1 << 20):
                pass

    def dismiss(self) -> None:
        """Let the process end, as it has nothing to do."""
        self._connection.close()


class Nursery:
    """The process that makes workers. To be made while this process has one thread."""

    def __init__(self) -> None:
        # Packets: a request with its descriptor is never read in part.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What is still buffered would be written by both processes.
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()  # else the nursery would not see that the driver has ended
            _live(theirs)
        theirs.close()
        self._connection = ours
        self._numbers = itertools.count()

    def worker(self, environ: Mapping[str, str]) -> Worker:
        """Return a new process, with these variables besides those of the driver. Raises SparkFailed if the nursery is
        gone."""
        ours, theirs = socket.socketpair()
        # This copy must be closed: while it is open, the worker's death does not end the connection.
        with theirs:
            pid = self._ask(_FORK, 0, theirs)
        worker = Worker(self, pid, ours)
        worker.give((dict(environ),))
        return worker

    def kill(self, pid: int) -> int:
        """End a worker. Returns how it has ended, as `os.waitpid` says it."""
        return self._ask(_KILL, pid)

    def close(self) -> None:
        """End the nursery with all its workers."""
        self._connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _ask(self, what: bytes, pid: int, passed: socket.socket | None = None) -> int:
        number = next(self._numbers)
        request = _REQUEST.pack(number, what, pid)
        try:
            socket.send_fds(self._connection, [request], [] if passed is None else [passed.fileno()])
            while True:  # a signal may have come before an earlier answer
                answered, result = _ANSWER.unpack(self._connection.recv(_ANSWER.size))
                if answered == number:
                    return int(result)
        except (OSError, struct.error) as error:
            raise SparkFailed(
                "The driver can start no more tasks: the process that makes them has died.",
                hint="It may have had too little memory: see spec.spark.driver.memory.",
            ) from error


# ---- the nursery's process


def _live(driver: socket.socket) -> NoReturn:
    """Make workers until the driver closes the connection, then end with all of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the driver, which ends the work in order
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log_warnings_alone()
    gc.freeze()  # workers share these pages as long as no garbage collection writes to them
    children: set[int] = set()
    try:
        while True:
            request, passed, _, _ = socket.recv_fds(driver, _REQUEST.size, 1)
            if len(request) < _REQUEST.size:
                break
            number, what, pid = _REQUEST.unpack(request)
            result = _fork(driver, passed[0], children) if what == _FORK else _kill(pid, children)
            driver.send(_ANSWER.pack(number, result))
    except ConnectionError:
        pass
    except BaseException:
        log.exception("unexpected error")
    finally:
        for pid in set(children):
            _kill(pid, children)
        os._exit(0)  # no exit handler of the driver may run here


def _fork(driver: socket.socket, descriptor: int, children: set[int]) -> int:
    nursery = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with(nursery)
        driver.close()  # else a worker would hide from the driver that the nursery has died
        _work(socket.socket(fileno=descriptor))
    os.close(descriptor)  # the worker's end must be its alone, so that its death is seen
    children.add(pid)
    return pid


def _kill(pid: int, children: set[int]) -> int:
    """Kill a child and return its exit status. One that has ended keeps its number until it is waited for here, so the
    signal reaches no other process."""
    os.kill(pid, signal.SIGKILL)
    children.discard(pid)
    return os.waitpid(pid, 0)[1]


# ---- a worker's process


def _end_with(parent: int) -> None:
    """Have Linux kill this process when its parent ends: a task that cannot be ended any more must not keep writing."""
    with contextlib.suppress(OSError, AttributeError):  # a sandbox may lack it, and all is well without
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _work(driver: socket.socket) -> NoReturn:
    """Make attempts until the driver closes the connection."""
    code = 1
    try:
        (environ,) = _receive(driver)
        os.environ.update(environ)
        while True:
            _send(driver, _attempt(_receive(driver)))
    except (EOFError, ConnectionError):
        code = 0
    except BaseException:
        log.exception("unexpected error")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _attempt(work: tuple[Any, ...]) -> Any:
    try:
        return attempted(*work)
    except Exception as error:
        return Raised(f"{type(error).__name__}: {error}")


# ---- messages


def _send(connection: socket.socket, message: Any) -> None:
    data = pickle.dumps(message)
    connection.sendall(_SIZE.pack(len(data)) + data)


def _receive(connection: socket.socket) -> Any:
    (size,) = _SIZE.unpack(_receive_exactly(connection, _SIZE.size))
    return pickle.loads(_receive_exactly(connection, size))


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
