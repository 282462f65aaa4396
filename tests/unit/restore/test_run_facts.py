"""A later start continues after what an earlier one has restored if nothing but a right hides whether it is there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.restore.model.state import ALL_BUT_USERS, RestoreState
from logkeep_engine.restore.run import run_facts as facts
from logkeep_engine.restore.run.run_facts import noted_before
from logkeep_engine.storage import LocalStorage

NOTED = RunResult(
    run_id="r1", kind="KafkaRestore", outcome="Failed", exit_code=1, start_time=1.0, end_time=2.0, records=7
)


def silent(*_: Any) -> None:
    raise BrokerUnavailable("a broker does not answer.")


def context_of(root: Path, hidden: list[str]) -> Any:
    state = RestoreState(LocalStorage(root.as_uri()), "r1")
    state.storage.put(state.file(ALL_BUT_USERS), NOTED.to_json().encode())
    return SimpleNamespace(state=state, control=SimpleNamespace(undescribable=lambda _: hidden))


def test_brokers_that_do_not_tell_whether_the_topics_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "check_counted", silent)
    planned: Any = SimpleNamespace(plan=SimpleNamespace(topics=[]))
    with pytest.raises(BrokerUnavailable, match="a broker does not answer"):
        noted_before(context_of(tmp_path, []), planned, NOTED)
    found = noted_before(context_of(tmp_path, ["t"]), planned, NOTED)
    assert found is not None
    assert found.records == 7
    assert "it is no longer known whether the topics are those" in found.warnings[0]
