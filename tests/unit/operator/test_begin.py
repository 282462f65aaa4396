"""The time before the operator begins to work: it waits for the CRDs, and says why it does not begin."""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus

import pytest

from logkeep_engine.contract.names import APPLY_CRDS
from logkeep_operator import handlers
from logkeep_operator.settings import from_environ
from tests.unit.operator.test_cluster_calls import Quiet, api

SETTINGS = from_environ({"LOGKEEP_ENGINE_IMAGE": "engine:1", "LOGKEEP_DRIVER_ROLE": "ClusterRole/driver"})


def refusing(status: HTTPStatus, message: str) -> type[Quiet]:
    """An API that answers everything like this."""

    class Refusing(Quiet):
        def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
            self.answer(json.dumps({"reason": status.phrase, "message": message}).encode(), status)

    return Refusing


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (HTTPStatus.NOT_FOUND, "no such group", f"v1alpha1 are not installed: {re.escape(APPLY_CRDS)}"),
        (HTTPStatus.FORBIDDEN, "may not get path /apis", "It is unknown whether the CRDs of .* may not get path /apis"),
        (HTTPStatus.UNAUTHORIZED, "bad token", "It is unknown whether the CRDs of .* 401 bad token"),
    ],
)
def test_an_operator_that_cannot_begin_says_why_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: HTTPStatus, message: str, expected: str
) -> None:
    monkeypatch.setattr(handlers, "CRD_WAIT_SECONDS", 2)

    async def main() -> handlers.Operator:
        with api(refusing(status, message)) as cluster:
            operator = handlers.Operator(SETTINGS, cluster)
            await operator.begin()
            return operator

    operator = asyncio.run(main())
    assert operator.stop.is_set()
    assert operator.tasks == []
    assert [record.getMessage() for record in caplog.records] == [operator.failure]
    assert re.search(expected, operator.failure)
