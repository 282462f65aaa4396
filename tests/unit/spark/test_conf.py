"""The meaning of `--master` for a run."""

import os

import pytest

from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.errors import SpecError
from logkeep_engine.spark.conf import kubernetes_conf, planned_for

SPEC = parse_backup(
    {
        "cluster": {"bootstrapServers": ["kafka:9092"]},
        "topics": {"include": ["orders"]},
        "storage": {"uri": "file:///archive"},
        "spark": {"executor": {"instances": 3, "cores": 2, "memory": "2Gi"}},
    }
)


@pytest.mark.parametrize(
    ("master", "slots"),
    [(None, 6), ("local", 1), ("local[8]", 8), ("local[100]", 100), ("local[*]", os.cpu_count() or 1)],
)
def test_a_run_is_planned_for_the_tasks_that_run_at_once(master: str | None, slots: int) -> None:
    spec = planned_for(master, SPEC)
    assert spec.spark.executor.slots == slots
    assert spec.model_copy(update={"spark": SPEC.spark}) == SPEC
    assert spec.spark.executor.memory == "2Gi"


def test_another_master_is_refused() -> None:
    with pytest.raises(SpecError, match=r"--master 'yarn' is not local, local\[N\] or local\[\*\]"):
        planned_for("yarn", SPEC)


@pytest.mark.parametrize("asked", [{}, {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}])
def test_driver_and_executors_encrypt_what_they_send_whatever_is_asked_for(asked: dict[str, str]) -> None:
    environ = {
        "LOGKEEP_POD_NAME": "nightly-0123456789-abcde", "LOGKEEP_POD_IP": "10.0.0.1", "LOGKEEP_POD_NAMESPACE": "team",
        "KUBERNETES_SERVICE_HOST": "10.0.0.2", "KUBERNETES_SERVICE_PORT": "443",
    }  # fmt: skip
    conf = kubernetes_conf(asked, environ)
    private = {name.removeprefix("spark.network.crypto."): value for name, value in conf.items() if "crypto" in name}
    assert conf["spark.authenticate"] == "true"
    assert private == {
        "enabled": "true", "authEngineVersion": "2", "cipher": "AES/GCM/NoPadding", "saslFallback": "false",
    }  # fmt: skip
