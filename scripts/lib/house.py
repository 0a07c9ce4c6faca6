"""Counts sizes, names and words of the code: run by scripts/house."""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

PRONOUNS = {"whoever", "nobody", "somebody", "everybody", "anybody", "whom", "whose"}
QUESTIONS = {"What", "Who", "Whose", "Where", "Whether", "When", "How"}
PATHS = re.compile(r"(?<![\w:])(crate|super|self)::")
IMPL = re.compile(r"^impl(?:<.*?>)?\s+(?:[\w:<>', ]+\s+for\s+)?(?:\w+::)*(\w+)", re.M)
FUNCTION = re.compile(r"^( *)(?:pub(?:\([\w: ]+\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)", re.M)
TYPE = re.compile(r"^ *(?:pub(?:\([\w: ]+\))? )?(?:struct|enum|union|trait|type) (\w+)", re.M)
TEST = re.compile(r"#\[(?:tokio::)?test\b")
# A type that is named by a participle alone, with or without a negation.
PARTICIPLE = re.compile(
    r"(?:Not|Un)?[A-Z]?[a-z]*(?:[a-z]{2}ed|[a-z]{2}ing|(?i:begun|bound|broken|built|caught|chosen|cut|done|drawn|found|given|gone"
    r"|heard|held|hidden|kept|known|left|lost|made|met|put|read|said|seen|sent|set|shown|spent|spoken|taken|thrown|told"
    r"|understood|written))"
)


class File:
    """One Rust file, split into its product code and its unit tests."""

    def __init__(self, root, path):
        self.path = path.relative_to(root)
        self.text = path.read_text()
        self.is_test = self.path.name == "tests.rs" or "tests" in self.path.parts
        self.product, self.tests = ("", self.text) if self.is_test else split_tests(self.text)
        start = self.path.parts.index("src")
        inner = self.path.parts[start + 1 :]
        self.room = self.path.parts[1] if start else inner[0].removesuffix(".rs")
        parts = [part.removesuffix(".rs") for part in inner]
        # The crate's folder, then the names of the modules.
        self.module = ("/".join(self.path.parts[: start + 1]), *(part for part in parts if part not in ("mod", "lib")))

    def code_lines(self):
        return [line for line in self.product.splitlines() if is_code(line)]


def is_code(line):
    line = line.strip()
    return bool(line) and not line.startswith("//")


def split_tests(text):
    """Product code and the bodies of `#[cfg(test)] mod`; an item behind another `#[cfg(test)]` is a test, too."""
    product, tests, lines = [], [], text.splitlines()
    at = 0
    while at < len(lines):
        if lines[at].strip() == "#[cfg(test)]":
            end = end_of_item(lines, at + 1)
            tests += lines[at:end]
            at = end
        else:
            product.append(lines[at])
            at += 1
    return "\n".join(product), "\n".join(tests)


def end_of_item(lines, at):
    depth, opened = 0, False
    while at < len(lines):
        line = re.sub(r"'.'|\"(?:\\.|[^\"])*\"|//.*", "", lines[at])
        depth += line.count("{") - line.count("}")
        opened |= "{" in line
        at += 1
        if (opened and depth <= 0) or (not opened and line.rstrip().endswith(";")):
            return at
    return at


def functions(files):
    """(lines, name, file) of each function: from `fn` to the brace in its own column."""
    found = []
    for file in files:
        lines = file.product.splitlines()
        for number, line in enumerate(lines):
            head = FUNCTION.match(line)
            if not head:
                continue
            close = head[1] + "}"
            length = 1
            for later in lines[number:]:
                if later == close or (length == 1 and later.rstrip().endswith(("}", ";"))):
                    break
                length += 1
            found.append((length, head[2], str(file.path)))
    return found


def types(files):
    """Methods, files and name of each type, by room and name."""
    methods, homes = collections.Counter(), collections.defaultdict(set)
    for file in files:
        owner, is_trait = None, False
        for line in file.product.splitlines():
            head = IMPL.match(line)
            if head:
                owner, is_trait = (file.room, head[1]), " for " in line
            elif line == "}":
                owner = None
            elif owner and not is_trait and FUNCTION.match(line) and line.startswith("    ") and line[4] != " ":
                methods[owner] += 1
                homes[owner].add(str(file.path))
    return [(count, len(homes[name]), name[1]) for name, count in methods.most_common()]


def edges(files, doors):
    """Which file names an item of which other file. `doors`: with the file of the module above its own."""
    modules = {file.module: file for file in files if file.product.strip() and file.path.name != "main.rs"}
    graph = collections.defaultdict(set)
    for file in modules.values():
        code = "\n".join(line for line in file.product.splitlines() if is_code(line))
        # A visibility is no import.
        code = re.sub(r"pub\(in [\w:]+\)", "pub", code)
        for start in PATHS.finditer(code):
            base = {"crate": file.module[:1], "self": file.module, "super": file.module[:-1]}[start[1]]
            for name in expand(code, start.end(), base, [])[0]:
                known = [name[:length] for length in range(len(name), 1, -1) if name[:length] in modules]
                if known and known[0] != file.module and (doors or known[0] != file.module[:-1]):
                    graph[file.path].add(modules[known[0]].path)
    return graph


def expand(code, at, base, found):
    """The paths of a tree that begins at a place of the code, and the place behind it."""
    if code.startswith("{", at):
        while True:
            at += 1 + len(code[at + 1 :]) - len(code[at + 1 :].lstrip())
            _, at = expand(code, at, base, found)
            end = re.compile(r"[,}]|$(?!\n)").search(code, at)
            at = end.start()
            if end[0] != "," or code[at + 1 :].lstrip().startswith("}"):
                return found, at + 1
    name = re.compile(r"\w*").match(code, at)
    at = name.end()
    if name[0] == "super":
        base = base[:-1]
    elif name[0] not in ("", "self"):
        base = (*base, name[0])
    if code.startswith("::", at):
        return expand(code, at + 2, base, found)
    found.append(base)
    return found, at


def circles(graph):
    """Strongly connected components of more than one file (Tarjan)."""
    index, low, stack, on, found, count = {}, {}, [], set(), [], [0]
    sys.setrecursionlimit(10_000)

    def visit(node):
        index[node] = low[node] = count[0]
        count[0] += 1
        stack.append(node)
        on.add(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = []
            while True:
                other = stack.pop()
                on.discard(other)
                circle.append(other)
                if other == node:
                    break
            if len(circle) > 1:
                found.append(circle)

    for node in list(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def comments(files, docs_only=False):
    """Runs of comment lines."""
    mark = r"///|//!" if docs_only else r"//[/!]?"
    found = []
    for file in files:
        run = []
        for line in [*file.product.splitlines(), ""]:
            comment = re.match(rf"\s*(?:{mark}) ?(.*)", line)
            if comment:
                run.append(comment[1])
            elif run:
                found.append(" ".join(run))
                run = []
    return found


def logs(files):
    calls = re.compile(r"tracing::\w+!\((?:[^\"]|\"(?=[^\"]*\"\s*=))*?\"([^\"]*)\"", re.S)
    return [text for file in files for text in calls.findall(file.product)]


def pronouns(texts):
    words = [word.lower() for text in texts for word in re.findall(r"[A-Za-z']+", text)]
    bad = sum(word in PRONOUNS for word in words)
    return len(words), 1000 * bad / max(len(words), 1)


def count(root):
    """All figures of one tree, by name."""
    paths = [path for folder in ("src", "crates") for path in sorted((root / folder).rglob("*.rs"))]
    files = [File(root, path) for path in paths if "src" in path.relative_to(root).parts]
    rows = {}
    rooms = collections.Counter()
    for file in files:
        rooms[file.room] += len(file.code_lines())
    rows["lines of code"] = sum(rooms.values())
    for room, lines in sorted(rooms.items()):
        rows[f"lines of code: {room}"] = lines
    all_functions = functions(files)
    longest = max(all_functions)
    rows["functions"] = len(all_functions)
    rows["functions over 60 lines"] = sum(length > 60 for length, _, _ in all_functions)
    rows["longest function"] = f"{longest[0]} ({longest[1]})"
    names = {name for _, name, _ in all_functions}
    single = sum("_" not in name for name in names)
    rows["function names of one word"] = f"{100 * single / len(names):.0f} %"
    defined = [name for file in files for name in TYPE.findall(file.product) if name != "Self"]
    participles = sorted(name for name in defined if PARTICIPLE.fullmatch(name))
    rows["types named by a participle"] = f"{len(participles)} of {len(defined)}"
    rows["these types"] = ", ".join(dict.fromkeys(participles))
    all_types = types(files)
    rows["types over 40 methods or 3 files"] = sum(methods > 40 or homes > 3 for methods, homes, _ in all_types)
    largest = (f"{name} {methods} in {homes}" for methods, homes, name in all_types[:3])
    rows["most methods, in how many files"] = ", ".join(largest)
    for doors, kind in ((True, ""), (False, " but for a folder's own door")):
        found = circles(edges(files, doors))
        wide = [circle for circle in found if len({path.parent for path in circle}) > 1]
        rows[f"files in import circles{kind}"] = sum(map(len, found))
        rows[f"largest import circle{kind}"] = len(found[0]) if found else 0
        rows[f"import circles over several folders{kind}"] = len(wide)
    documents = [path.read_text() for path in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]]
    for kind, texts in (("comments", comments(files)), ("logs", logs(files)), ("documents", documents)):
        words, share = pronouns(texts)
        rows[f"pronouns per 1,000 words of {kind}"] = f"{share:.1f} of {words}"
    firsts = collections.Counter(text.split()[0] for text in comments(files, docs_only=True) if text.split())
    asked = sum(firsts[word] for word in QUESTIONS)
    rows["doc comments that begin with What, Who, Whose, Where, Whether, When, How"] = f"{100 * asked / firsts.total():.1f} %"
    rows["most frequent first words"] = ", ".join(f"{word} {number}" for word, number in firsts.most_common(6))
    rows["unit tests"] = sum(len(TEST.findall(file.tests)) for file in files)
    unit = sum(len(TEST.findall(file.tests)) for file in files if file.room == "proxy")
    lines = sum(sum(map(is_code, file.tests.splitlines())) for file in files if file.room == "proxy")
    rows["unit tests of proxy"] = f"{unit} ({lines} lines)"
    gateway = sum(len(TEST.findall(path.read_text())) for path in (root / "tests").rglob("*.rs"))
    rows["integration tests"] = gateway
    return rows


def tree_of(revision, folder):
    archive = subprocess.run(["git", "archive", revision], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return pathlib.Path(folder)


def table_of(arguments):
    now = count(pathlib.Path.cwd())
    if not arguments:
        table = list(now.items())
        heads = ("", "now")
    else:
        with tempfile.TemporaryDirectory() as folder:
            before = count(tree_of(arguments[0], folder))
        names = dict.fromkeys([*now, *before])
        table = [(name, before.get(name, 0), now.get(name, 0)) for name in names]
        heads = ("", arguments[0], "now")
    rows = [heads, ["---"] * len(heads), *table]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows) + "\n"


def main():
    print(table_of(sys.argv[1:]), end="")


if __name__ == "__main__":
    main()
