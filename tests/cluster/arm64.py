"""The kernel for arm64. `python -m tests.cluster.arm64` says whether it compiles, on Debian 12 on x86.

Debian's compilers for it are unpacked into the cache, and nothing is installed. `check` compiles all Rust for arm64,
and the C and assembly of crates, and links nothing. `build` makes the module of a release. Neither runs it.
"""

import shutil
import tempfile
from pathlib import Path

from tests.cluster import cache, kernel, system

TARGET = "aarch64-unknown-linux-gnu"
MODULE = "logkeep_kernel.abi3.so"
RELEASE = "bookworm"  # its own compiler, which is the oldest that the kernel is for, and no newer one
PACKAGES = (
    # Rust for this machine, on which build scripts run, and the library for arm64
    "rustc-web:amd64", "libstd-rust-web-1.85:amd64", "libstd-rust-web-dev:amd64", "libstd-rust-web-dev:arm64",
    "libbsd0:amd64", "libedit2:amd64", "libicu72:amd64", "libllvm19:amd64", "libmd0:amd64", "libxml2:amd64",
    "libz3-4:amd64",
    # C for arm64: some crates have sources in C
    "binutils-aarch64-linux-gnu:amd64", "cpp-12-aarch64-linux-gnu:amd64", "gcc-12-aarch64-linux-gnu:amd64",
    "libbinutils:amd64", "libc6-arm64-cross", "libc6-dev-arm64-cross", "libctf-nobfd0:amd64", "libctf0:amd64",
    "libgcc-12-dev-arm64-cross", "libgcc-s1-arm64-cross",
    "libgmp10:amd64", "libisl23:amd64", "libjansson4:amd64", "libmpc3:amd64", "libmpfr6:amd64",
    "linux-libc-dev-arm64-cross",
)  # fmt: skip
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_CALL = """#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$root/{libraries} exec "$root/usr/bin/{program}" {arguments} "$@"
"""
_OF_C = (
    '--sysroot="$root" -B"$root/usr/bin/aarch64-linux-gnu-" -isystem "$root/usr/aarch64-linux-gnu/include" '
    '-B"$root/usr/aarch64-linux-gnu/lib/" -L"$root/usr/aarch64-linux-gnu/lib"'
)


def compilers() -> Path:
    """The folder with the programs `rustc`, `cc` and `ar`, which compile for arm64."""

    def produce(folder: Path) -> None:
        _download(folder)
        calls = {"rustc": ("rustc", ""), "cc": ("aarch64-linux-gnu-gcc-12", _OF_C), "ar": ("aarch64-linux-gnu-ar", "")}
        for name, (program, arguments) in calls.items():
            path = folder / name
            path.write_text(_CALL.format(libraries=_LIBRARIES, program=program, arguments=arguments))
            path.chmod(0o755)

    return cache.build("arm64-compilers", cache.digest(RELEASE, *PACKAGES, _CALL, _OF_C), produce, keep=1)


def _download(folder: Path) -> None:
    """Unpack the packages there, with lists of packages of our own: those of the machine stay as they are."""
    with tempfile.TemporaryDirectory(dir=cache.root()) as scratch:
        here = Path(scratch)
        for name in ("state/lists/partial", "cache/archives/partial", "packages"):
            (here / name).mkdir(parents=True)
        (here / "status").touch()
        settings = (
            f"Dir::State={here}/state", f"Dir::State::status={here}/status", f"Dir::Cache={here}/cache",
            "APT::Architectures::=amd64", "APT::Architectures::=arm64", "APT::Sandbox::User=root",
            "Acquire::Languages=none",
        )  # fmt: skip
        apt = ["apt-get", "-q", *(f"-o{setting}" for setting in settings)]
        system.run([*apt, "update"])
        system.run([*apt, "download", *(f"{package}/{RELEASE}" for package in PACKAGES)], cwd=here / "packages")
        for package in sorted((here / "packages").iterdir()):
            system.run(["dpkg-deb", "--extract", package, folder])


def check() -> Path:
    """Compile the kernel for arm64, once for each state of its sources. Raises CommandFailed with what the compiler
    says."""

    def produce(folder: Path) -> None:
        _cargo("check")
        (folder / "checked").touch()

    return cache.build("arm64-kernel", cache.digest(*kernel.sources(), RELEASE, *PACKAGES), produce, keep=20)


def build() -> Path:
    """Return the compiled module of arm64, once for each state of its sources. Raises CommandFailed with what the
    compiler says."""

    def produce(folder: Path) -> None:
        made = _cargo("build", "--release", "--package", "logkeep-kernel")
        shutil.copy(made / TARGET / "release" / "liblogkeep_kernel.so", folder / MODULE)

    return cache.build("arm64-module", cache.digest(*kernel.sources(), RELEASE, *PACKAGES), produce, keep=3) / MODULE


def _cargo(*call: str) -> Path:
    found = compilers()
    variable = TARGET.replace("-", "_")
    environment = {
        "RUSTC": f"{found}/rustc",
        "RUSTFLAGS": "",
        f"CC_{variable}": f"{found}/cc",
        f"AR_{variable}": f"{found}/ar",
        f"CARGO_TARGET_{variable.upper()}_LINKER": f"{found}/cc",
    }
    where = cache.root() / "cargo-arm64"  # not that of other builds, which would wait
    options = ("--locked", "--target", TARGET, "--target-dir", where)
    system.run([*kernel.RUST, "cargo", *call, *options], env=environment, timeout=1800)
    return where


if __name__ == "__main__":
    check()
    print("The kernel compiles for arm64.")
