// Plots: few bars with their labels and numbers, or many as a row of columns.

import type { PlotData } from "./data.ts";
import { h, svg } from "./dom.ts";
import { clip, measured, visible } from "./text.ts";

const FEW = 30; // bars that have room for a label
const SPAN = 1e-9; // of a logarithmic scale: what is smaller than this part of the largest is drawn as the smallest

export function plot(data: PlotData): HTMLElement {
  const drawing = data.bars.length > FEW ? columns(data) : rows(data);
  return h("section", { class: "plot" }, h("h3", {}, data.title), drawing);
}

/** Between 0 and 1. */
export function length(value: number, numbers: number[], logarithmic: boolean): number {
  const known = numbers.filter((one) => one > 0 && one < 1e300);
  const most = known.reduce((a, b) => Math.max(a, b), 0);
  if (value >= 1e300) return 1;
  if (!(value > 0) || !most) return 0;
  if (!logarithmic) return value / most;
  const least = Math.max(
    known.reduce((a, b) => Math.min(a, b), most),
    most * SPAN,
  );
  return 0.08 + (0.92 * Math.max(0, Math.log(value / least))) / (Math.log(most / least) || 1);
}

function rows(data: PlotData): HTMLElement {
  const numbers = data.bars.map((bar) => bar.number);
  const lines = data.bars.map((bar) => {
    const width = 100 * length(bar.number, numbers, data.logarithmic);
    const mark = svg("rect", { x: 0, y: 0, width, height: 10, class: bar.good ? "bar" : "bar wrong" });
    const line = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, mark);
    const text = visible(bar.label);
    return h(
      "li",
      {},
      h("span", { class: "of", title: text }, clip(text, 34)),
      line,
      h("span", { class: "much" }, measured(bar.number, data.unit)),
    );
  });
  return h("ul", { class: "rows" }, ...lines);
}

function columns(data: PlotData): HTMLElement {
  const numbers = data.bars.map((bar) => bar.number);
  const width = 360 / data.bars.length;
  const marks = data.bars.map((bar, i) => {
    const height = 90 * length(bar.number, numbers, data.logarithmic);
    const mark = svg("rect", {
      x: i * width,
      y: 92 - height,
      width: Math.max(0.6, width * 0.85),
      height,
      class: bar.good ? "bar" : "bar wrong",
    });
    const title = svg("title", {});
    title.textContent = `${visible(bar.label)}: ${measured(bar.number, data.unit)}`;
    mark.append(title);
    return mark;
  });
  const worst = data.bars.reduce((a, b) => (b.number > a.number ? b : a));
  const said = `${data.bars.length} bars; the largest is ${visible(worst.label)} with ${measured(worst.number, data.unit)}`;
  const drawing = svg("svg", { viewBox: "0 0 360 92", class: "columns", role: "img", "aria-label": said }, ...marks);
  return h(
    "div",
    {},
    drawing,
    h("p", { class: "note" }, `${said}${data.logarithmic ? "; heights by the logarithm" : ""}`),
  );
}
