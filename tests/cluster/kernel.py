"""The kernel's sources, and what is known of them: whether their tests in Rust pass is remembered until they change."""

import os
from pathlib import Path

from tests.cluster import cache, system

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "kernel"
RUST = (ROOT / "tests" / "cluster" / "rust.sh",)
"""The command within which cargo runs."""

_PASSED = "kernel-tests"


def sources() -> list[Path]:
    """All that cargo reads to compile the kernel and its tests."""
    return [FOLDER / name for name in ("Cargo.toml", "Cargo.lock", "core", "python")]


def key() -> str:
    """A hash of the sources, the compiler, and the variables that change what cargo makes and what its tests do."""
    compiler = [system.run([*RUST, program, "--version", "--verbose"]).stdout for program in ("cargo", "rustc")]
    given = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("RUST", "PROPTEST_"))]
    return cache.digest(*sources(), *compiler, *given)


def crates() -> str:
    """Return a line for each crate that is linked into the kernel, as `cargo tree` prints it in the Dockerfile."""
    which = ("--package", "logkeep-kernel", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}")
    return system.run([*RUST, "cargo", "tree", "--locked", *which]).stdout


def run_tests(*, again: bool = False) -> str:
    """Run the tests in Rust, if it is not known yet that they pass with this `key`, or `again`. Returns what cargo has
    printed. Raises CommandFailed with it as long as they fail.
    """
    if again:
        return _cargo_test()

    def produce(folder: Path) -> None:
        (folder / "printed").write_text(_cargo_test())

    return (cache.build(_PASSED, key(), produce, keep=20) / "printed").read_text()


def compile_tests() -> None:
    """Compile the tests in Rust, unless it is known already that they pass."""
    if not (cache.root() / _PASSED / key()).exists():
        _cargo_test("--no-run")


def _cargo_test(*options: str) -> str:
    return system.run([*RUST, "cargo", "test", "--locked", *options], timeout=1800).stdout
