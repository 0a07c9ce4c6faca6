# shellcheck shell=bash
# Sourced by scripts/verifiers, clients, card-clients, balancers, provider, manifests, agents, site and workflows: Python
# and Node packages in a folder of their own below target/.

# A step that fails in `$(environments …)` ends it: without this an installation that failed counts as complete.
shopt -s inherit_errexit

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
        python3 -m venv "$folder/$one/python"
        "$folder/$one/python/bin/pip" install --quiet --no-input --disable-pip-version-check --no-deps \
          --requirement "$lists/$one/requirements.txt" >&2
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
