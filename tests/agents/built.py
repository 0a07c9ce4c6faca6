"""The packages, built, installed into clean environments beside each framework, and their types checked."""

import os
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The size of each package: lines of its sources, comments too, but for blank ones.
LINES_MAX = 460
# The environment of each agent: the folder that scripts/clients installed, or scripts/agents.
FRAMEWORKS = {"py03": "clients", "py13": "clients", "adk": "clients", "frameworks": "agents"}


def run(command, **more):
    done = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}"
    return done.stdout


class Built:
    """Packages as they would be published, in `folder`; environments that have nothing but them and one framework."""

    def __init__(self, folder, clients, agents):
        self.folder, self.clients, self.agents = folder, Path(clients), Path(agents)
        self.tools = self.agents / "tools/python/bin/python"

    def build(self):
        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(job) for job in (self.python, self.javascript)]
            return [job.result() for job in jobs]

    def python(self):
        source, dist = self.folder / "python-source", self.folder / "dist"
        shutil.copytree(ROOT / "clients/python", source)
        run([self.tools, "-m", "build", "--no-isolation", "--outdir", dist, source])
        self.wheel, = dist.glob("a2a_gateway_agent-*.whl")
        assert list(dist.glob("a2a_gateway_agent-*.tar.gz"))
        names = zipfile.ZipFile(self.wheel).namelist()
        assert "a2a_gateway_agent/py.typed" in names and not any("test" in name for name in names), names
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.environment, FRAMEWORKS))
        example = self.folder / "typed.py"
        example.write_text(TYPED_PY)
        site, = (self.folder / "py13/lib").glob("python*/site-packages")
        run([self.tools, "-m", "mypy", "--strict", "--python-executable", self.folder / "py13/bin/python", "--cache-dir",
             self.agents / "mypy-cache", site / "a2a_gateway_agent", example])

    def environment(self, name):
        """A clean environment with the wheel; it finds the framework, and what the wheel needs, in other environments."""
        home = self.folder / name
        run([self.tools, "-m", "venv", "--without-pip", home])
        run([self.tools, "-m", "pip", "--python", home / "bin/python", "install", "--quiet", "--no-deps", "--no-index",
             "--disable-pip-version-check", self.wheel])
        framework = {"clients": self.clients, "agents": self.agents}[FRAMEWORKS[name]] / name / "python"
        site, = (home / "lib").glob("python*/site-packages")
        # google-adk serves A2A with sse-starlette, which its own environment, of clients, has not.
        places = [framework, self.agents / "tools/python", *([self.agents / "frameworks/python"] if name == "adk" else [])]
        found = [next((where / "lib").glob("python*/site-packages")) for where in places]
        (site / "framework.pth").write_text("".join(f"{path}\n" for path in found))

    def javascript(self):
        source, home, modules = self.folder / "javascript-source", self.folder / "js", self.agents / "js/node_modules"
        shutil.copytree(ROOT / "clients/javascript", source, ignore=shutil.ignore_patterns("node_modules", "dist"))
        (source / "node_modules").symlink_to(modules)
        packed = run(["npm", "pack", "--silent", "--pack-destination", self.folder], cwd=source).split()[-1]
        home.mkdir()
        (home / "package.json").write_text('{"private":true,"type":"module"}')
        run(["npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock",
             self.folder / packed, modules / "jose"], cwd=home)
        for name in ("js03", "js13"):
            shutil.copytree(ROOT / "tests/agents/servers", home / name, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
            (home / name / "node_modules").symlink_to(self.clients / name / "node_modules")
        (home / "typed.ts").write_text(TYPED_TS)
        (home / "node_modules/@types").symlink_to(modules / "@types")
        run([modules / ".bin/tsc", "--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--types", "node", "typed.ts"],
            cwd=home)

    def program(self, name):
        """The command of a server of this folder, and the environment that it runs in."""
        if name.startswith("js") or name.endswith(".mjs"):
            sdk = name if name.startswith("js") else "js13"
            return ["node", self.folder / "js" / sdk / f"{name.removesuffix('.mjs')}.mjs"]
        frameworks = ("pydantic_agent", "plain_pydantic", "strands_agent")
        place = "frameworks" if name in frameworks else {"poller": "py13"}.get(name, name)
        return [self.folder / place / "bin/python", "-B", ROOT / f"tests/agents/servers/{name}.py"]


def short_enough():
    """Says how long the packages are, and fails when one is too long."""
    for language, pattern in (("python", "src/**/*.py"), ("javascript", "src/*.ts")):
        texts = [path.read_text() for path in (ROOT / "clients" / language).glob(pattern)]
        lines = sum(1 for text in texts for line in text.splitlines() if line.strip())
        print(f"clients/{language}: {lines} lines")
        assert lines <= LINES_MAX, f"clients/{language} has {lines} lines"


def joined_in_three_lines(name):
    """The lines of a server that name the package or one of its functions."""
    path = ROOT / "tests/agents/servers" / (name if "." in name else f"{name}.mjs" if name.startswith("js") else f"{name}.py")
    words = ("a2a-gateway-agent", "a2a_gateway_agent", "join(", "userBuilder")
    lines = [line for line in path.read_text().splitlines() if any(word in line for word in words)]
    assert 0 < len(lines) <= 3, f"{name}: {lines}"


TYPED_PY = '''
from a2a_gateway_agent import Caller, Joined, caller, join, poll, text
from starlette.applications import Starlette

app: Joined = join(Starlette(), workspace="billing", gateway="http://127.0.0.1:8080", token_file="token", proof="request")
who: Caller | None = caller()
name: str | None = who.workspace if who else None


async def answer(message: dict[str, object]) -> str:
    return text(message)


async def main() -> None:
    await poll(answer, workspace="billing")
'''

TYPED_TS = '''
import { Caller, Member, caller, join, poll, text, userBuilder } from "a2a-gateway-agent";

const app = Object.assign(() => {}, { handle() {} });
const member: Member = join(app, { workspace: "billing", gateway: "http://127.0.0.1:8080", tokenFile: "token", proof: "request" });
const who: Caller | undefined = caller();
const name: string | undefined = who?.workspace;
const user: Promise<{ isAuthenticated: boolean; userName: string }> = userBuilder({});
export const polled: Promise<void> = poll(async (message) => text(message), { workspace: "billing" });
export { member, name, user };
'''
