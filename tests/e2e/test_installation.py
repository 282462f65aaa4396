"""The chart on a real cluster."""

from tests.cluster.logkeep import Installation


def test_helm_test_passes_after_an_installation(logkeep: Installation) -> None:
    printed = logkeep.helm("test", logkeep.release, "--timeout", "120s")

    assert "Phase:          Succeeded" in printed, printed
