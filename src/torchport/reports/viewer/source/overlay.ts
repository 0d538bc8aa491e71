// Numbers laid over the graph: which color a box gets, and the ten largest.

import type { ModelData, OverlayData } from "./data.ts";
import { measured } from "./text.ts";
import type { Item } from "./tree.ts";

export class Overlay {
  readonly numbers = new Map<number, number>();
  readonly notes = new Map<number, string>();
  readonly largest: number;
  /** The end of the scale. */
  most: number;
  private readonly smallest: number;
  private readonly sums = new Map<number, number | undefined>();
  /** Boxes below it are left pale. */
  threshold = 0;

  constructor(readonly data: OverlayData) {
    data.nodes.forEach((node, i) => {
      this.numbers.set(node, data.numbers[i] ?? 0);
      if (data.notes[i]) this.notes.set(node, data.notes[i]);
    });
    const positive = data.numbers.map(finite).filter((one) => one > 0);
    this.largest = positive.reduce((a, b) => Math.max(a, b), 0);
    this.most = this.largest;
    this.smallest = Math.max(
      positive.reduce((a, b) => Math.min(a, b), this.largest),
      this.largest * 1e-6,
    );
  }

  /** What a box has: a node's own number, a module's sum or largest. */
  of(item: Item): number | undefined {
    const own = item.node >= 0 ? this.numbers.get(item.node) : undefined;
    if (!item.children.length) return own;
    if (!this.sums.has(item.id)) {
      const parts = item.children.map((child) => this.of(child)).filter((one) => one !== undefined);
      if (own !== undefined) parts.push(own);
      const join =
        this.data.total === "sum" ? (a: number, b: number) => a + b : (a: number, b: number) => Math.max(a, b);
      this.sums.set(item.id, parts.length ? parts.reduce(join) : undefined);
    }
    return this.sums.get(item.id);
  }

  /** Take the largest of the boxes in the picture as the end of the scale. */
  rescale(shown: Item[]): void {
    this.most = shown.reduce((most, item) => Math.max(most, finite(this.of(item))), 0) || this.largest;
  }

  /** Between 0 and 1: by the logarithm for errors, which differ by powers of ten; else by the root. */
  part(value: number): number {
    const { most } = this;
    if (!(value > 0) || !most) return 0;
    if (this.data.total === "sum") return Math.sqrt(value / most);
    const span = Math.log(most / this.smallest);
    return span ? 0.05 + 0.95 * Math.max(0, Math.log(value / this.smallest) / span) : 1;
  }

  /** The kind that a number stands for; none where numbers are measures. */
  kind(value: number): string | undefined {
    return this.data.kinds?.[value - 1];
  }

  text(value: number): string {
    const kind = this.kind(value);
    if (kind) return kind;
    return measured(value, this.data.unit);
  }

  /** How many nodes there are of each kind. */
  counts(): [string, number][] {
    const numbers = [...this.numbers.values()];
    return (this.data.kinds ?? []).map((kind, n) => [kind, numbers.filter((one) => one === n + 1).length]);
  }

  /** Whether a node stands before those with larger numbers: it introduces the error that they only pass on. */
  isFirst(node: number): boolean {
    return this.data.first !== undefined && this.notes.get(node) === this.data.first;
  }

  worst(count: number): number[] {
    return [...this.numbers.keys()]
      .filter((node) => (this.numbers.get(node) ?? 0) > 0)
      .sort((a, b) => Number(this.isFirst(b)) - Number(this.isFirst(a)) || this.numbers.get(b)! - this.numbers.get(a)!)
      .slice(0, count);
  }
}

function finite(value: number | undefined): number {
  return value === undefined || value >= 1e300 ? 0 : value; // what is no number stands as 1e300
}

/** What every model has: how much it computes and moves, as far as the shapes tell. */
export function builtIn(data: ModelData): OverlayData[] {
  const note = `of one run; a size that varies is taken as ${data.assumed}`;
  const of = (name: string, unit: string, column: (number | null)[]): OverlayData => {
    const nodes = [...column.keys()].filter((node) => column[node] !== null);
    return { name, unit, total: "sum", note, nodes, numbers: nodes.map((node) => column[node]!), notes: [] };
  };
  return [of("Multiply-adds", "count", data.nodes.work), of("Memory moved", "B", data.nodes.moved)];
}
