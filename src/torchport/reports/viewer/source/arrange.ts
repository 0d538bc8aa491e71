// Boxes inside boxes: each open box is drawn by itself, from the inside out; then all get their places on one plane.

import { type Drawing, draw } from "./layered.ts";

/** An open box: what is in it, and where edges cross its border. */
export interface Block {
  items: number[];
  widths: number[];
  heights: number[];
  /** The open ones among its items, by position in `items`. */
  inner: [number, Block][];
  /** Edges by position: items first, then `ins` places in the upper border, then `outs` in the lower one. */
  edges: BlockEdge[];
  ins: number;
  outs: number;
  /** Room for the title. */
  title: number;
}

export interface BlockEdge {
  from: number;
  to: number;
  value: number;
  /** The place in the border of an open box that it comes from or goes to; -1 for a closed box. */
  fromPort: number;
  toPort: number;
}

/** Everything that is drawn, on one plane. */
export interface Plan {
  width: number;
  height: number;
  /** Of each box: item, x, y, width, height, depth (0 and up for open boxes, -1 for closed ones). */
  boxes: Float64Array;
  /** Of each edge: value, item from, item to, or -1 at a border. */
  ends: Int32Array;
  /** Where the points of each edge begin in `points`; one more at the end. */
  starts: Int32Array;
  points: Float64Array;
}

const PADDING = 18;

interface Arranged {
  block: Block;
  drawing: Drawing;
  width: number;
  height: number;
  inner: Map<number, Arranged>;
  /** How far from the middle of the box its ports are. */
  ins: number[];
  outs: number[];
}

export function arrange(root: Block): Plan {
  const arranged = inside(root);
  const boxes: number[] = [];
  const ends: number[] = [];
  const lines: Float64Array[] = [];
  collect(arranged, 0, 0, 1, boxes, ends, lines);
  const starts = new Int32Array(lines.length + 1);
  lines.forEach((line, i) => {
    starts[i + 1] = starts[i]! + line.length;
  });
  const points = new Float64Array(starts[lines.length]!);
  lines.forEach((line, i) => {
    points.set(line, starts[i]);
  });
  return {
    width: arranged.width,
    height: arranged.height,
    boxes: Float64Array.from(boxes),
    ends: Int32Array.from(ends),
    starts,
    points,
  };
}

function inside(block: Block): Arranged {
  const widths = block.widths.slice();
  const heights = block.heights.slice();
  const inner = new Map<number, Arranged>();
  for (const [position, one] of block.inner) {
    const found = inside(one);
    widths[position] = Math.max(found.width, widths[position]!);
    heights[position] = found.height;
    inner.set(position, found);
  }
  const count = block.items.length;
  const drawing = draw({
    widths: [...widths, ...Array<number>(block.ins + block.outs).fill(0)],
    heights: [...heights, ...Array<number>(block.ins + block.outs).fill(0)],
    edges: block.edges.map((edge) => [edge.from, edge.to]),
    leaves: block.edges.map((edge) => inner.get(edge.from)?.outs[edge.fromPort] ?? 0),
    arrives: block.edges.map((edge) => inner.get(edge.to)?.ins[edge.toPort] ?? 0),
    tops: count,
    bottoms: count + block.ins,
  });
  const width = Math.max(drawing.width + 2 * PADDING, block.title);
  const shift = (width - drawing.width) / 2 - width / 2;
  const port = (n: number) => drawing.x[count + n]! + shift;
  return {
    block,
    drawing,
    width,
    height: drawing.height + 2 * PADDING + TITLE,
    inner,
    ins: Array.from({ length: block.ins }, (_, n) => port(n)),
    outs: Array.from({ length: block.outs }, (_, n) => port(block.ins + n)),
  };
}

export const TITLE = 22;

function collect(
  one: Arranged,
  left: number,
  top: number,
  depth: number,
  boxes: number[],
  ends: number[],
  lines: Float64Array[],
): void {
  const { block, drawing } = one;
  const x0 = left + (one.width - drawing.width) / 2;
  const y0 = top + PADDING + TITLE;
  block.items.forEach((item, n) => {
    const open = one.inner.get(n);
    const width = Math.max(open?.width ?? 0, block.widths[n]!);
    const x = x0 + drawing.x[n]! - width / 2;
    const y = y0 + drawing.y[n]!;
    boxes.push(item, x, y, width, open?.height ?? block.heights[n]!, open ? depth : -1);
    if (open) collect(open, x + (width - open.width) / 2, y, depth + 1, boxes, ends, lines);
  });
  const bottom = top + one.height;
  block.edges.forEach((edge, n) => {
    const line = drawing.lines[n]!;
    const moved = line.map((value, k) => value + (k % 2 ? y0 : x0));
    if (edge.from >= block.items.length) moved[1] = top;
    if (edge.to >= block.items.length) moved[moved.length - 1] = bottom;
    ends.push(edge.value, block.items[edge.from] ?? -1, block.items[edge.to] ?? -1);
    lines.push(moved);
  });
}
