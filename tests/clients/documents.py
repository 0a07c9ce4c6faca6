"""The code of docs/guide/sdk-clients.md, as it stands there but for the base."""

import os
import re
import subprocess

from stage import HERE, PATIENCE

DOCUMENT = HERE.parent.parent / "docs/guide/sdk-clients.md"
BASE = "https://gateway.example.com/workspaces/acme-pm/a2a"


def blocks(language):
    return re.findall(rf"\n```{language}\n(.*?)\n```\n", DOCUMENT.read_text(), re.DOTALL)


def run(stage):
    programs = dict(zip(("py03", "py13", "js03", "js13"), [*blocks("python"), *blocks("js")], strict=True))
    agents = stage.agents("py03", "py13")
    gateway = stage.gateway()
    bases = {name: gateway.seat(agent) for name, agent in agents.items()}
    failures = []
    for sdk, program in programs.items():
        tries = [(agent, program) for agent in bases]
        # The base with a slash where the program has none, and without one where it has.
        slash = ("`${BASE}/`", "BASE") if sdk.startswith("js") else (f'"{BASE}"', f'"{BASE}/"')
        assert slash[0] in program, sdk
        tries.append(("py13", program.replace(*slash)))
        for agent, text in tries:
            told = tried(stage, sdk, text, bases[agent], gateway.tokens["alice"])
            print(f"{sdk} {agent} {'as it stands' if text == program else 'with the other slash'} {'FAILED' if told else 'ok'}")
            if told:
                failures.append(f"{sdk} of docs/guide/sdk-clients.md, to {agent}: {told}")
    return failures


def tried(stage, sdk, program, base, token):
    """What was wrong with a run of the program, or None."""
    assert BASE in program, sdk
    if sdk.startswith("js"):
        file = stage.folder / sdk / "document.mjs"
        command = ["node", file]
    else:
        file = stage.folder / f"{sdk}.py"
        command = [stage.packages / sdk / "python/bin/python", file]
    file.write_text(program.replace(BASE, base))
    ran = subprocess.run(list(map(str, command)), env={**os.environ, "A2A_TOKEN": token}, capture_output=True, text=True, timeout=PATIENCE)
    fine = ran.returncode == 0 and "hello, too" in ran.stdout
    return None if fine else f"{ran.stdout} {ran.stderr[-600:]}"
