"""Counts sizes, names and words of the code: run by scripts/house."""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

PRONOUNS = {"whoever", "nobody", "somebody", "everybody", "anybody", "whom", "whose"}
QUESTIONS = {"What", "Who", "Whose", "Where", "Whether", "When", "How"}
PATHS = re.compile(r"\b(crate|super|self)((?:::\w+)+)")
IMPL = re.compile(r"^impl(?:<.*?>)?\s+(?:[\w:<>', ]+\s+for\s+)?(?:\w+::)*(\w+)", re.M)
FUNCTION = re.compile(r"^( *)(?:pub(?:\([\w: ]+\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)", re.M)
TEST = re.compile(r"#\[(?:tokio::)?test\b")


class File:
    """One Rust file, split into its product code and its unit tests."""

    def __init__(self, root, path):
        self.path = path.relative_to(root)
        self.text = path.read_text()
        self.is_test = self.path.name == "tests.rs" or "tests" in self.path.parts
        self.product, self.tests = ("", self.text) if self.is_test else split_tests(self.text)
        inner = self.path.parts[1:]
        self.room = inner[0].removesuffix(".rs") if inner else ""
        parts = [part.removesuffix(".rs") for part in inner]
        self.module = tuple(part for part in parts if part not in ("mod", "lib", "main"))

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
    """Methods and files of each type."""
    methods, homes = collections.Counter(), collections.defaultdict(set)
    for file in files:
        owner, is_trait = None, False
        for line in file.product.splitlines():
            head = IMPL.match(line)
            if head:
                owner, is_trait = head[1], " for " in line
            elif line == "}":
                owner = None
            elif owner and not is_trait and FUNCTION.match(line) and line.startswith("    ") and line[4] != " ":
                methods[owner] += 1
                homes[owner].add(str(file.path))
    return [(count, len(homes[name]), name) for name, count in methods.most_common()]


def edges(files):
    """Which file names an item of which other file."""
    modules = {file.module: file for file in files}
    graph = collections.defaultdict(set)
    for file in files:
        code = "\n".join(line for line in file.product.splitlines() if is_code(line))
        code = re.sub(r"pub\(in [\w:]+\)", "pub", code)
        for start, rest in PATHS.findall(code):
            names = rest.strip(":").split("::")
            base = {"crate": (), "self": file.module, "super": file.module[:-1]}[start]
            while names and names[0] == "super":
                base, names = base[:-1], names[1:]
            for length in range(len(names), 0, -1):
                target = modules.get((*base, *names[:length]))
                if target:
                    if target is not file:
                        graph[file.path].add(target.path)
                    break
    return graph


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
    files = [File(root, path) for folder in ("src", "crates") for path in sorted((root / folder).rglob("*.rs"))]
    for file in files:
        if file.path.parts[0] == "crates":
            file.room = file.path.parts[1]
            file.module = ("crates", *file.module)
    rows = {}
    rooms = collections.Counter()
    for file in files:
        rooms[file.room] += len(file.code_lines())
    rows["lines of code"] = sum(rooms.values())
    for room, lines in rooms.most_common(14):
        rows[f"lines of code: {room}"] = lines
    all_functions = functions(files)
    longest = max(all_functions)
    rows["functions"] = len(all_functions)
    rows["functions over 60 lines"] = sum(length > 60 for length, _, _ in all_functions)
    rows["longest function"] = f"{longest[0]} ({longest[1]})"
    names = {name for _, name, _ in all_functions}
    single = sum("_" not in name for name in names)
    rows["function names of one word"] = f"{100 * single / len(names):.0f} %"
    for methods, homes, name in types(files)[:3]:
        rows[f"type by methods: {name}"] = f"{methods} in {homes} files"
    graph = edges(files)
    found = circles(graph)
    wide = [circle for circle in found if len({path.parent for path in circle}) > 1]
    rows["files in import circles"] = sum(map(len, found))
    rows["largest import circle"] = len(found[0]) if found else 0
    rows["import circles over several folders"] = len(wide)
    documents = [path.read_text() for path in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]]
    for kind, texts in (("comments", comments(files)), ("logs", logs(files)), ("documents", documents)):
        words, share = pronouns(texts)
        rows[f"pronouns per 1,000 words of {kind}"] = f"{share:.1f} of {words}"
    firsts = collections.Counter(text.split()[0] for text in comments(files, docs_only=True) if text.split())
    asked = sum(firsts[word] for word in QUESTIONS)
    rows["doc comments that begin with What, Who, Whose, Where, Whether, When, How"] = f"{100 * asked / firsts.total():.1f} %"
    rows["most frequent first words"] = ", ".join(f"{word} {number}" for word, number in firsts.most_common(6))
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


def main():
    now = count(pathlib.Path.cwd())
    if len(sys.argv) < 2:
        table = [(name, value) for name, value in now.items()]
        heads = ("", "now")
    else:
        with tempfile.TemporaryDirectory() as folder:
            before = count(tree_of(sys.argv[1], folder))
        names = dict.fromkeys([*before, *now])
        table = [(name, before.get(name, ""), now.get(name, "")) for name in names]
        heads = ("", sys.argv[1], "now")
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for row in table:
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
