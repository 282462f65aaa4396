"""The tests in Rust run when something has changed that they depend on, and only then."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import kernel, system

CARGO = """#!/bin/sh
case "$*" in
  *--version*) echo "$1 1.85.0" ;;
  *) echo "$*" >>{folder}/calls; cat {folder}/printed; [ ! -e {folder}/broken ] ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """How a cargo was called that only prints, for a kernel of one file and a cache that is empty."""
    sources = tmp_path / "kernel"
    for name in ("core/lib.rs", "python/lib.rs", "Cargo.toml", "Cargo.lock"):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text(name)
    program = tmp_path / "rust.sh"
    program.write_text(CARGO.format(folder=tmp_path))
    program.chmod(0o755)
    (tmp_path / "printed").write_text("test result: ok. 3 passed\n")
    (tmp_path / "calls").touch()
    monkeypatch.setattr(kernel, "FOLDER", sources)
    monkeypatch.setattr(kernel, "RUST", (program,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_tests_that_passed_are_not_run_again(calls: Callable[[], list[str]]) -> None:
    assert kernel.run_tests() == kernel.run_tests() == "test result: ok. 3 passed\n"
    kernel.compile_tests()
    assert calls() == ["cargo test --locked"]
    kernel.run_tests(again=True)
    assert len(calls()) == 2


@pytest.mark.parametrize("name", ["core/lib.rs", "python/lib.rs", "Cargo.toml", "Cargo.lock", "core/tests/new.rs"])
def test_a_change_of_the_sources_runs_them(calls: Callable[[], list[str]], name: str) -> None:
    kernel.run_tests()
    (kernel.FOLDER / name).parent.mkdir(exist_ok=True)
    (kernel.FOLDER / name).write_text("changed")
    kernel.run_tests()
    assert len(calls()) == 2


@pytest.mark.parametrize("name", ["RUSTFLAGS", "PROPTEST_CASES"])
def test_another_compiler_or_variable_runs_them(
    calls: Callable[[], list[str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.run_tests()
    monkeypatch.setenv(name, "5")
    kernel.run_tests()
    (program,) = kernel.RUST
    program.write_text(program.read_text().replace("1.85.0", "1.86.0"))
    kernel.run_tests()
    assert len(calls()) == 3


def test_a_failure_is_said_until_it_is_mended(calls: Callable[[], list[str]], tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    for _ in range(2):
        with pytest.raises(system.CommandFailed, match="3 passed"):
            kernel.run_tests()
    (tmp_path / "broken").unlink()
    kernel.run_tests()
    assert len(calls()) == 3
