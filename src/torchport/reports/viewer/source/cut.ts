// Cut by hand: tensors to begin and to end at, what lies between, what is missing, and the command that does it.

import type { ModelData } from "./data.ts";
import { h } from "./dom.ts";
import { clip, visible } from "./text.ts";

export interface Part {
  nodes: Set<number>;
  /** Inputs of the model that the part needs and that it does not begin at. */
  missing: number[];
}

/** What leads from some values to others; from the model's inputs, or to its outputs, where none are given. */
export function between(data: ModelData, begin: ReadonlySet<number>, end: ReadonlySet<number>): Part {
  const graph = data.graphs[0]!;
  const maker = new Map<number, number>();
  for (let node = graph.first; node < graph.first + graph.count; node++) {
    for (const value of data.nodes.outputs[node] ?? []) maker.set(value, node);
  }
  const nodes = new Set<number>();
  const missing = new Set<number>();
  const seen = new Set<number>();
  const pending = end.size ? [...end] : [...graph.outputs];
  for (let value = pending.pop(); value !== undefined; value = pending.pop()) {
    if (value < 0 || seen.has(value) || begin.has(value)) continue;
    seen.add(value);
    const node = maker.get(value);
    if (node !== undefined) {
      nodes.add(node);
      pending.push(...needed(data, node));
    } else if (begin.size && graph.inputs.includes(value)) missing.add(value);
  }
  return { nodes, missing: [...missing] };
}

/** What a node reads, in its branches and bodies too. */
function needed(data: ModelData, node: number): number[] {
  const found = [...(data.nodes.inputs[node] ?? [])];
  for (const [, graph] of data.nodes.bodies[node] || []) {
    const { first, count, outputs } = data.graphs[graph]!;
    found.push(...outputs);
    for (let inner = first; inner < first + count; inner++) found.push(...needed(data, inner));
  }
  return found;
}

const PLAIN = /^[\w./:@%+-]+$/;

/** The command for bash and zsh; none where a name has characters that a command line cannot hold. */
export function command(file: string, begin: string[], end: string[]): string | null {
  const words = [file, ...begin, ...end];
  if (words.some((word) => !word || visible(word) !== word) || [...begin, ...end].some((name) => name.includes(","))) {
    return null;
  }
  const quoted = (text: string) => (PLAIN.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const option = (name: string, values: string[]) => (values.length ? [name, quoted(values.join(","))] : []);
  const parts = [...option("--from", begin), ...option("--to", end)];
  return ["torchport cut", quoted(file), ...parts, "-o part.onnx"].join(" ");
}

/** The box at the foot of the graph. */
export class Cut {
  readonly element = h("section", { class: "cut", hidden: true, "aria-label": "Cut" });
  private readonly begin = new Set<number>();
  private readonly end = new Set<number>();
  private tensors = new Set<number>();

  constructor(
    private readonly data: ModelData,
    private readonly file: string,
    private readonly served: boolean,
    private readonly show: (nodes: Set<number>) => void,
  ) {}

  /** Only tensors of the main graph can be cut at. */
  takes(value: number): boolean {
    if (!this.tensors.size) {
      const { inputs, first, count } = this.data.graphs[0]!;
      const made = this.data.nodes.outputs.slice(first, first + count).flat();
      this.tensors = new Set([...inputs, ...made]);
    }
    return this.tensors.has(value);
  }

  buttons(value: number): HTMLElement {
    const button = (text: string, ends: Set<number>) =>
      h("button", { type: "button", class: "quiet", onclick: () => this.add(ends, value) }, text);
    return h("div", {}, button("cut from here", this.begin), " ", button("cut to here", this.end));
  }

  private add(ends: Set<number>, value: number): void {
    ends.add(value);
    this.update();
  }

  private clear(): void {
    this.begin.clear();
    this.end.clear();
    this.update();
  }

  private update(): void {
    this.element.hidden = !this.begin.size && !this.end.size;
    if (this.element.hidden) return this.show(new Set());
    const part = between(this.data, this.begin, this.end);
    this.show(part.nodes);
    const names = (values: Iterable<number>) => [...values].map((value) => this.data.values.name[value] ?? "");
    const [from, to] = [names(this.begin), names(this.end)];
    const line = command(this.file, from, to);
    const said = (values: string[], none: string) => visible(values.join(", ")) || none;
    const addMissing = () => {
      for (const value of part.missing) this.begin.add(value);
      this.update();
    };
    const box = h(
      "div",
      {},
      h(
        "strong",
        {},
        part.nodes.size
          ? `Cut: ${part.nodes.size} ${part.nodes.size > 1 ? "nodes" : "node"}`
          : "Cut: nothing lies between",
      ),
      h("div", {}, `from ${clip(said(from, "the model's inputs"), 120)}`),
      h("div", {}, `to ${clip(said(to, "the model's outputs"), 120)}`),
      part.missing.length
        ? h(
            "div",
            { class: "needs" },
            `It also needs ${clip(visible(names(part.missing).join(", ")), 120)} `,
            h("button", { type: "button", onclick: addMissing }, "begin there too"),
          )
        : null,
      line ? h("code", {}, line) : h("div", {}, "A name has characters that no command line takes: use tp.graph.cut."),
      h(
        "p",
        { class: "actions" },
        line ? h("button", { type: "button", onclick: () => void navigator.clipboard?.writeText(line) }, "Copy") : null,
        this.served && part.nodes.size
          ? h("button", { type: "button", onclick: () => void this.save(from, to) }, "Save the part")
          : null,
        h("button", { type: "button", onclick: () => this.clear() }, "Clear"),
      ),
    );
    this.element.replaceChildren(box);
  }

  /** Let the server cut, and offer the file. */
  private async save(inputs: string[], outputs: string[]): Promise<void> {
    const answer = await fetch("cut", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ inputs, outputs }),
    }).catch(() => null);
    if (!answer?.ok) {
      const reason = answer ? await answer.text() : "torchport view has ended";
      this.element.append(h("p", { class: "needs", role: "alert" }, visible(reason)));
      return;
    }
    const url = URL.createObjectURL(await answer.blob());
    h("a", { href: url, download: "part.onnx" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }
}
