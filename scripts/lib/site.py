"""Builds the site of the documents: lays them out at their paths in the repository, so that each link means there what
it means on a Git host, has mdBook build them, and looks at every link of every page that it made.

    site.py MDBOOK SOURCE SITE
"""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.parse

ROOT = pathlib.Path(__file__).parents[2]

# Lists all pages of `docs`, in the order of the site.
CONTENTS = "docs/README.md"

# The page that is made from the defaults, and the page before it, which names the file with them.
CONFIGURATION = "docs/reference/configuration.md"
SETTINGS = CONFIGURATION.replace("configuration", "settings")
DEFAULTS = "config/default.toml"

FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def links(path):
    """The links of a document to files of the repository, as paths from the root."""
    for link in LINK.findall(FENCED.sub("", (ROOT / path).read_text())):
        target = urllib.parse.unquote(link.partition("#")[0])
        if target and "://" not in target and not target.startswith("mailto:"):
            yield os.path.normpath(os.path.join(os.path.dirname(path), target))


def reached():
    """The files of the site: the documents at the root, all of `docs`, and the files that a document among them links."""
    waiting = [path.name for path in sorted(ROOT.glob("*.md"))]
    waiting += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()]
    found = []
    while waiting:
        path = waiting.pop(0)
        # A link to no file is a fault of the page that has it.
        if path not in found and (ROOT / path).is_file():
            found.append(path)
            waiting += links(path) if path.endswith(".md") else []
    return found


def settings():
    """The defaults as a page: a heading for each section, so that the search finds settings."""
    lines = ["# Settings", "", "All settings with their defaults. How to set them: [configuration](configuration.md)."]
    for part in re.split(r"^# -{20,}\n", (ROOT / DEFAULTS).read_text(), flags=re.MULTILINE):
        name = re.search(r"^\[([a-z0-9_]+)\]", part, re.MULTILINE)
        lines += ["", f"## {name[1] if name else 'Without a section'}", "", "```toml", part.strip(), "```"]
    return "\n".join(lines) + "\n"


def text(path):
    """A document of the site. There the reference names the page of settings instead of the file."""
    if path == SETTINGS:
        return settings()
    read = (ROOT / path).read_text()
    is_beside = os.path.dirname(path) == os.path.dirname(SETTINGS)
    return read.replace(f"](../../{DEFAULTS})", "](settings.md)") if is_beside else read


def title(path):
    """The first heading of a document."""
    return re.search(r"^# (.+)", text(path), re.MULTILINE)[1]


def parts():
    """The parts of the site with their pages, as the contents have them: a heading, or a group of links below one."""
    text = (ROOT / CONTENTS).read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        first, *groups = re.split(r"^- \*\*(.+?)\*\*", body, flags=re.MULTILINE)
        named = [(heading, first), *((f"{heading}: {group}", links) for group, links in zip(groups[::2], groups[1::2]))]
        for name, linked in named:
            pages = [os.path.normpath(f"docs/{link.partition('#')[0]}") for link in LINK.findall(linked)]
            pages = [page for page in pages if page.endswith(".md")]
            if CONFIGURATION in pages:
                pages.insert(pages.index(CONFIGURATION) + 1, SETTINGS)
            if pages:
                yield name, pages


def summary(documents):
    """mdBook's list of pages. A document that the contents do not list is one of a folder of the repository."""
    lines = ["# Summary", "", "[a2a-gateway](README.md)", f"[{title(CONTENTS)}]({CONTENTS})"]
    listed = {"README.md", CONTENTS}
    for name, pages in parts():
        lines += ["", f"# {name}", ""]
        lines += [f"- [{title(page)}]({page})" for page in dict.fromkeys(pages) if page not in listed]
        listed.update(pages)
    lines += ["", "# The repository", ""]
    lines += [f"- [{title(page)}]({page})" for page in documents if page not in listed]
    return "\n".join(lines) + "\n"


def lay_out(source):
    """The folder that mdBook builds."""
    shutil.rmtree(source, ignore_errors=True)
    files = reached()
    documents = [path for path in files if path.endswith(".md")] + [SETTINGS]
    for path in [*files, SETTINGS]:
        copy = source / "src" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path in documents:
            copy.write_text(text(path))
        else:
            shutil.copyfile(ROOT / path, copy)
    (source / "src" / "SUMMARY.md").write_text(summary(documents))
    for name in ("book.toml", "site.css"):
        shutil.copyfile(ROOT / "scripts/lib/mdbook" / name, source / name)
    return documents


def add_text(site, documents):
    """Each page as Markdown beside the HTML, and `llms.txt`, their list for programs that read it."""
    for path in documents:
        (site / path).write_text(text(path))
    book = tomllib.loads((ROOT / "scripts/lib/mdbook/book.toml").read_text())["book"]
    lines = [f"# {book['title']}", "", f"> {book['description']}"]
    for name, pages in [("Overview", ["README.md", CONTENTS]), *parts()]:
        lines += ["", f"## {name}", "", *(f"- [{title(page)}]({page})" for page in dict.fromkeys(pages))]
    (site / "llms.txt").write_text("\n".join(lines) + "\n")


def redirects(site):
    """Each old address, and the page and anchor that it leads to."""
    book = tomllib.loads((ROOT / "scripts/lib/mdbook/book.toml").read_text())
    for old, new in book["output"]["html"]["redirect"].items():
        file, _, anchor = new.partition("#")
        yield old, (site / old.partition("#")[0].lstrip("/")).parent.joinpath(file).resolve(), anchor


class Page(html.parser.HTMLParser):
    """The anchors of a page, and what it links or loads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if "id" in attributes:
            self.anchors.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.add(attributes["href"])
        loaded = attributes.get("src") or (tag == "link" and attributes.get("href"))
        if loaded:
            self.loaded.add(loaded)


def broken(site, documents):
    """Each page that is not there, and each link that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    for document in documents:
        made = document.removesuffix(".md") + ".html"
        if (site / made).resolve() not in pages:
            yield f"{document}: no {made}"
    for old, target, anchor in redirects(site):
        if target not in pages or anchor and anchor not in pages[target].anchors:
            yield f"book.toml: {old} leads nowhere"
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        yield from (f"{name} loads {link}" for link in page.loaded if "://" in link or link.startswith("//"))
        for link in page.links | page.loaded:
            if "://" in link or link.startswith(("mailto:", "//")):
                continue
            file, _, anchor = map(urllib.parse.unquote, link.partition("#"))
            target = (path.parent / file).resolve() if file else path
            if not target.is_file():
                yield f"{name}: no file {link}"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: no heading {link}"


def main():
    mdbook, source, site = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
    documents = lay_out(source)
    shutil.rmtree(site, ignore_errors=True)
    made = subprocess.run([mdbook, "build", "--dest-dir", site.resolve(), source], capture_output=True, text=True)
    said = made.stdout + made.stderr
    if made.returncode != 0:
        sys.exit(said)
    add_text(site, documents)
    failed = [line for line in said.splitlines() if "WARN" in line or "ERROR" in line]
    failed += broken(site, documents)
    if failed:
        sys.exit("\n".join([*failed, f"{len(failed)} faults of the site"]))
    print(site.resolve())


if __name__ == "__main__":
    main()
