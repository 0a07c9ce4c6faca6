"""Prints the licence texts of all crates that are in the program: python licences.py < output of `cargo metadata`.

Crates with the same text share it. A crate without a file of its licence is listed with the name of the licence.
"""

import collections
import json
import pathlib
import re
import sys

# Names of files with a licence, or with a notice that it asks to keep.
NAMES = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")

TEXT_MAX = 200_000


def linked(metadata):
    """The packages of the program, by id: what it depends on at run time, through all levels."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, left = set(), [metadata["resolve"]["root"]]
    while left:
        one = left.pop()
        if one in found:
            continue
        found.add(one)
        left += [dep["pkg"] for dep in nodes[one]["deps"]
                 if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    return found


def texts_of(package):
    """The texts in the folder of a crate."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and NAMES.match(path.name)]
    return [path.read_text(errors="replace").strip() for path in files if path.stat().st_size <= TEXT_MAX]


def main():
    metadata = json.load(sys.stdin)
    inside = linked(metadata)
    # The crates of this workspace have the licence of the package itself.
    own = set(metadata["workspace_members"])
    by_text, without = collections.defaultdict(list), []
    for package in metadata["packages"]:
        if package["id"] not in inside or package["id"] in own:
            continue
        name = f'{package["name"]} {package["version"]}'
        texts = texts_of(package)
        for text in texts:
            by_text[text].append(name)
        if not texts:
            without.append(f'{name}: {package["license"]}')
    print("Licences of the crates that are linked into the program.\n")
    for text, names in sorted(by_text.items(), key=lambda item: item[1]):
        print("=" * 72 + "\n" + "\n".join(sorted(names)) + "\n" + "-" * 72 + f"\n{text}\n")
    print("=" * 72 + "\nCrates without a text of their own, by licence:\n\n" + "\n".join(sorted(without)))


if __name__ == "__main__":
    main()
