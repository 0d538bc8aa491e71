// Search over names, operators, modules, tensors and Python lines.

import type { ModelData } from "./data.ts";

export interface Hit {
  node: number;
  /** What of the node fits, and where. */
  field: "name" | "operator" | "module" | "tensor" | "line" | "torch";
  text: string;
  rank: number;
}

const ORDER: Hit["field"][] = ["name", "operator", "tensor", "module", "line", "torch"];

export class Index {
  private readonly fields: { field: Hit["field"]; texts: string[]; lower: string[]; nodes: number[][] }[];

  constructor(private readonly data: ModelData) {
    const { nodes } = data;
    const count = nodes.name.length;
    const by = (texts: string[], of: number[]) => {
      const found: number[][] = texts.map(() => []);
      for (let node = 0; node < count; node++) found[of[node] ?? -1]?.push(node);
      return found;
    };
    const tensors: number[][] = data.values.name.map(() => []);
    for (let node = 0; node < count; node++) {
      for (const value of nodes.outputs[node] ?? []) tensors[value]?.push(node);
    }
    for (let node = 0; node < count; node++) {
      for (const value of nodes.inputs[node] ?? []) if (value in data.weights) tensors[value]?.push(node);
    }
    const lines = data.sources.map((source) => (source ? `${source}  ${data.lines[source] ?? ""}` : ""));
    const entry = (field: Hit["field"], texts: string[], found: number[][]) => {
      return { field, texts, lower: texts.map((text) => text.toLowerCase()), nodes: found };
    };
    this.fields = [
      entry(
        "name",
        nodes.name,
        nodes.name.map((_, node) => [node]),
      ),
      entry("operator", data.operators, by(data.operators, nodes.operator)),
      entry("tensor", data.values.name, tensors),
      entry("module", data.modules.paths, by(data.modules.paths, nodes.module)),
      entry("line", lines, by(lines, nodes.source)),
      entry("torch", data.torch, by(data.torch, nodes.torch)),
    ];
  }

  /** The nodes that fit, whole matches before beginnings before the rest; each node once. */
  find(query: string): Hit[] {
    const wanted = query.trim().toLowerCase();
    if (!wanted) return [];
    const best = new Map<number, Hit>();
    for (const { field, texts, lower, nodes } of this.fields) {
      lower.forEach((text, i) => {
        const at = text.indexOf(wanted);
        if (at < 0) return;
        const rank = (text === wanted ? 0 : at === 0 ? 1 : 2) * ORDER.length + ORDER.indexOf(field);
        for (const node of nodes[i]!) {
          const known = best.get(node);
          if (!known || known.rank > rank) best.set(node, { node, field, text: texts[i]!, rank });
        }
      });
    }
    return [...best.values()].sort((a, b) => a.rank - b.rank || a.node - b.node);
  }

  operator(node: number): string {
    return this.data.operators[this.data.nodes.operator[node] ?? -1] ?? "";
  }
}
