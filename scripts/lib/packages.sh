# shellcheck shell=bash
# Sourced by the scripts: installs missing Debian packages, or says how.
# shellcheck source=scripts/lib/cargo.sh
. scripts/lib/cargo.sh

# Where Debian has servers, outside of most users' PATH.
: "${SERVERS_PATH=/usr/sbin$(printf ':%s' /usr/lib/postgresql/*/bin)}"

# is_there COMMAND: succeeds if it can be run.
is_there() { PATH=$PATH:$SERVERS_PATH command -v "$1" >/dev/null 2>&1; }

# install_packages NAME…: as root or by sudo; otherwise prints the command and stops.
install_packages() {
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing: $*. This script installs with apt-get, which is not here; install them yourself." >&2
    exit 1
  fi
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    # Without a terminal nothing can be typed.
    if ! command -v sudo >/dev/null 2>&1 || ! { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      echo "Missing: $*. Run this as root, then start the script again:" >&2
      echo "  apt-get update && apt-get install -y --no-install-recommends $*" >&2
      exit 1
    fi
    sudo=(sudo)
  fi
  echo "Installing $* …" >&2
  "${sudo[@]}" apt-get update -qq
  # A server package must not start a server here: the tests start their own.
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# need_browser: chromium, which not every system has as a package of that name.
need_browser() {
  is_there chromium && return
  (install_packages chromium) || true
  if ! is_there chromium; then
    echo "The browser tests need a command \`chromium\`, and no package of that name could be installed (Ubuntu has" >&2
    echo "it as a snap only). Install Chromium or Chrome, put it on the PATH as \`chromium\`, then start again." >&2
    exit 1
  fi
}

# need COMMAND:PACKAGE…: installs the packages whose command is missing.
need() {
  # Who brings the binaries (BIN) builds nothing.
  if [ -z "${BIN:-}" ] && ! is_there cargo; then
    echo "Rust is missing. Install it, then start the script again:" >&2
    echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
    exit 1
  fi
  local missing=() pair
  for pair in "$@"; do
    is_there "${pair%%:*}" || missing+=("${pair##*:}")
  done
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

# need_build_tools: what building the program needs beside Rust. Pingora's TLS and compression are C, built with cmake.
need_build_tools() {
  need cmake:cmake make:make cc:gcc
  cc -xc - -o /dev/null 2>/dev/null <<<'int main(void) { return 0; }' || install_packages libc6-dev
}

# free_space FOLDER: prints the free space of its file system, in GB.
free_space() { df --output=avail -BG "$1" | tail -n 1 | tr -dc '0-9'; }

# free_memory: prints the memory that programs can have, in GB.
free_memory() { awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo; }
