// Bundles the viewer into dist/: viewer.js with the layout's worker inside it, and viewer.css. `--tests`: the unit tests.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const common = { bundle: true, target: "es2022", charset: "utf8", logLevel: "warning", legalComments: "none" };

if (process.argv.includes("--tests")) {
  await build({
    ...common,
    entryPoints: ["cut", "layered", "text", "tree"].map((name) => `tests/${name}.test.ts`),
    outdir: "dist/tests",
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".mjs" },
  });
} else {
  await build({ ...common, entryPoints: ["source/layout_worker.ts"], outfile: "dist/layout_worker.js", minify: true });
  const worker = readFileSync("dist/layout_worker.js", "utf8");
  await build({
    ...common,
    entryPoints: ["source/main.ts"],
    outfile: "dist/viewer.js",
    format: "iife",
    minify: true,
    define: { LAYOUT_WORKER: JSON.stringify(worker) },
  });
  await build({ ...common, entryPoints: ["source/viewer.css"], outfile: "dist/viewer.css", minify: true });
}
