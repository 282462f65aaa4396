#!/usr/bin/env bash
# Runs a command in kernel/ with the first Rust that is new enough: tests/cluster/rust.sh cargo test --locked. What cargo builds lies in
# the cache, for all clones. Without a command it only says whether there is such a Rust.
set -euo pipefail
cd "$(dirname "$0")/../../kernel"

oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
for candidate in cargo /usr/bin/cargo "$HOME/.cargo/bin/cargo"; do
  program=$(command -v "$candidate") || continue
  version=$("$program" --version 2>/dev/null | cut -d' ' -f2) || continue
  if [[ $(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1) == "$oldest" ]]; then
    (($#)) || exit 0
    export CARGO_TARGET_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/logkeep/cargo CARGO_INCREMENTAL=0
    export PATH=${program%/*}:$PATH # rustc, rustfmt and clippy are those beside this cargo
    # One module for all versions of Python: which one is on this machine must not matter.
    export PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1
    exec "$@"
  fi
done
echo "the kernel needs Rust $oldest or newer: on Debian 12 install cargo-web and rustc-web, elsewhere see https://rustup.rs" >&2
exit 1
