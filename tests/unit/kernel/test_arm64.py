"""The kernel compiles for arm64."""

import platform

import pytest

from tests.cluster import arm64
from tests.examples import number


@pytest.mark.deep
def test_the_kernel_compiles_for_arm64() -> None:
    if not number(0, deep=1) or platform.machine() != "x86_64":
        pytest.skip("make test-deep and make kernel-arm64 do this on x86: they fetch another compiler")
    assert (arm64.check() / "checked").is_file()
