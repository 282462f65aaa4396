"""Which client a question goes to: behind a rest a new one, which knows no controller that has died meanwhile."""

import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from logkeep_engine.contract.cluster import Protocol
from logkeep_engine.errors import CredentialsMissing
from logkeep_engine.kafka import admin
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from tests.cluster.pki import Authority

REST = 3600.0
"""Longer than this test may take."""


class Client:
    """Asks nobody."""

    def __init__(self) -> None:
        self.polled = Event()

    def poll(self, timeout: float) -> int:
        self.polled.set()
        return 0


@pytest.fixture(autouse=True)
def _long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_REST_SECONDS", REST)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    monkeypatch.setattr(admin, "AdminClient", lambda _: Client())
    return ControlPlane(KafkaConnection(("127.0.0.1:1",)))


def rest(control: ControlPlane) -> None:
    control._asked_at -= REST


def test_questions_that_follow_each_other_share_a_client_and_one_behind_a_rest_gets_its_own(
    control: ControlPlane,
) -> None:
    first = control._client()
    assert control._client() is first
    rest(control)
    second = control._client()
    assert second is not first
    assert control._client() is second, "the rest begins anew with each question"


def test_the_rest_begins_behind_the_answer(control: ControlPlane) -> None:
    first = control._client()
    rest(control)
    asked: Future[str] = Future()
    asked.set_result("an answer")
    assert control._outcome(asked) == ("an answer", None)
    assert control._client() is first


def test_a_client_whose_question_has_no_answer_yet_lives_on(control: ControlPlane) -> None:
    asked: Future[str] = Future()
    client = weakref.ref(control._client())
    polled = control._admin.polled  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(control._outcome, asked)
        assert polled.wait(10)
        control._admin = control._new_admin()
        assert client() is not None
        asked.set_result("an answer")
        assert outcome.result(10) == ("an answer", None)
    assert client() is None


def test_certificates_that_become_unusable_are_named_by_the_next_question(tmp_path: Path) -> None:
    """A Secret that is mounted changes while a run goes on."""
    authority = Authority(tmp_path)
    with ControlPlane(KafkaConnection(("127.0.0.1:1",), Protocol.SSL, ca_file=str(authority.cert))) as control:
        authority.cert.write_text("no certificate")
        rest(control)
        with pytest.raises(CredentialsMissing, match="certificate files cannot be used"):
            control.cluster_id()
