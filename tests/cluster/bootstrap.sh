#!/usr/bin/env bash
# Makes a fresh Debian 12 machine able to run `make test`: system packages (as root), the locked Python packages in a virtual
# environment under the cache, the compiled kernel at kernel/built. Prints the environment's path as its only line on standard output.
# Does nothing that is done already. `bootstrap.sh demo` leaves out pyspark: the demo runs it only in the image.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/logkeep
say() { echo "logkeep bootstrap: $*" >&2; }

mkdir -p "$cache/locks"
lock=$cache/locks/bootstrap.lock
exec 9>>"$lock"
. tests/cluster/lock.sh
take 9 "$lock"

ends() {
  [[ -z $ticker ]] || kill "$ticker" 2>/dev/null || true
  [[ -z $compiling ]] || kill -- "-$compiling" 2>/dev/null || true
  [[ -z $ahead ]] || kill -- "-$ahead" 2>/dev/null || true
  [[ -z $ours ]] || rm -f "$ours"
}
ticker='' compiling='' ahead='' ours=''
trap ends EXIT

# What the test bed calls, by package. openjdk-17-jre-headless stands for any Java 17 or newer, openjdk-17-jdk-headless for any javac of one,
# python3-venv for any Python 3.11+.
packages=(
  buildah busybox-static ca-certificates conntrack containerd containernetworking-plugins debian-archive-keyring
  debootstrap git gpgv iproute2 iptables kmod make openssl procps python3-venv runc shellcheck socat util-linux
)
command -v java >/dev/null || packages+=(openjdk-17-jre-headless)
command -v javac >/dev/null || packages+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null || packages+=(maven openjdk-17-jre-headless)
command -v cc >/dev/null || packages+=(gcc libc6-dev)
tests/cluster/rust.sh 2>/dev/null || packages+=(cargo-web rustc-web rustfmt-web rust-web-clippy)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if ((${#missing[@]})); then
  if ((EUID == 0)); then
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # A service started by a package would be a second container runtime on the machine: ours is started by the tests.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
      printf '#!/bin/sh\nexit 101\n' >"$policy"
      chmod +x "$policy"
      ours=$policy
    fi
    log=$cache/apt.log
    # It holds neither the lock nor what reads the output of this script.
    (while sleep 10; do say "installing ${#missing[@]} Debian packages: $(tail -n 1 "$log" | cut -c1-80)"; done) >&2 9>&- &
    ticker=$!
    if ! { apt-get -q update && apt-get -q install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
      tail -n 30 "$log" >&2
      say "apt-get failed; all of its output is in $log"
      exit 1
    fi
    kill "$ticker"
    ticker=
  else
    say "not root, so these stay missing: ${missing[*]}"
  fi
fi

python=
# Debian's own Python first: its images have it, and it is compiled with profiles, a quarter faster than one built on the machine.
for candidate in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
  if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[[ $python ]] || { say "no Python 3.11, 3.12 or 3.13 with venv found"; exit 1; }

# Runs a command, and says each ten seconds where it is: what it prints is shown only if it fails.
step() { "$python" -m tests.cluster.progress "$@"; }

# The key: the lock and the interpreter. The project itself is not installed: PYTHONPATH names its source roots (Makefile), so
# every clone of the repository can use the same environment.
key=$({ cat requirements.lock; "$python" -c 'import sys; print(sys.version, sys.base_prefix)'; } | sha256sum | cut -c1-16)
venv=$cache/venv/$key
fetched=$cache/packages/$key
complete=$venv/complete
[[ ${1:-} != demo || -e $complete ]] || complete=$venv/complete-for-demo fetched=$fetched-for-demo
install_packages() {
  local started=$SECONDS wanted=requirements.lock
  if [[ ! -e $venv/complete-for-demo ]]; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
  fi
  if [[ $complete = *-for-demo ]]; then
    wanted=$venv/demo.txt
    awk '/^[^ ]/ { leave = /^pyspark==/ } !leave' requirements.lock >"$wanted"
  fi
  # What builds a package from its sources is in the lock, too, and comes first. Nothing is installed without its hash.
  "$python" docker/requirements.py pyproject.toml requirements.lock build >"$venv/build.txt"
  locked=(--disable-pip-version-check --no-deps --require-hashes --use-pep517 --no-build-isolation)
  step "builders of Python packages" "$venv/bin/python" -m pip install "${locked[@]}" -r "$venv/build.txt"
  if [[ ! -e $fetched ]]; then
    say "fetching the locked packages (once)"
    rm -rf "$fetched.partial"
    step "fetching Python packages" \
      "$venv/bin/python" -m pip download "${locked[@]}" --dest "$fetched.partial" -r "$wanted"
    mv "$fetched.partial" "$fetched"
  fi
  # Wheels that are made here are not compressed: they are unpacked at once, and pyspark's jars do not get smaller. Python
  # compiles what is imported, which is the smaller part.
  printf '[bdist_wheel]\ncompression = stored\n' >"$venv/stored.cfg"
  DIST_EXTRA_CONFIG=$venv/stored.cfg step "installing Python packages" \
    "$venv/bin/python" -m pip install "${locked[@]}" --no-compile --no-index --find-links "$fetched" -r "$wanted"
  touch "$complete"
  say "installed the locked Python packages in $((SECONDS - started)) s"
}

# The kernel's key: its sources and the compiler. Each clone has a link to the module of its own sources.
tests/cluster/rust.sh
kernel_key=$({ (cd kernel && find Cargo.toml Cargo.lock core python -type f | LC_ALL=C sort | xargs sha256sum)
  tests/cluster/rust.sh cargo --version --verbose
  echo "${RUSTFLAGS:-}"; } | sha256sum | cut -c1-16)
kernel=$cache/kernel/$kernel_key
compile_kernel() {
  local started=$SECONDS
  say "compiling the kernel"
  rm -rf "$kernel.partial"
  mkdir -p "$kernel.partial"
  # shellcheck disable=SC2016 # the inner shell expands it
  step "compiling the kernel" tests/cluster/rust.sh bash -euc '
    cargo build --locked --release --package logkeep-kernel
    cp "$CARGO_TARGET_DIR/release/liblogkeep_kernel.so" "$1"
  ' bash "$kernel.partial/logkeep_kernel.abi3.so"
  mv "$kernel.partial" "$kernel"
  say "compiled the kernel in $((SECONDS - started)) s"
  # Each clone and each compiler leaves its own files there, and cargo removes none.
  (($(du -sm "$cache/cargo" | cut -f1) < 4000)) || rm -rf "$cache/cargo"
}

# The packages wait for the network most of the time, the compiler never.
if [[ ! -e $kernel ]]; then
  set -m # a process group of its own, to end it by
  compile_kernel &
  compiling=$!
  set +m
fi
mkdir -p "$cache/packages"
if [[ ! -e $complete ]]; then
  # Meanwhile Kubernetes, which takes longest. It ends with this script: what Go has compiled by then it does not compile again.
  set -m
  nice "$python" -c 'from tests.cluster import tools; tools.kube()' 9>&- >/dev/null 2>&1 &
  ahead=$!
  set +m
  install_packages
fi
if [[ $compiling ]]; then
  wait "$compiling"
  compiling=
fi
touch "$venv" "$kernel"
ln -sfn "${fetched##*/}" "$cache/packages/current"
if [[ $(readlink kernel/built) != "$kernel" ]]; then
  ln -sfn "$kernel" kernel/.built
  mv -T kernel/.built kernel/built
fi

# Old environments are a gigabyte each: keep the two last used. A module of the kernel is some megabytes, and each clone may have its own.
keep() {
  find "$cache/$1" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' | sort -rn | tail -n +$(($2 + 1)) | cut -d' ' -f2- | xargs -r rm -rf
}
keep venv 2
keep packages 2
keep kernel 20
echo "$venv"
