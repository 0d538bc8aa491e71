// From the tree and what is open in it to the blocks that are laid out: which boxes, how large, and which edges.

import type { Block, BlockEdge } from "./arrange.ts";
import type { ModelData } from "./data.ts";
import { clip, human, visible } from "./text.ts";
import type { Item, Tree } from "./tree.ts";

const LETTER = 6.6; // pixels of a letter, on average: measuring 50,000 texts would take a second
const LINE = 15;
export const MOST_LETTERS = 34;

/** The lines of text in a closed box, the first one large. */
export function linesOf(item: Item, data: ModelData): string[] {
  if (item.kind === "module") return [titleOf(item), `${human(item.count)} nodes`];
  if (item.kind !== "node") return [titleOf(item), clip(typeOf(item.value, data), MOST_LETTERS)];
  const name = data.nodes.name[item.node] ?? "";
  const short = name.slice(name.lastIndexOf("/") + 1);
  const weights = (data.nodes.inputs[item.node] ?? []).flatMap((value) => shapeOf(value, data));
  const lines = [titleOf(item), clip(visible(short), MOST_LETTERS)];
  return weights.length ? [...lines, clip(weights.join(" "), MOST_LETTERS)] : lines;
}

export function titleOf(item: Item): string {
  return clip(visible(item.label) || "(no name)", MOST_LETTERS);
}

export function typeOf(value: number, data: ModelData): string {
  const type = visible(data.types[data.values.type[value] ?? -1] ?? "");
  return type === "?" ? "type unknown" : type;
}

function shapeOf(value: number, data: ModelData): string[] {
  if (!(value in data.weights)) return [];
  const shape = /\[(.+)\]$/.exec(typeOf(value, data))?.[1];
  return shape ? [`⟨${shape.replaceAll(",", "×")}⟩`] : [];
}

/** Build the blocks of all open boxes. */
export function blocksOf(tree: Tree, open: ReadonlySet<number>): Block {
  return new Builder(tree, open).root();
}

interface Draft {
  block: Block;
  positions: Map<number, number>;
  ins: Map<number, number>;
  outs: Map<number, number>;
  edges: Map<string, BlockEdge & { in: number; out: number }>;
}

class Builder {
  private readonly drafts = new Map<number, Draft>();

  constructor(
    private readonly tree: Tree,
    private readonly open: ReadonlySet<number>,
  ) {}

  root(): Block {
    const root = this.draft(this.tree.root);
    for (const item of [...this.tree.items]) this.connect(item);
    for (const draft of this.drafts.values()) this.finish(draft);
    return root.block;
  }

  private draft(item: Item): Draft {
    const block: Block = { items: [], widths: [], heights: [], inner: [], edges: [], ins: 0, outs: 0, title: 0 };
    const draft: Draft = { block, positions: new Map(), ins: new Map(), outs: new Map(), edges: new Map() };
    this.drafts.set(item.id, draft);
    block.title = titleOf(item).length * LETTER + 60;
    item.children.forEach((child, n) => {
      block.items.push(child.id);
      draft.positions.set(child.id, n);
      const lines = linesOf(child, this.tree.data);
      const longest = Math.max(lines[0]!.length * 1.12, ...lines.map((line) => line.length));
      block.widths.push(Math.max(64, longest * LETTER + (this.tree.opens(child) ? 36 : 18)));
      block.heights.push(lines.length * LINE + 12);
      if (this.open.has(child.id) && child.children.length) block.inner.push([n, this.draft(child).block]);
    });
    return draft;
  }

  /** The box that stands for an item: itself, or the closed box that it is in. */
  private shown(item: Item): Item {
    let found = item;
    for (let above = item.parent; above; above = above.parent) {
      if (!this.drafts.has(above.id)) found = above;
    }
    return found;
  }

  private connect(item: Item): void {
    const { data } = this.tree;
    if (item.kind === "output") this.edge(item.value, item);
    if (item.kind !== "node") return;
    for (const value of data.nodes.inputs[item.node] ?? []) if (value >= 0) this.edge(value, item);
  }

  /** Draw a value from where it is made to where it is read: through the borders between them. */
  private edge(value: number, reader: Item): void {
    const maker = reader.scope.producer(value);
    if (!maker || maker === reader) return;
    let [from, to] = [this.shown(maker), this.shown(reader)];
    if (from === to) return;
    let [depthFrom, depthTo] = [depthOf(from), depthOf(to)];
    let [fromPort, toPort] = [-1, -1];
    while (from.parent !== to.parent) {
      if (depthFrom >= depthTo) {
        fromPort = this.outward(from, fromPort, value);
        from = from.parent!;
        depthFrom--;
      } else {
        toPort = this.inward(to, toPort, value);
        to = to.parent!;
        depthTo--;
      }
    }
    if (from !== to && from.parent) this.add(this.drafts.get(from.parent.id)!, from, to, value, fromPort, toPort);
  }

  private outward(from: Item, fromPort: number, value: number): number {
    const draft = this.drafts.get(from.parent!.id)!;
    const port = numbered(draft.outs, value);
    this.add(draft, from, null, value, fromPort, port);
    return port;
  }

  private inward(to: Item, toPort: number, value: number): number {
    const draft = this.drafts.get(to.parent!.id)!;
    const port = numbered(draft.ins, value);
    this.add(draft, null, to, value, port, toPort);
    return port;
  }

  private add(draft: Draft, from: Item | null, to: Item | null, value: number, fromPort: number, toPort: number): void {
    const key = `${from?.id ?? ""}:${fromPort}>${to?.id ?? ""}:${toPort}`;
    if (draft.edges.has(key)) return;
    draft.edges.set(key, {
      from: from ? draft.positions.get(from.id)! : -1,
      to: to ? draft.positions.get(to.id)! : -1,
      value,
      fromPort: from ? fromPort : -1,
      toPort: to ? toPort : -1,
      in: from ? -1 : fromPort,
      out: to ? -1 : toPort,
    });
  }

  private finish(draft: Draft): void {
    const { block, ins, outs } = draft;
    const count = block.items.length;
    block.ins = ins.size;
    block.outs = outs.size;
    block.edges = [...draft.edges.values()].map((edge) => ({
      from: edge.in >= 0 ? count + edge.in : edge.from,
      to: edge.out >= 0 ? count + ins.size + edge.out : edge.to,
      value: edge.value,
      fromPort: edge.fromPort,
      toPort: edge.toPort,
    }));
  }
}

function numbered(ports: Map<number, number>, value: number): number {
  const known = ports.get(value) ?? ports.size;
  ports.set(value, known);
  return known;
}

function depthOf(item: Item): number {
  let found = 0;
  for (let above = item.parent; above; above = above.parent) found++;
  return found;
}
