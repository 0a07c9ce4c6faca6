"""The files that workflows and the Dockerfile name are there, and no registry's host is named. Prints each problem."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]

# Files that a job makes before it names them.
MADE = ("program/", "release/", "digests/")

# What is named in a step: a path with a folder, or the two files at the root.
PATHS = re.compile(r"(?<![\w/.@$}-])(\.?/?(?:[\w.-]+/)+[\w.*-]+|Cargo\.toml|CHANGELOG\.md|Dockerfile)")

# The host of a registry: a name with a dot, a folder of it, and a tag or digest.
HOSTS = re.compile(r"\b[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d+)?/[\w./-]+(?::[\w.-]+|@sha256)")


def named(text):
    """The paths of the repository in a workflow. Actions (`uses: owner/name@v1`) are none."""
    for line in text.splitlines():
        line = line.split(" #")[0]
        if line.lstrip().startswith("#") or re.search(r"uses: [\w-]+/", line):
            continue
        for path in PATHS.findall(line):
            if "/" not in path or (ROOT / path.removeprefix("./").split("/")[0]).exists() or path.startswith("./"):
                yield path


def problems():
    """Everything that is wrong."""
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    if {file.name for file in files} != {"ci.yml", "release.yml"}:
        yield f"other workflows: {files}"
    found = 0
    for file in [*files, ROOT / "Dockerfile"]:
        text = file.read_text()
        for host in HOSTS.findall(text):
            yield f"{file.name} names the host of a registry: {host}"
        for path in named(text) if file.suffix == ".yml" else copied(text):
            found += 1
            if not path.startswith(MADE) and not (ROOT / path).exists():
                yield f"{file.name}: no {path}"
    if found < 12:
        yield f"only {found} paths were found: the pattern misses them"
    for script in ("scripts/package", ".ci/run"):
        if not any(script in file.read_text() for file in files):
            yield f"no workflow runs {script}"


def copied(text):
    """What the Dockerfile copies from the repository."""
    for line in text.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            yield from line.split()[1:-1]


def main():
    failed = list(problems())
    for problem in failed:
        print(problem)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
