"""Which client a question goes to: behind a rest a new one, which knows no controller that has died meanwhile."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from logkeep_engine.kafka.admin import _REST_SECONDS
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from tests.cluster.process import wait_until


def test_questions_that_follow_each_other_share_a_client_and_one_behind_a_rest_gets_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ControlPlane, "_new_admin", lambda _: object())
    control = ControlPlane(KafkaConnection(("127.0.0.1:1",)))
    first = control._client()
    assert control._client() is first
    control._asked_at -= _REST_SECONDS
    second = control._client()
    assert second is not first
    assert control._client() is second, "the rest begins anew with each question"


def test_a_client_whose_question_has_no_answer_yet_stays() -> None:
    control = ControlPlane(KafkaConnection(("127.0.0.1:1",)))
    asked: Future[str] = Future()
    first = control._client()
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(control._outcome, asked)
        wait_until(lambda: control._waiting == 1, 10, "the question to wait")
        control._asked_at -= _REST_SECONDS
        assert control._client() is first
        asked.set_result("an answer")
        assert outcome.result(10) == ("an answer", None)
    assert control._client() is first, "the rest begins behind the answer"
    control._asked_at -= _REST_SECONDS
    assert control._client() is not first
