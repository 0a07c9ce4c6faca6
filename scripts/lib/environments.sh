# shellcheck shell=bash
# Sourced by scripts/verifiers, clients, card-clients, balancers, provider, manifests, agents, site, workflows and
# check-openapi: Python and Node packages in a folder of their own below target/.

# A step that fails in `$(environments …)` ends it: without this an installation that failed counts as complete.
shopt -s inherit_errexit

# installer: prints the folder of uv and pip, an environment of their own.
installer() {
  local list=scripts/lib/uv/requirements.txt target=${CARGO_TARGET_DIR:-target} folder
  folder=$target/uv-$( (python3 --version && cat "$list") | sha256sum | cut -c1-12)
  exec 8>"$target/uv.lock"
  flock 8
  if [ ! -e "$folder/complete" ]; then
    rm -rf -- "$target"/uv-*
    python3 -m venv "$folder" >&2
    "$folder/bin/pip" install --quiet --no-input --disable-pip-version-check --no-deps --requirement "$list" >&2
    touch "$folder/complete"
  fi
  exec 8>&-
  echo "$folder/bin"
}

# install_python FOLDER LIST: makes an environment with the packages of the list.
install_python() {
  local programs
  programs=$(installer)
  python3 -m venv --without-pip "$1"
  # pip knows more ways to a registry: it reads its own configuration.
  "$programs/uv" pip install --quiet --no-cache --no-deps --compile-bytecode --python "$1/bin/python" --requirement "$2" ||
    "$programs/pip" --python "$1/bin/python" install --quiet --no-input --disable-pip-version-check --no-deps \
      --requirement "$2"
}

# environments NAME FOLDER…: installs the lists of each folder of scripts/lib/NAME (`.` is that one itself):
# requirements.txt into the environment `python`, package.json into node_modules. Prints where they are. Made once for
# each state of the lists, and whole or not at all.
environments() {
  local name=$1 lists=scripts/lib/$1 target=${CARGO_TARGET_DIR:-target} key folder one
  shift
  need python3:python3 node:nodejs npm:npm >&2
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  key=$( (python3 --version && node --version && find "$lists" -type f -print0 | sort -z | xargs -0 cat) | sha256sum | cut -c1-12)
  folder=$target/$name-$key
  mkdir -p "$target"
  # Tests may ask at the same time.
  exec 9>"$target/$name.lock"
  flock 9
  if [ ! -e "$folder/complete" ]; then
    rm -rf -- "$target/$name"-*
    echo "Installing the packages of $lists into $folder …" >&2
    for one in "$@"; do
      mkdir -p "$folder/$one"
      if [ -e "$lists/$one/requirements.txt" ]; then
        install_python "$folder/$one/python" "$lists/$one/requirements.txt" >&2
      fi
      if [ -e "$lists/$one/package.json" ]; then
        cp "$lists/$one/package.json" "$lists/$one/package-lock.json" "$folder/$one/"
        npm ci --prefix "$folder/$one" --no-audit --no-fund --ignore-scripts --silent >&2
      fi
    done
    touch "$folder/complete"
  fi
  realpath "$folder"
}
