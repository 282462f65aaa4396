"""The probe and the metrics answer over both families of addresses: a kubelet asks at the pod's own address, which in a
cluster of IPv6 alone is one of IPv6."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from logkeep_operator import serving
from logkeep_operator.errors import OperatorError
from logkeep_operator.metrics import Metrics
from tests.cluster import system

LOOPBACK = ("127.0.0.1", "::1")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever, daemon=True)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join(10)
    running.close()


@contextmanager
def probe(look: Callable[[], str], loop: asyncio.AbstractEventLoop) -> Iterator[int]:
    (port,) = system.free_ports(1)
    server = serving.serve(port, serving.probe_handler(look, loop))
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()


def requested(host: str, port: int, path: str) -> bytes:
    url = f"http://{system.host_port(host, port)}{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


@pytest.mark.parametrize("host", LOOPBACK)
def test_the_probe_says_whether_the_replica_acts(host: str, loop: asyncio.AbstractEventLoop) -> None:
    with probe(lambda: "waits", loop) as port:
        assert json.loads(requested(host, port, "/healthz")) == {"work": "waits"}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            requested(host, port, "/")


@pytest.mark.parametrize("host", LOOPBACK)
def test_the_metrics_are_served(host: str) -> None:
    metrics, (port,) = Metrics(), system.free_ports(1)
    metrics.leading(True)
    metrics.serve(port)
    assert b"\nlogkeep_leader 1.0\n" in requested(host, port, "/metrics")


def test_the_probe_fails_when_the_work_does_not_continue(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def look() -> str:
        raise OperatorError("the work queue has not turned for 130 s")

    with probe(look, loop) as port, pytest.raises(urllib.error.HTTPError, match="500"):
        requested("::1", port, "/healthz")
    assert "the probe fails: the work queue has not turned for 130 s" in caplog.text


def test_the_probe_fails_when_the_event_loop_is_stuck(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.1)
    stuck = threading.Event()
    loop.call_soon_threadsafe(stuck.wait)
    with probe(lambda: "acts", loop) as port, pytest.raises(urllib.error.HTTPError, match="500"):
        requested("::1", port, "/healthz")
    stuck.set()
    assert "the probe fails: the event loop is stuck" in caplog.text


def test_a_kernel_without_ipv6_is_served_over_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with serving.listen(0) as listening:
        assert listening.family == socket.AF_INET
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), 10).close()


def test_a_port_that_is_taken_is_an_error() -> None:
    with serving.listen(0) as first, pytest.raises(OSError, match="in use"):
        serving.listen(first.getsockname()[1])
