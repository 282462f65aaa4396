"""A lane asks for one test file after the other: a pytest plugin, and the side that answers.

    python -m pytest -p tests.lanes.taking --take=FD FILE...

The files named are those that may be asked for; none is imported before it is the lane's turn to run it. What tests
share stays up from one file to the next of the same bed, and is taken down before another bed.
"""

import gc
import os
import socket
import threading
from collections.abc import Callable, Sequence

import pytest

from tests.lanes.plan import LONGEST, bed

NICENESS = 3  # such a process gets half of what another one gets: tests whose brokers get less would time out


class Answers(threading.Thread):
    """Answers one lane: any line asks for a file. The answer is its path, or an empty line when all is done."""

    def __init__(self, name: str, take: Callable[[], str | None]) -> None:
        super().__init__(name=f"answers-{name}", daemon=True)
        self._ours, self.theirs = socket.socketpair()
        self._take = take

    def run(self) -> None:
        self.theirs.close()  # the lane has it now: when it ends, so does the reading here
        with self._ours, self._ours.makefile("rw") as lines:
            for _ in lines:
                lines.write(f"{self._take() or ''}\n")
                lines.flush()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--take", type=int, help="ask through this file descriptor which of the files comes next")


def pytest_configure(config: pytest.Config) -> None:
    descriptor = config.getoption("--take")
    if descriptor is not None:
        config.pluginmanager.register(_Taker(descriptor))


class _Taker:
    """Collects a file when it is taken, and runs it."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # what tests start does not hold the lane's line
        self._lines = socket.socket(fileno=descriptor).makefile("rw")
        self._modules: dict[str, pytest.Collector] = {}
        self._nice = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the files, without importing them."""
        for node in session.perform_collect(genitems=False):
            assert isinstance(node, pytest.Collector)
            self._modules[_path(node)] = node
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what is taken until nothing is left. The next file is taken before the last test of the one before."""
        items = self._take(session)
        while items:
            after: Sequence[pytest.Item] = []
            self._step_back(_path(items[0]))
            for number, item in enumerate(items, 1):
                if number == len(items):
                    after = self._take(session)
                following = [*items[number:], *(after[:1] if _bed_of(item) == _bed_of(*after[:1]) else ())]
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following[0] if following else None)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
            items = after
        return True

    def _take(self, session: pytest.Session) -> Sequence[pytest.Item]:
        """The tests of the next file that has any; none if nothing is left."""
        while path := self._next():
            items = list(session.genitems(self._modules[path]))
            session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            session.testscollected += len(items)
            if items:
                # What a lane has imported stays: a full collection that walks it takes a tenth of the lane's time.
                gc.collect()
                gc.freeze()
                return items
        return []

    def _step_back(self, path: str) -> None:
        """Leave the processors to the lane in the longest bed. There is no way back, and no need of one."""
        if bed(path) != LONGEST and not self._nice:
            os.nice(NICENESS)  # what the tests start inherits it
            self._nice = True

    def _next(self) -> str:
        self._lines.write("next\n")
        self._lines.flush()
        return self._lines.readline().rstrip("\n")


def _bed_of(*items: pytest.Item) -> int | None:
    """The bed of the first; None without one."""
    return bed(_path(items[0])) if items else None


def _path(node: pytest.Item | pytest.Collector) -> str:
    return node.path.relative_to(node.config.rootpath).as_posix()
