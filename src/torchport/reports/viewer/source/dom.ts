// Elements from plain values. A text becomes a text node: nothing of a model is ever read as HTML.

export type Child = Node | string | null | undefined | false;

interface Properties {
  class?: string;
  title?: string;
  onclick?: (event: MouseEvent) => void;
  [attribute: string]: string | number | boolean | undefined | ((event: MouseEvent) => void);
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener("click", value as (event: Event) => void);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false),
  );
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag: string, properties: Record<string, string | number>, ...children: Node[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** A line of a list of properties, with its explanation to unfold. */
export function property(label: string, value: Child, explanation = ""): HTMLElement {
  const shown = h("div", { class: "property" });
  const name = explanation
    ? h("button", { class: "label explained", type: "button", title: explanation, "aria-expanded": "false" }, label)
    : h("span", { class: "label" }, label);
  shown.append(name, h("div", { class: "value" }, value));
  if (explanation) {
    const text = h("div", { class: "explanation" }, explanation);
    name.addEventListener("click", () => {
      const open = name.getAttribute("aria-expanded") === "true";
      name.setAttribute("aria-expanded", String(!open));
      if (open) text.remove();
      else shown.append(text);
    });
  }
  return shown;
}

/** Bars of a histogram. */
export function bars(counts: number[], label: string): SVGElement {
  const most = Math.max(...counts, 1);
  const width = 256 / counts.length;
  const marks = counts.map((count, i) => {
    const height = count ? Math.max(1, (count / most) * 56) : 0;
    return svg("rect", { x: i * width + 0.5, y: 58 - height, width: Math.max(1, width - 1), height });
  });
  return svg("svg", { viewBox: "0 0 256 58", class: "bars", role: "img", "aria-label": label }, ...marks);
}
