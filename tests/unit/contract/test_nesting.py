"""JSON of others that nests deeper than anything has a reason to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logkeep_engine.contract.nesting import MOST_LEVELS, loads, loads_cut
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.run import Progress, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.contract.stored import DocumentRefused
from tests.unit.contract.test_patterns import BACKUP


def deep(levels: int, inmost: str = "1") -> str:
    return '{"a":' * levels + inmost + "}" * levels


@pytest.mark.parametrize("text", [deep(9000), "[" * 9000 + "]" * 9000, "[" * 100_000, '{"x":' * 100_000])
def test_what_nests_too_deeply_is_a_mistake_and_no_crash(text: str) -> None:
    with pytest.raises(ValueError, match=r"it nests too deeply"):
        loads(text)
    for kind in (Progress, RunResult):
        with pytest.raises(DocumentRefused, match="not complete JSON: it nests too deeply"):
            kind.from_json(text)


def test_what_nests_too_deeply_is_cut_and_all_beside_it_stays() -> None:
    string = json.dumps('[[[{{{"\\')
    text = f'{{"items":[{deep(9000)},{string},{deep(9000, string)},{deep(3)}],"last":[[],{string}]}}'
    found = loads_cut(text.encode())
    cut, first, other, short = found["items"]
    assert (first, found["last"]) == ('[[[{{{"\\', [[], '[[[{{{"\\'])
    assert short == {"a": {"a": {"a": 1}}}
    for levels in range(198):
        assert isinstance(cut, dict), levels
        cut, other = cut["a"], other["a"]
    assert (cut, other) == (None, None)


@pytest.mark.parametrize("text", [b'{"a"', b"[" * 9000, b'"', b'{"a":' * 9000 + b'"'])
def test_what_is_no_json_is_not_cut_into_any(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads_cut(text)


def affinity(levels: int) -> dict[str, Any]:
    nested = json.loads(deep(levels))
    return {**BACKUP, "spark": {"driver": {"podTemplate": {"spec": {"affinity": {"nodeAffinity": nested}}}}}}


def test_a_spec_that_nests_too_deeply_is_refused_by_field() -> None:
    assert parse_backup(affinity(MOST_LEVELS))
    with pytest.raises(SpecInvalid) as refused:
        parse_backup(affinity(MOST_LEVELS + 1))
    field = "spec.spark.driver.podTemplate.spec.affinity.nodeAffinity"
    assert refused.value.problems == [(field, f"it nests deeper than {MOST_LEVELS} levels")]
