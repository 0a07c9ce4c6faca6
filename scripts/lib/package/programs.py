#!/usr/bin/env python3
"""Packs the built program as a wheel for pip and uv, or as packages for npm. Standard library alone.

    programs.py wheel|npm PROGRAM VERSION OUT NAME FILE…

PROGRAM is built and stripped; the FILEs are licences that go along. Nothing runs when a package is installed. On a
platform without a program, the one that is installed instead says in a sentence what to do."""
import base64
import hashlib
import io
import json
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import zipfile

SUMMARY = "A gateway for agent-to-agent (A2A) messages: who may message whom, where each agent is, answers and streams."
LICENCE = "Apache-2.0"
ELSEWHERE = (
    "a2a-gateway has no program for this platform ({}): on Windows run it in WSL, elsewhere build it with cargo or "
    "take the container image; docs/guide/install.md of its repository has each in a few lines."
)
# Of npm and Node: platform, processor.
PLATFORMS = [("linux", "x64"), ("linux", "arm64"), ("darwin", "x64"), ("darwin", "arm64")]
# No file is newer than another: the same program makes the same package.
TIME = (2020, 1, 1, 0, 0, 0)

README = """# a2a-gateway

{summary}

    {run} demo                        a gateway, five agents, commands to paste into another terminal
    {run} init gateway                writes settings, a token and a unit for systemd
    {run} --help                      all commands

The package has the program itself; nothing is compiled or fetched when it is installed.
"""

LAUNCHER = """#!/usr/bin/env node
// Runs the program of the package for this platform, which npm chose among the optional ones.
'use strict';
const { spawn } = require('node:child_process');
const { constants } = require('node:os');
const here = `${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`NAME-${here}/bin/a2a-gateway`);
} catch {
  console.error('SENTENCE'.replace('{}', here));
  console.error('If this platform is linux or macOS on x64 or arm64: was it installed with --omit=optional?');
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: 'inherit' });
// A terminal sends Ctrl-C to both: the program decides when it ends, and this waits for it.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2']) {
  process.on(signal, () => { if (signal !== 'SIGINT' || !process.stdin.isTTY) child.kill(signal); });
}
child.on('error', (error) => { console.error(`a2a-gateway: ${error.message}`); process.exit(1); });
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
"""


def machine_of(program: bytes) -> tuple[str, str]:
    """The system and the processor that a program is for."""
    if program[:4] == b"\x7fELF":
        number = struct.unpack_from("<H", program, 18)[0]
        return "linux", {62: "x86_64", 183: "aarch64"}[number]
    if program[:4] == b"\xcf\xfa\xed\xfe":
        number = struct.unpack_from("<I", program, 4)[0]
        return "macosx", {0x01000007: "x86_64", 0x0100000C: "arm64"}[number]
    sys.exit("the program is neither of Linux nor of macOS")


def glibc_of(program: str) -> tuple[int, int] | None:
    """The oldest glibc with all symbols that a program asks for; None of a static one."""
    shown = subprocess.run(["readelf", "--version-info", "--wide", program], check=True, capture_output=True, text=True)
    needed = [tuple(map(int, found)) for found in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", shown.stdout)]
    return max(needed, default=None)


def tags_of(path: str) -> str:
    """The platforms of a wheel: PEP 600 for Linux; a static program runs on musl, too."""
    system, processor = machine_of(pathlib.Path(path).read_bytes()[:64])
    if system == "macosx":
        return f"macosx_{'11_0' if processor == 'arm64' else '10_12'}_{processor}"
    glibc = glibc_of(path)
    if glibc is None:
        return f"manylinux_2_17_{processor}.musllinux_1_1_{processor}"
    return f"manylinux_{glibc[0]}_{max(glibc[1], 17 if glibc[0] == 2 else 0)}_{processor}"


def write_wheel(out: pathlib.Path, name: str, version: str, tag: str, files: dict[str, tuple[bytes, int]], is_pure: bool) -> None:
    distribution = re.sub(r"[-_.]+", "_", name)
    info = f"{distribution}-{version}.dist-info"
    tags = "".join(f"Tag: py3-none-{one}\n" for one in tag.split("."))
    about = (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nSummary: {SUMMARY}\nLicense-Expression: {LICENCE}\n"
        f"Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
        + README.format(summary=SUMMARY, run=f"uvx {name}")
    )
    files |= {
        f"{info}/METADATA": (about.encode(), 0o644),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: scripts/package\nRoot-Is-Purelib: {str(is_pure).lower()}\n{tags}".encode(),
            0o644,
        ),
    }
    record = ""
    path = out / f"{distribution}-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for inner, (content, mode) in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{inner},sha256={digest},{len(content)}\n"
            put(wheel, inner, content, mode)
        put(wheel, f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode(), 0o644)
    print(path)


def put(wheel: zipfile.ZipFile, name: str, content: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


def make_wheels(program: str, version: str, out: pathlib.Path, name: str, licences: list[pathlib.Path]) -> None:
    distribution = re.sub(r"[-_.]+", "_", name)
    beside = {
        f"{distribution}-{version}.dist-info/licenses/{file.name}": (file.read_bytes(), 0o644) for file in licences
    }
    own = {f"{distribution}-{version}.data/scripts/a2a-gateway": (pathlib.Path(program).read_bytes(), 0o755)}
    write_wheel(out, name, version, tags_of(program), own | beside, False)
    # pip and uv take it where no other one fits.
    module = f'"""Says what to do on a platform without a program."""\nimport platform\nimport sys\n\n\ndef main():\n    sys.exit({ELSEWHERE!r}.format(platform.platform()))\n'
    entry = b"[console_scripts]\na2a-gateway = a2a_gateway_elsewhere:main\n"
    write_wheel(out, name, version, "any", {
        "a2a_gateway_elsewhere.py": (module.encode(), 0o644),
        f"{distribution}-{version}.dist-info/entry_points.txt": (entry, 0o644),
        f"{distribution}-{version}.dist-info/licenses/LICENSE": (licences[0].read_bytes(), 0o644),
    }, True)


def write_npm(out: pathlib.Path, about: dict, files: dict[str, tuple[bytes, int]]) -> None:
    path = out / f"{about['name']}-{about['version']}.tgz"
    files = {"package.json": (json.dumps(about, indent=2).encode() + b"\n", 0o644)} | files
    with tarfile.open(path, "w:gz", format=tarfile.USTAR_FORMAT) as package:
        for inner, (content, mode) in files.items():
            entry = tarfile.TarInfo(f"package/{inner}")
            entry.size, entry.mode, entry.mtime = len(content), mode, 1577836800
            package.addfile(entry, io.BytesIO(content))
    print(path)


def make_npm(program: str, version: str, out: pathlib.Path, name: str, licences: list[pathlib.Path]) -> None:
    content = pathlib.Path(program).read_bytes()
    system, processor = machine_of(content)
    os, cpu = {"macosx": "darwin"}.get(system, system), {"x86_64": "x64"}.get(processor, "arm64")
    about = {"version": version, "license": LICENCE}
    beside = {file.name: (file.read_bytes(), 0o644) for file in licences}
    limits = {"os": [os], "cpu": [cpu]}
    if os == "linux" and glibc_of(program):
        limits["libc"] = ["glibc"]
    write_npm(out, {"name": f"{name}-{os}-{cpu}", **about, "description": f"The program of {name} for {os} on {cpu}.",
                    **limits, "files": ["bin"]}, {"bin/a2a-gateway": (content, 0o755)} | beside)
    launcher = LAUNCHER.replace("NAME", name).replace("SENTENCE", ELSEWHERE)
    write_npm(out, {
        "name": name, **about, "description": SUMMARY, "keywords": ["a2a", "agent", "gateway"],
        "bin": {"a2a-gateway": "bin/a2a-gateway.js"}, "files": ["bin"], "engines": {"node": ">=18"},
        "optionalDependencies": {f"{name}-{os}-{cpu}": version for os, cpu in PLATFORMS},
    }, {
        "bin/a2a-gateway.js": (launcher.encode(), 0o755),
        "README.md": (README.format(summary=SUMMARY, run=f"npx {name}").encode(), 0o644),
        "LICENSE": beside["LICENSE"],
    })


def main() -> None:
    what, program, version, out, name, *licences = sys.argv[1:]
    make = {"wheel": make_wheels, "npm": make_npm}[what]
    make(program, version, pathlib.Path(out), name, [pathlib.Path(path) for path in licences])


main()
