# shellcheck shell=bash
# Sourced by the scripts, at the root of the clone: finds Cargo, and a folder that it can build in.

if ! command -v cargo >/dev/null 2>&1 && [ -x "${HOME:-}/.cargo/bin/cargo" ]; then
  PATH=$HOME/.cargo/bin:$PATH
fi

# jemalloc cannot be built at a path with a space: such a clone is built in the user's cache.
case ${CARGO_TARGET_DIR:-$PWD} in
  *[[:space:]]*)
    CARGO_TARGET_DIR=${XDG_CACHE_HOME:-${HOME:-}/.cache}/a2a-gateway/$(pwd | cksum | cut -d ' ' -f 1)
    case $CARGO_TARGET_DIR in
      *[[:space:]]*)
        echo "jemalloc cannot be built at a path with a space: set CARGO_TARGET_DIR to a folder without one." >&2
        exit 1
        ;;
    esac
    export CARGO_TARGET_DIR
    echo "The path has a space, so the build is in $CARGO_TARGET_DIR" >&2
    ;;
esac
