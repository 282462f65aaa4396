"""Clones share what cargo has compiled, and each gets what its own sources say."""

import os
import shutil
from pathlib import Path

from tests.cluster import kernel, system

MANIFEST = """
[package]
name = "logkeep-kernel"
version = "0.1.0"
edition = "2021"
rust-version = "1.85"
"""


def clone(folder: Path, says: str) -> Path:
    """A clone whose kernel is a program that says something. All of its files are an hour old."""
    program = folder / "tests" / "cluster" / "rust.sh"
    program.parent.mkdir(parents=True)
    shutil.copy(*kernel.RUST, program)
    shutil.copy(kernel.ROOT / "tests" / "cluster" / "lock.sh", program.parent)
    files = {"Cargo.toml": MANIFEST, "src/main.rs": f'fn main() {{ println!("{says}"); }}\n'}
    for name, text in files.items():
        path = folder / "kernel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, times=(then := path.stat().st_mtime - 3600, then))
    return program


def test_a_clone_that_is_older_than_what_another_has_compiled_gets_its_own(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    one, other = clone(tmp_path / "one", "one"), clone(tmp_path / "other", "other")
    for program, said in ((one, "one\n"), (other, "other\n"), (other, "other\n"), (one, "one\n")):
        assert system.run([program, "cargo", "run", "--quiet", "--offline"], env=environment).stdout == said
