"""The operator's time is the API server's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes import client

from logkeep_operator.api import Key
from logkeep_operator.cluster import KubernetesCluster


class Answers(BaseHTTPRequestHandler):
    """An API server without any object, whose clock is `ahead`."""

    ahead = timedelta()

    def do_GET(self) -> None:
        said = format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)
        if "slow" in self.path:
            time.sleep(3)
        body = b'{"kind": "Status", "reason": "NotFound"}'
        self.send_response_only(404)
        self.send_header("Date", said)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(params=[-300, 300])
def ahead(request: pytest.FixtureRequest) -> timedelta:
    return timedelta(seconds=request.param)


@pytest.fixture
def cluster(ahead: timedelta) -> Iterator[KubernetesCluster]:
    answers = type("Ahead", (Answers,), {"ahead": ahead})
    with ThreadingHTTPServer(("127.0.0.1", 0), answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
        yield KubernetesCluster(client.ApiClient(configuration))
        server.shutdown()
        thread.join()


def test_time_is_that_of_the_last_answer_and_continues(cluster: KubernetesCluster, ahead: timedelta) -> None:
    assert abs(cluster.now() - datetime.now(UTC)) < timedelta(seconds=60), "nothing was answered yet"
    assert cluster.resource(Key("KafkaBackup", "team", "nightly")) is None
    first = cluster.now()
    assert abs(first - datetime.now(UTC) - ahead) < timedelta(seconds=60)
    assert cluster.now() > first


def test_an_answer_that_was_long_on_its_way_does_not_set_the_clock_back(
    cluster: KubernetesCluster, ahead: timedelta
) -> None:
    cluster.resource(Key("KafkaBackup", "team", "nightly"))
    before = time.monotonic(), cluster.now()
    cluster.resource(Key("KafkaBackup", "slow", "nightly"))
    passed = timedelta(seconds=time.monotonic() - before[0])
    assert abs(cluster.now() - before[1] - passed) < timedelta(seconds=2)  # it says a time three seconds ago
