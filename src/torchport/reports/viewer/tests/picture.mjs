// `node picture.mjs CHROMIUM PAGE PICTURE OVERLAY`: a page with an overlay and its worst node chosen, as a PNG.
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, file, picture, overlay] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 1200, height: 720 }, colorScheme: "light" });
await page.goto(pathToFileURL(file).href);
await page.waitForFunction(() => document.documentElement.dataset.ready);
await page.getByLabel("Color by").selectOption({ label: `Color: ${overlay}` });
await page.locator(".legend li button").first().click();
await page.waitForTimeout(500);
await page.screenshot({ path: picture });
await browser.close();
