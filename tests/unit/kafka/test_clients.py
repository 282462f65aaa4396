"""Which client a question goes to: behind a rest a new one, which knows no controller that has died meanwhile."""

import pytest

from logkeep_engine.kafka.admin import _REST_SECONDS
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane


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
