"""The meaning of `--master` for a run."""

import os

import pytest

from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.errors import SpecError
from logkeep_engine.spark.conf import planned_for

SPEC = parse_backup(
    {
        "cluster": {"bootstrapServers": ["kafka:9092"]},
        "topics": {"include": ["orders"]},
        "storage": {"uri": "file:///archive"},
        "spark": {"executor": {"instances": 3, "cores": 2, "memory": "2Gi"}},
    }
)


@pytest.mark.parametrize(
    ("master", "slots"), [(None, 6), ("local", 1), ("local[8]", 8), ("local[*]", os.cpu_count() or 1)]
)
def test_a_run_is_planned_for_the_tasks_that_run_at_once(master: str | None, slots: int) -> None:
    spec = planned_for(master, SPEC)
    assert spec.spark.executor.slots == slots
    assert spec.model_copy(update={"spark": SPEC.spark}) == SPEC
    assert spec.spark.executor.memory == "2Gi"


def test_another_master_is_refused() -> None:
    with pytest.raises(SpecError, match=r"--master 'yarn' is not local, local\[N\] or local\[\*\]"):
        planned_for("yarn", SPEC)
