#!/usr/bin/env bash
# Runs a command in kernel/ with the first Rust that is new enough: tests/cluster/rust.sh cargo test --locked. What cargo builds lies in
# the cache, for all clones. Without a command it only says whether there is such a Rust.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/cluster/lock.sh
cd kernel

# cargo takes for compiled what is older than what it has made, also where that was made of another clone's sources. So clones take turns,
# and what was made of our crates is forgotten when the sources are not those of the turn before. Other crates stay compiled.
forget_other_sources() {
  local sources folder
  mkdir -p "$cache/locks"
  exec 8>>"$cache/locks/cargo.lock" # until the command ends
  take 8 "$cache/locks/cargo.lock"
  sources=$(find . -path ./target -prune -o -type f -print | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum)
  for folder in "$CARGO_TARGET_DIR" "$cache/cargo-arm64"; do
    [[ $(cat "$folder/sources" 2>/dev/null) == "$sources" ]] && continue
    mkdir -p "$folder"
    find "$folder" -path '*/.fingerprint/logkeep-*' -prune -exec rm -rf {} +
    echo "$sources" >"$folder/sources"
  done
}

oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
for candidate in cargo /usr/bin/cargo "$HOME/.cargo/bin/cargo"; do
  program=$(command -v "$candidate") || continue
  version=$("$program" --version 2>/dev/null | cut -d' ' -f2) || continue
  if [[ $(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1) == "$oldest" ]]; then
    (($#)) || exit 0
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/logkeep
    export CARGO_TARGET_DIR=$cache/cargo CARGO_INCREMENTAL=0
    export PATH=${program%/*}:$PATH # rustc, rustfmt and clippy are those beside this cargo
    # One module for all versions of Python: which one is on this machine must not matter.
    export PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1
    [[ " $* " == *" --version "* || " $* " == *" fmt "* ]] || forget_other_sources
    exec "$@"
  fi
done
echo "the kernel needs Rust $oldest or newer: on Debian 12 install cargo-web and rustc-web, elsewhere see https://rustup.rs" >&2
exit 1
