// What is beside the graph: the summary of the model, and all that is known of one node, module or tensor.

import { typeOf } from "./blocks.ts";
import type { Cut } from "./cut.ts";
import type { Fault, ModelData, PageData, WeightData } from "./data.ts";
import { bars, type Child, h, property } from "./dom.ts";
import type { Overlay } from "./overlay.ts";
import { plot } from "./plot.ts";
import { sortable } from "./table.ts";
import { clip, human, humanBytes, visible } from "./text.ts";
import type { Item, Tree } from "./tree.ts";

export interface Actions {
  go(node: number): void;
  goModule(module: number): void;
  toggle(item: Item): void;
  link(item: Item): string;
}

const FEW = 12;

/** Which nodes read each value, and which makes it. */
export class Uses {
  readonly readers = new Map<number, number[]>();
  readonly maker = new Map<number, number>();
  readonly faults = new Map<number, Fault[]>();
  readonly byName = new Map<string, number>();

  constructor(data: ModelData, faults: Fault[]) {
    for (let node = data.nodes.name.length - 1; node >= 0; node--) {
      for (const value of new Set(data.nodes.inputs[node])) {
        const readers = this.readers.get(value) ?? [];
        this.readers.set(value, readers);
        readers.unshift(node);
      }
      for (const value of data.nodes.outputs[node] ?? []) this.maker.set(value, node);
      this.byName.set(data.nodes.name[node] ?? "", node);
    }
    for (const fault of faults) {
      const node = fault.node ? this.byName.get(fault.node) : undefined;
      if (node !== undefined) this.faults.set(node, [...(this.faults.get(node) ?? []), fault]);
    }
  }
}

export class Panel {
  constructor(
    private readonly page: PageData,
    private readonly tree: Tree,
    private readonly uses: Uses,
    private readonly overlays: Overlay[],
    private readonly actions: Actions,
    private readonly cut: Cut,
  ) {}

  private get data(): ModelData {
    return this.page.model;
  }

  summary(): HTMLElement {
    const { page } = this;
    return h(
      "div",
      { class: "summary" },
      ...page.verdicts.map((one) => h("p", { class: `verdict ${one.state}` }, visible(one.text))),
      h("div", {}, ...page.facts.map(([label, value, explanation]) => property(label, visible(value), explanation))),
      this.faults(),
      ...page.plots.map((one) => plot(one)),
      ...page.tables.map((table) => sortable(table, (node) => this.actions.go(node))),
    );
  }

  private faults(): HTMLElement | null {
    const { faults } = this.page;
    if (!faults.length) return h("section", {}, h("h3", {}, "Findings"), h("p", {}, "none: the model has no faults"));
    const items = faults.slice(0, 200).map((fault) => this.fault(fault));
    const more =
      faults.length > 200
        ? h("p", { class: "note" }, `and ${faults.length - 200} more: torchport lint lists them`)
        : null;
    return h("section", {}, h("h3", {}, `Findings (${faults.length})`), h("ul", { class: "faults" }, ...items), more);
  }

  private fault(fault: Fault): HTMLElement {
    const node = fault.node ? this.uses.byName.get(fault.node) : undefined;
    return h(
      "li",
      { class: fault.severity },
      h("strong", {}, fault.severity),
      ` ${visible(fault.message)}`,
      h("div", { class: "next" }, `→ ${visible(fault.next_step)}`),
      node === undefined ? null : this.nodeLink(node, "show it"),
    );
  }

  // one box

  item(item: Item): HTMLElement {
    if (item.kind === "module") return this.module(item);
    if (item.kind === "node") return this.node(item);
    return this.endOfGraph(item);
  }

  private head(item: Item, title: string, kind: string): HTMLElement {
    const open = this.tree.opens(item);
    return h(
      "header",
      {},
      h("h2", {}, title),
      h("p", { class: "kind" }, kind),
      h(
        "p",
        { class: "actions" },
        open ? h("button", { type: "button", onclick: () => this.actions.toggle(item) }, "Open or close") : null,
        h("a", { href: this.actions.link(item), class: "button" }, "Link to this"),
      ),
    );
  }

  private node(item: Item): HTMLElement {
    const { data } = this;
    const { nodes } = data;
    const n = item.node;
    const operator = data.operators[nodes.operator[n] ?? -1] ?? "";
    const doc = data.docs[operator];
    return h(
      "div",
      { class: "node" },
      this.head(item, visible(operator), `node ${visible(nodes.name[n] ?? "") || "(no name)"}`),
      ...(this.uses.faults.get(n) ?? []).map((fault) => h("ul", { class: "faults" }, this.fault(fault))),
      this.measures(item),
      this.attributes(n, operator),
      this.values("Inputs", nodes.inputs[n] ?? [], doc?.inputs ?? []),
      this.values("Outputs", nodes.outputs[n] ?? [], doc?.outputs ?? []),
      this.origin(n),
      doc
        ? h(
            "details",
            { class: "documentation" },
            h("summary", {}, `What ${operator} does`),
            h("p", { class: "note" }, `as of opset ${doc.since}${doc.deprecated ? ", deprecated since" : ""}`),
            h("pre", {}, doc.doc),
          )
        : h("p", { class: "note" }, "This operator is not ONNX's: there is no documentation of it here."),
    );
  }

  private measures(item: Item): HTMLElement | null {
    const rows = this.overlays.flatMap((overlay) => {
      const value = overlay.of(item);
      if (value === undefined) return [];
      const note = item.node >= 0 ? overlay.notes.get(item.node) : undefined;
      return [property(overlay.data.name, `${overlay.text(value)}${note ? ` (${visible(note)})` : ""}`)];
    });
    return rows.length ? h("section", {}, h("h3", {}, "Measures"), ...rows) : null;
  }

  private attributes(n: number, operator: string): HTMLElement | null {
    const given = this.data.nodes.attributes[n] || {};
    const docs = this.data.docs[operator]?.attributes ?? {};
    const rows = Object.entries(given).map(([name, value]) =>
      property(visible(name), visible(value), docs[name]?.doc ?? ""),
    );
    const rest = Object.entries(docs).filter(([name, doc]) => !(name in given) && doc.default);
    const defaults = rest.map(([name, doc]) => property(name, `${doc.default} (default)`, doc.doc));
    return rows.length + defaults.length ? h("section", {}, h("h3", {}, "Attributes"), ...rows, ...defaults) : null;
  }

  private values(title: string, values: number[], formal: { name: string; doc: string }[]): HTMLElement | null {
    if (!values.length) return null;
    const rows = values.map((value, i) => {
      const known = formal[Math.min(i, formal.length - 1)];
      const content = value < 0 ? "left out" : this.value(value, title === "Outputs");
      return property(known?.name ?? String(i + 1), content, known?.doc ?? "");
    });
    return h("section", {}, h("h3", {}, title), ...rows);
  }

  private value(value: number, made: boolean): HTMLElement {
    const { data } = this;
    const name = visible(data.values.name[value] ?? "");
    const weight = data.weights[value];
    const maker = this.uses.maker.get(value);
    const readers = this.uses.readers.get(value) ?? [];
    return h(
      "div",
      {},
      h("div", { class: "name" }, name || "(left out)"),
      h("div", { class: "type" }, typeOf(value, data) || "type unknown"),
      weight ? this.weight(weight) : null,
      !made && maker !== undefined ? h("div", {}, "from ", this.nodeLink(maker)) : null,
      !made && maker === undefined && !weight ? h("div", { class: "note" }, "an input of the graph") : null,
      this.cut.takes(value) ? this.cut.buttons(value) : null,
      made ? h("div", {}, readers.length ? "to " : "read by no node", ...this.nodeLinks(readers)) : null,
    );
  }

  private weight(weight: WeightData): HTMLElement {
    const size = `weight: ${human(weight.elements)} numbers, ${humanBytes(weight.bytes)}`;
    const lines: Child[] = [h("div", { class: "note" }, weight.file ? `${size}, in ${visible(weight.file)}` : size)];
    if (weight.values) lines.push(h("div", { class: "values" }, visible(weight.values)));
    else if (!weight.read) lines.push(h("div", { class: "note" }, "its numbers were not read"));
    const statistics = weight.statistics;
    if (statistics) {
      const text = ["min", "max", "mean", "std"].map((key) => `${key} ${short(statistics[key])}`).join(", ");
      const odd = ["zeros", "nan", "inf"].filter((key) => Number(statistics[key]) > 0);
      lines.push(h("div", {}, [text, ...odd.map((key) => `${statistics[key]} ${key}`)].join(", ")));
      if (weight.read < weight.elements)
        lines.push(h("div", { class: "note" }, `of ${human(weight.read)} of its numbers`));
    }
    const histogram = weight.histogram;
    if (histogram) {
      lines.push(bars(histogram.counts, `histogram from ${short(histogram.low)} to ${short(histogram.high)}`));
      lines.push(
        h("div", { class: "axis" }, h("span", {}, short(histogram.low)), h("span", {}, short(histogram.high))),
      );
    }
    return h("div", { class: "weight" }, ...lines);
  }

  private origin(n: number): HTMLElement | null {
    const { data } = this;
    const module = data.nodes.module[n] ?? 0;
    const source = data.sources[data.nodes.source[n] ?? -1] ?? "";
    const torch = data.torch[data.nodes.torch[n] ?? -1] ?? "";
    const edit = data.nodes.edit[n];
    const line = data.lines[source];
    if (!module && !source && !torch && !edit) return null;
    return h(
      "section",
      {},
      h("h3", {}, "Where it comes from"),
      module ? property("module", this.moduleLink(module)) : null,
      source
        ? property(
            "python",
            h("div", {}, h("div", { class: "name" }, visible(source)), line ? h("code", {}, visible(line)) : null),
          )
        : null,
      torch ? property("torch", visible(torch)) : null,
      edit ? property("edit", visible(edit)) : null,
    );
  }

  private module(item: Item): HTMLElement {
    const path = item.module ? (this.data.modules.paths[item.module] ?? "") : "";
    const operators = new Map<string, number>();
    const stack = [...item.children];
    for (let one = stack.pop(); one; one = stack.pop()) {
      if (one.kind === "node") operators.set(one.label, (operators.get(one.label) ?? 0) + 1);
      stack.push(...one.children);
    }
    const rows = [...operators.entries()].sort((a, b) => b[1] - a[1]);
    return h(
      "div",
      { class: "node" },
      this.head(item, visible(item.label), `module ${visible(path)}, ${item.count} nodes`),
      this.measures(item),
      h(
        "section",
        {},
        h("h3", {}, "Operators"),
        ...rows
          .slice(0, 40)
          .map(([name, count]) => property(visible(name), String(count), clip(this.data.docs[name]?.doc ?? "", 300))),
      ),
    );
  }

  private endOfGraph(item: Item): HTMLElement {
    const maker = this.uses.maker.get(item.value);
    const readers = this.uses.readers.get(item.value) ?? [];
    return h(
      "div",
      { class: "node" },
      this.head(item, visible(item.label), `${item.kind} of the graph`),
      property(
        "type",
        typeOf(item.value, this.data) || "unknown",
        "The type of the numbers and the size of each axis; a name stands for a size that may vary.",
      ),
      item.kind === "output" && maker !== undefined ? property("from", this.nodeLink(maker)) : null,
      this.cut.takes(item.value) ? this.cut.buttons(item.value) : null,
      item.kind === "input" ? property("to", h("span", {}, ...this.nodeLinks(readers))) : null,
    );
  }

  // links

  nodeLink(node: number, text = ""): HTMLElement {
    const operator = this.data.operators[this.data.nodes.operator[node] ?? -1] ?? "";
    const name = `${operator} ${this.data.nodes.name[node] ?? ""}`;
    return h(
      "button",
      { type: "button", class: "link", onclick: () => this.actions.go(node) },
      text || clip(visible(name), 60),
    );
  }

  private nodeLinks(nodes: number[]): Child[] {
    const links = nodes
      .slice(0, FEW)
      .flatMap((node, i): Child[] => (i ? [", ", this.nodeLink(node)] : [this.nodeLink(node)]));
    return nodes.length > FEW ? [...links, ` and ${nodes.length - FEW} more`] : links;
  }

  private moduleLink(module: number): HTMLElement {
    const path = visible(this.data.modules.paths[module] ?? "");
    return h("button", { type: "button", class: "link", onclick: () => this.actions.goModule(module) }, path);
  }
}

function short(value: number | string | undefined): string {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value ?? "");
}
