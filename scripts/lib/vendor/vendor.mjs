// Makes the modules of pages/vendor from packages of npm, and the manifest that says what is in them.
// vendor.mjs PACKAGES INTO: PACKAGES has a node_modules; what is made goes to INTO.

import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

const [packages, into] = process.argv.slice(2);
const here = import.meta.dirname;
const { build, version: esbuild } = createRequire(join(packages, "package.json"))("esbuild");

/** Each module that is made, of the file of its name beside this one. */
const MODULES = ["a2a-sdk.js", "markdown-it.js", "uplot.js"];

async function described(name) {
  const folder = join(packages, "node_modules", name);
  const { version, license, repository } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const lock = JSON.parse(await readFile(join(packages, "package-lock.json"), "utf8"));
  const { integrity } = lock.packages[`node_modules/${name}`];
  // Some name a repository of GitHub by its owner and name alone.
  const source = (repository.url ?? repository).replace(/^git\+|\.git$/g, "").replace(/^[\w-]+\/[\w.-]+$/, "https://github.com/$&");
  return { name, version, license, source, integrity, text: await licence(folder) };
}

/** The licence that a package brings, in full. */
async function licence(folder) {
  for (const name of ["LICENSE", "LICENSE.md", "LICENSE.txt", "LICENSE-MIT.txt"]) {
    const text = await readFile(join(folder, name), "utf8").catch(() => null);
    if (text) return text.trim();
  }
  throw new Error(`${folder} brings no licence`);
}

/** The packages of which something is in a bundle. */
function packagesOf({ inputs }) {
  const names = Object.keys(inputs).map((path) => path.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]);
  return [...new Set(names.filter(Boolean))].sort();
}

const options = {
  absWorkingDir: packages,
  nodePaths: [join(packages, "node_modules")],
  bundle: true,
  write: false,
  metafile: true,
  format: "esm",
  platform: "browser",
  target: "es2022",
  charset: "utf8",
  legalComments: "inline",
  // The SDK says both `Buffer` and `globalThis.Buffer`.
  inject: [join(here, "buffer.js")],
  define: { "globalThis.Buffer": "Buffer" },
};

const modules = [];
for (const file of MODULES) {
  const { outputFiles, metafile } = await build({ ...options, entryPoints: [join(here, file)] });
  // Only of what is in the output: much of a package is left out.
  const [{ inputs }] = Object.values(metafile.outputs);
  const parts = await Promise.all(packagesOf({ inputs }).map(described));
  const notices = parts.map(({ name, version, license, source, text }) => `${name} ${version}, ${license}, ${source}\n\n${text}`);
  const banner = `/*!\nMade by scripts/vendor-pages; not to be edited.\n\n${notices.join("\n\n")}\n*/\n`;
  // esbuild tells where each part came from, by a path from where it worked; no path of this machine is to stay.
  const told = outputFiles[0].text.replaceAll(/^\/\/ \S*?(?:node_modules|scripts\/lib\/vendor)\/(\S+)$/gm, "// $1");
  const text = banner + told;
  await writeFile(join(into, file), text);
  modules.push({
    file,
    sha256: createHash("sha256").update(text).digest("hex"),
    made_with: `esbuild ${esbuild}`,
    packages: parts.map(({ text: _, ...part }) => part),
  });
}
await writeFile(join(into, "manifest.json"), `${JSON.stringify({ modules }, null, 2)}\n`);
