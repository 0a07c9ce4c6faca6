"""Writes the Homebrew formula of the archives of a release: formula.py VERSION REPOSITORY FOLDER."""

import hashlib
import pathlib
import sys

version, repository, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
PLATFORMS = {"x86_64": "on_intel", "aarch64": "on_arm"}
blocks = []
for machine, block in PLATFORMS.items():
    archive = folder / f"a2a-gateway-{version}-{machine}.tar.gz"
    if archive.exists():
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        url = f"{repository}/releases/download/v{version}/{archive.name}"
        blocks.append(f'    {block} do\n      url "{url}"\n      sha256 "{digest}"\n    end\n')
if not blocks:
    sys.exit(f"{folder} has no archive of {version}; make one: scripts/package archive")
(folder / "a2a-gateway.rb").write_text(f'''class A2aGateway < Formula
  desc "Gateway for agent-to-agent (A2A) traffic"
  homepage "{repository}"
  version "{version}"
  license "Apache-2.0"

  on_linux do
{"".join(blocks)}  end

  def install
    bin.install "a2a-gateway"
    man1.install Dir["man/*"]
    bash_completion.install "completions/a2a-gateway.bash" => "a2a-gateway"
    fish_completion.install "completions/a2a-gateway.fish"
    zsh_completion.install "completions/_a2a-gateway"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/a2a-gateway --version")
  end
end
''')
print(folder / "a2a-gateway.rb")
