"""The chart on a real cluster."""

import pytest

from tests.cluster.logkeep import Installation

pytestmark = pytest.mark.timeout(900)


def test_helm_test_passes_after_an_installation(logkeep: Installation) -> None:
    printed = logkeep.helm("test", logkeep.release, "--timeout", "240s")

    assert "Phase:          Succeeded" in printed, printed
