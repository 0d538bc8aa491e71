// `node viewer.mjs VIEWER CHROMIUM ADDRESS KIND SECONDS`: the milliseconds until the graph of a page is drawn, as JSON.
import { createRequire } from "node:module";
import { join } from "node:path";

const [viewer, executablePath, address, kind, seconds] = process.argv.slice(2);
const { chromium } = createRequire(join(viewer, "package.json"))("playwright-core");
const drawn = {
  torchport: () => document.documentElement.dataset.ready,
  netron: () => document.body?.className === "default" && document.querySelectorAll(".node").length > 0,
}[kind];

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"] });
const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
await page.addInitScript(() => {
  document.cookie = `consent=${Date.now()}`; // Netron asks for it before it opens anything
  const own = window.eval; // Netron takes it away, and Playwright needs it
  Object.defineProperty(window, "eval", { get: () => own, set() {} });
});
const began = performance.now();
let milliseconds = null;
try {
  await page.goto(address, { timeout: seconds * 1000, waitUntil: "commit" });
  await page.waitForFunction(drawn, null, { timeout: seconds * 1000, polling: 20 });
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  milliseconds = performance.now() - began;
} catch (error) {
  if (!/Timeout|timeout/.test(error.message)) throw error;
}
console.log(JSON.stringify(milliseconds));
await Promise.race([browser.close(), new Promise((done) => setTimeout(done, 5000))]); // a page that computes does not end
process.exit(0);
