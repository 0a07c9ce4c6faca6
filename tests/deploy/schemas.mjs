// Validates custom resources, a JSON list on standard input, against the models in the folder of packages that is the
// argument. The models' validators know types, patterns and required fields, and pass unknown fields. Those are found
// by the compiler of TypeScript, as properties that a literal of the declared type must not have. Prints the problems.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const MODELS = {
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
};

const packages = process.argv[2];
const ts = createRequire(join(packages, "package.json"))("typescript");
const objects = JSON.parse(readFileSync(0, "utf8"));

const named = (object) => `${object.kind}/${object.metadata?.name}`;
const group = (object) => MODELS[object.apiVersion.split("/")[0]];

async function validate(object) {
  const file = join(packages, "node_modules", group(object), object.apiVersion, `${object.kind}.js`);
  const model = (await import(pathToFileURL(file)))[object.kind];
  try {
    new model(object).validate();
  } catch (error) {
    console.log(`${named(object)}: ${error.message}`);
  }
}

function compile() {
  const lines = objects.flatMap((object, at) => [
    `import type { I${object.kind} as I${at} } from "${group(object)}/${object.apiVersion}/${object.kind}";`,
    `export const o${at}: I${at} = ${JSON.stringify(object)};`,
  ]);
  const source = lines.join("\n");
  const file = join(packages, "objects.ts");
  const options = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    types: [],
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
  };
  const host = ts.createCompilerHost(options);
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (path) => path === file || fileExists(path);
  host.readFile = (path) => (path === file ? source : readFile(path));
  host.getSourceFile = (path, ...more) =>
    path === file ? ts.createSourceFile(path, source, options.target) : getSourceFile(path, ...more);
  for (const found of ts.getPreEmitDiagnostics(ts.createProgram([file], options, host))) {
    const { line } = ts.getLineAndCharacterOfPosition(found.file, found.start);
    const object = objects[Math.floor(line / 2)];
    console.log(`${named(object)}: ${ts.flattenDiagnosticMessageText(found.messageText, " ")}`);
  }
}

for (const object of objects) {
  await validate(object);
}
compile();
