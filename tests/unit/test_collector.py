"""The collector rests while something large is made, and works again afterwards."""

import gc

import pytest

from logkeep_engine import collector


def test_it_rests_inside_and_works_again_after_the_outermost_block() -> None:
    assert gc.isenabled()
    with collector.paused():
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_works_again_after_an_error_and_stays_off_if_it_was_off() -> None:
    with pytest.raises(ValueError, match="x"), collector.paused():
        raise ValueError("x")
    assert gc.isenabled()
    gc.disable()
    try:
        with collector.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
