# shellcheck shell=bash
# Sourced by the scripts: installs missing Debian packages, or says how.

# install_packages NAME…: as root or by sudo; otherwise prints the command and stops.
install_packages() {
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing: $*. This script installs with apt-get, which is not here; install them yourself." >&2
    exit 1
  fi
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "Missing: $*. Run this, then start the script again:" >&2
      echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*" >&2
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
  command -v chromium >/dev/null 2>&1 && return
  install_packages chromium || true
  if ! command -v chromium >/dev/null 2>&1; then
    echo "The browser tests need a command \`chromium\`, and no package of that name could be installed (Ubuntu has" >&2
    echo "it as a snap only). Install Chromium or Chrome, put it on the PATH as \`chromium\`, then start again." >&2
    exit 1
  fi
}

# need COMMAND:PACKAGE…: installs the packages whose command is missing.
need() {
  local missing=() pair
  for pair in "$@"; do
    # Servers live where not every user looks.
    PATH=$PATH:/usr/sbin command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair##*:}")
  done
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
  # Who brings the binaries (BIN) builds nothing.
  if [ -z "${BIN:-}" ] && ! command -v cargo >/dev/null 2>&1; then
    echo "Rust is missing: install it with rustup, then start the script again." >&2
    exit 1
  fi
}

# free_space FOLDER: prints the free space of its file system, in GB.
free_space() { df --output=avail -BG "$1" | tail -n 1 | tr -dc '0-9'; }

# free_memory: prints the memory that programs can have, in GB.
free_memory() { awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo; }

# need_disk_space GB: fails unless temporary folders have so much room. A full disk fails cases for reasons that none tells.
need_disk_space() {
  local folder=${TMPDIR:-/tmp} free
  free=$(free_space "$folder")
  if [ "$free" -lt "$1" ]; then
    echo "$folder has $free GB free, and the tests need $1 GB there, for the databases of their cases: make room, or set" >&2
    echo "TMPDIR to a folder that has it." >&2
    exit 1
  fi
}
