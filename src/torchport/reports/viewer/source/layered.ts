// A layered drawing of one level: layers by the longest path, long edges through bends that a source shares, orders by
// barycenters, and places by isotonic regression: each box as near to its neighbors as the distances allow.

export interface Level {
  widths: number[];
  heights: number[];
  /** Pairs: from, to. Boxes come in an order in which most edges go forward. */
  edges: [number, number][];
  /** How far from the middle of its box an edge leaves and arrives, by edge. */
  leaves: number[];
  arrives: number[];
  /** Boxes from here on stand at the top, up to `bottoms`; from there on at the bottom. */
  tops: number;
  bottoms: number;
}

export interface Drawing {
  width: number;
  height: number;
  /** The middle of each box, and its upper edge. */
  x: Float64Array;
  y: Float64Array;
  /** The points of each edge: x, y, x, y, ... */
  lines: Float64Array[];
}

const GAP_X = 22;
const GAP_BEND = 12;
const GAP_Y = 44;
const LONGEST = 24; // layers; a longer edge has no bends and is drawn straight
const MOST_BENDS = 200_000;

export function draw(level: Level): Drawing {
  return new Layered(level).draw();
}

/** Lists of numbers by number, in two arrays. */
class Lists {
  readonly start: Int32Array;
  readonly item: Int32Array;
  constructor(count: number, keys: ArrayLike<number>, values: ArrayLike<number>, length: number) {
    this.start = new Int32Array(count + 1);
    for (let i = 0; i < length; i++) this.start[keys[i]! + 1]!++;
    for (let i = 0; i < count; i++) this.start[i + 1]! += this.start[i]!;
    const next = this.start.slice();
    this.item = new Int32Array(length);
    for (let i = 0; i < length; i++) this.item[next[keys[i]!]!++] = values[i]!;
  }
}

class Layered {
  private readonly boxes: number;
  private readonly from: Int32Array;
  private readonly to: Int32Array;
  private readonly turned: Uint8Array;
  private layer: Int32Array;
  private layers = 0;
  // with the bends: nodes from `boxes` on
  private count = 0;
  private nodeLayer: number[] = [];
  private width: number[] = [];
  private linkFrom: number[] = [];
  private linkTo: number[] = [];
  private linkWeight: number[] = [];
  private linkLeave: number[] = [];
  private linkArrive: number[] = [];
  private bendsOf: number[][] = [];
  private order: number[][] = [];
  private place = new Float64Array(0);
  private x = new Float64Array(0);

  constructor(private readonly level: Level) {
    this.boxes = level.widths.length;
    const edges = level.edges.length;
    this.from = new Int32Array(edges);
    this.to = new Int32Array(edges);
    this.turned = new Uint8Array(edges);
    this.layer = new Int32Array(this.boxes);
  }

  draw(): Drawing {
    if (!this.boxes) return { width: 0, height: 0, x: new Float64Array(0), y: new Float64Array(0), lines: [] };
    this.breakCycles();
    this.assignLayers();
    this.addBends();
    this.orderLayers();
    this.placeBoxes();
    return this.finish();
  }

  /** Number the boxes so that edges go forward; those that cannot are turned around. */
  private breakCycles(): void {
    const { edges } = this.level;
    const open = new Int32Array(this.boxes);
    for (const [a, b] of edges) if (a !== b) open[b]!++;
    const after = new Lists(
      this.boxes,
      edges.map((e) => e[0]),
      edges.map((e) => e[1]),
      edges.length,
    );
    const rank = new Int32Array(this.boxes).fill(-1);
    const ready: number[] = [];
    for (let box = this.boxes - 1; box >= 0; box--) if (!open[box]) ready.push(box);
    let next = 0;
    let first = 0;
    while (next < this.boxes) {
      let box = ready.pop();
      if (box === undefined) {
        while (rank[first]! >= 0) first++;
        box = first; // on a cycle: the first box as the model has them
      }
      if (rank[box]! >= 0) continue;
      rank[box] = next++;
      for (let i = after.start[box]!; i < after.start[box + 1]!; i++) {
        const other = after.item[i]!;
        if (other !== box && --open[other]! === 0 && rank[other]! < 0) ready.push(other);
      }
    }
    edges.forEach(([a, b], i) => {
      const backward = rank[a]! > rank[b]!;
      this.turned[i] = backward ? 1 : 0;
      this.from[i] = backward ? b : a;
      this.to[i] = backward ? a : b;
    });
    this.rank = rank;
  }

  private rank = new Int32Array(0);

  private assignLayers(): void {
    const byRank = [...this.rank.keys()].sort((a, b) => this.rank[a]! - this.rank[b]!);
    const out = new Lists(this.boxes, this.from, this.to, this.from.length);
    const into = new Lists(this.boxes, this.to, this.from, this.from.length);
    const { tops, bottoms } = this.level;
    for (const box of byRank) {
      for (let i = out.start[box]!; i < out.start[box + 1]!; i++) {
        const other = out.item[i]!;
        if (other !== box) this.layer[other] = Math.max(this.layer[other]!, this.layer[box]! + 1);
      }
    }
    for (const box of byRank.reverse()) {
      const ins = into.start[box + 1]! - into.start[box]!;
      const outs = out.start[box + 1]! - out.start[box]!;
      if (!outs || outs < ins || (box >= tops && box < bottoms)) continue; // nearer to what it is for, if that is shorter
      let least = Infinity;
      for (let i = out.start[box]!; i < out.start[box + 1]!; i++) {
        if (out.item[i] !== box) least = Math.min(least, this.layer[out.item[i]!]! - 1);
      }
      if (least !== Infinity && (ins === 0 || outs > ins)) this.layer[box] = Math.max(this.layer[box]!, least);
    }
    this.layers = this.layer.reduce((most, one) => Math.max(most, one + 1), 1);
    const last = Math.max(this.layers - 1, 0);
    for (let box = bottoms; box < this.boxes; box++) this.layer[box] = last;
  }

  private addBends(): void {
    this.count = this.boxes;
    this.nodeLayer = Array.from(this.layer);
    this.width = this.level.widths.slice();
    this.bendsOf = this.level.edges.map(() => []);
    let total = 0;
    for (let i = 0; i < this.from.length; i++) {
      const span = this.layer[this.to[i]!]! - this.layer[this.from[i]!]!;
      if (span <= LONGEST) total += span;
    }
    const longest = total > MOST_BENDS ? 4 : LONGEST;
    const chains = new Map<string, number[]>();
    for (let i = 0; i < this.from.length; i++) {
      const [a, b] = [this.from[i]!, this.to[i]!];
      const span = this.layer[b]! - this.layer[a]!;
      if (a === b || span <= 0 || span > longest) continue;
      const leave = (this.turned[i] ? this.level.arrives[i] : this.level.leaves[i]) ?? 0;
      const arrive = (this.turned[i] ? this.level.leaves[i] : this.level.arrives[i]) ?? 0;
      const chain = this.chain(chains, `${a}:${leave}`, a, leave, span - 1);
      this.bendsOf[i] = chain.slice(0, span - 1);
      const before = span > 1 ? chain[span - 2]! : a;
      this.link(before, b, span > 1 ? 2 : 1, span > 1 ? 0 : leave, arrive);
    }
  }

  /** The bends below a box, as far as they are needed; edges of one source share them. */
  private chain(chains: Map<string, number[]>, key: string, box: number, leave: number, length: number): number[] {
    const chain = chains.get(key) ?? [];
    chains.set(key, chain);
    while (chain.length < length) {
      const bend = this.count++;
      this.nodeLayer.push(this.layer[box]! + chain.length + 1);
      this.width.push(0);
      const above = chain.at(-1);
      if (above === undefined) this.link(box, bend, 2, leave, 0);
      else this.link(above, bend, 8, 0, 0);
      chain.push(bend);
    }
    return chain;
  }

  private link(from: number, to: number, weight: number, leave: number, arrive: number): void {
    this.linkFrom.push(from);
    this.linkTo.push(to);
    this.linkWeight.push(weight);
    this.linkLeave.push(leave);
    this.linkArrive.push(arrive);
  }

  private orderLayers(): void {
    const above = new Lists(this.count, this.linkTo, this.linkFrom, this.linkFrom.length);
    const below = new Lists(this.count, this.linkFrom, this.linkTo, this.linkFrom.length);
    this.place = new Float64Array(this.count);
    this.order = this.firstOrder(below);
    const sweeps = this.count > 60_000 ? 2 : this.count > 15_000 ? 4 : 10;
    let best = Infinity;
    let kept = this.order.map((row) => row.slice());
    for (let sweep = 0; sweep <= sweeps; sweep++) {
      const crossings = this.crossings(below);
      if (crossings < best) {
        best = crossings;
        kept = this.order.map((row) => row.slice());
      }
      if (!best || sweep === sweeps) break;
      const down = sweep % 2 === 0;
      for (let n = 1; n < this.layers; n++) this.sortRow(down ? n : this.layers - 1 - n, down ? above : below);
    }
    this.order = kept;
    for (const row of this.order)
      row.forEach((node, i) => {
        this.place[node] = i;
      });
  }

  /** By depth first from the boxes without predecessors, so that what belongs together stands together. */
  private firstOrder(below: Lists): number[][] {
    const rows: number[][] = Array.from({ length: this.layers }, () => []);
    const seen = new Uint8Array(this.count);
    const starts = [...Array(this.count).keys()].sort((a, b) => this.nodeLayer[a]! - this.nodeLayer[b]! || a - b);
    for (const start of starts) {
      const stack = [start];
      for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
        if (seen[node]) continue;
        seen[node] = 1;
        const row = rows[this.nodeLayer[node]!]!;
        this.place[node] = row.length;
        row.push(node);
        for (let i = below.start[node + 1]! - 1; i >= below.start[node]!; i--) stack.push(below.item[i]!);
      }
    }
    return rows;
  }

  private sortRow(n: number, neighbors: Lists): void {
    const row = this.order[n]!;
    const middle = new Map<number, number>();
    row.forEach((node, i) => {
      let sum = 0;
      const [start, end] = [neighbors.start[node]!, neighbors.start[node + 1]!];
      for (let k = start; k < end; k++) sum += this.place[neighbors.item[k]!]!;
      middle.set(node, end > start ? sum / (end - start) : i);
    });
    row.sort((a, b) => middle.get(a)! - middle.get(b)!);
    row.forEach((node, i) => {
      this.place[node] = i;
    });
  }

  private crossings(below: Lists): number {
    let total = 0;
    for (let n = 0; n + 1 < this.layers; n++) {
      const targets: number[] = [];
      for (const node of this.order[n]!) {
        const own: number[] = [];
        for (let i = below.start[node]!; i < below.start[node + 1]!; i++) own.push(this.place[below.item[i]!]!);
        own.sort((a, b) => a - b);
        targets.push(...own);
      }
      total += inversions(targets, this.order[n + 1]!.length);
    }
    return total;
  }

  private placeBoxes(): void {
    this.x = new Float64Array(this.count);
    for (const row of this.order) {
      let at = 0;
      row.forEach((node, i) => {
        at += i ? this.distance(row[i - 1]!, node) : 0;
        this.x[node] = at;
      });
    }
    const rounds = this.count > 60_000 ? 4 : this.count > 15_000 ? 6 : 16;
    const up = new Lists(
      this.count,
      this.linkTo,
      this.linkFrom.map((_, i) => i),
      this.linkFrom.length,
    );
    const down = new Lists(
      this.count,
      this.linkFrom,
      this.linkTo.map((_, i) => i),
      this.linkTo.length,
    );
    for (let round = 0; round < rounds; round++) {
      const downward = round % 2 === 0;
      const both = round >= rounds - 4;
      for (let n = 0; n < this.layers; n++) {
        this.placeRow(
          this.order[downward ? n : this.layers - 1 - n]!,
          downward || both ? up : null,
          !downward || both ? down : null,
        );
      }
    }
  }

  private distance(left: number, right: number): number {
    const gap = this.width[left] && this.width[right] ? GAP_X : GAP_BEND;
    return (this.width[left]! + this.width[right]!) / 2 + gap;
  }

  /** Move the boxes of a row towards their neighbors, without changing their order. */
  private placeRow(row: number[], up: Lists | null, down: Lists | null): void {
    const wanted: number[] = [];
    const weights: number[] = [];
    let offset = 0;
    row.forEach((node, i) => {
      offset += i ? this.distance(row[i - 1]!, node) : 0;
      let [sum, weight] = [0, 0];
      if (up) {
        for (let k = up.start[node]!; k < up.start[node + 1]!; k++) {
          const link = up.item[k]!;
          sum +=
            (this.x[this.linkFrom[link]!]! + this.linkLeave[link]! - this.linkArrive[link]!) * this.linkWeight[link]!;
          weight += this.linkWeight[link]!;
        }
      }
      if (down) {
        for (let k = down.start[node]!; k < down.start[node + 1]!; k++) {
          const link = down.item[k]!;
          sum +=
            (this.x[this.linkTo[link]!]! + this.linkArrive[link]! - this.linkLeave[link]!) * this.linkWeight[link]!;
          weight += this.linkWeight[link]!;
        }
      }
      wanted.push((weight ? sum / weight : this.x[node]!) - offset);
      weights.push(weight || 0.01);
    });
    const placed = isotonic(wanted, weights);
    offset = 0;
    row.forEach((node, i) => {
      offset += i ? this.distance(row[i - 1]!, node) : 0;
      this.x[node] = placed[i]! + offset;
    });
  }

  private finish(): Drawing {
    const { heights, edges, leaves, arrives } = this.level;
    const tall = new Float64Array(this.layers);
    for (let box = 0; box < this.boxes; box++) {
      tall[this.layer[box]!] = Math.max(tall[this.layer[box]!]!, heights[box]!);
    }
    const top = new Float64Array(this.layers + 1);
    for (let n = 0; n < this.layers; n++) top[n + 1] = top[n]! + tall[n]! + GAP_Y;
    let [left, right] = [Infinity, -Infinity];
    for (let node = 0; node < this.count; node++) {
      left = Math.min(left, this.x[node]! - this.width[node]! / 2);
      right = Math.max(right, this.x[node]! + this.width[node]! / 2);
    }
    const x = new Float64Array(this.boxes);
    const y = new Float64Array(this.boxes);
    for (let box = 0; box < this.boxes; box++) {
      x[box] = this.x[box]! - left;
      y[box] = top[this.layer[box]!]! + (tall[this.layer[box]!]! - heights[box]!) / 2;
    }
    const spread = this.spread();
    const lines = edges.map(([a, b], i) => {
      const start = [x[a]! + (leaves[i] ?? 0), y[a]! + heights[a]!];
      const end = [x[b]! + ((arrives[i] ?? 0) || spread[i]!), y[b]!];
      const bends = this.turned[i] ? this.bendsOf[i]!.toReversed() : this.bendsOf[i]!;
      const inner = bends.flatMap((bend) => {
        const at = this.x[bend]! - left;
        const n = this.nodeLayer[bend]!;
        const ends = [at, top[n]!, at, top[n]! + tall[n]!];
        return this.turned[i] ? [at, ends[3]!, at, ends[1]!] : ends;
      });
      return Float64Array.from([...start, ...inner, ...end]);
    });
    return { width: right - left, height: top[this.layers]! - GAP_Y, x, y, lines };
  }

  /** Edges that arrive at one box come in side by side, in the order of where they come from. */
  private spread(): Float64Array {
    const found = new Float64Array(this.from.length);
    const into = new Lists(
      this.boxes,
      this.level.edges.map((e) => e[1]),
      [...this.from.keys()],
      this.from.length,
    );
    for (let box = 0; box < this.boxes; box++) {
      const own = Array.from(into.item.subarray(into.start[box]!, into.start[box + 1]!));
      if (own.length < 2) continue;
      const comesFrom = (i: number) => this.x[this.bendsOf[i]!.at(-1) ?? this.level.edges[i]![0]]!;
      own.sort((a, b) => comesFrom(a) - comesFrom(b));
      const step = Math.min(14, (this.level.widths[box]! * 0.7) / (own.length - 1));
      own.forEach((i, k) => {
        found[i] = (k - (own.length - 1) / 2) * step;
      });
    }
    return found;
  }
}

/** The non-decreasing numbers that are nearest to the wanted ones by weighted squares (pool adjacent violators). */
export function isotonic(wanted: number[], weights: number[]): number[] {
  const means: number[] = [];
  const sums: number[] = [];
  const lengths: number[] = [];
  for (let i = 0; i < wanted.length; i++) {
    let [mean, weight, length] = [wanted[i]!, weights[i]!, 1];
    while (means.length && means.at(-1)! > mean) {
      const other = sums.pop()!;
      mean = (means.pop()! * other + mean * weight) / (other + weight);
      weight += other;
      length += lengths.pop()!;
    }
    means.push(mean);
    sums.push(weight);
    lengths.push(length);
  }
  return means.flatMap((mean, i) => Array<number>(lengths[i]!).fill(mean));
}

/** How many pairs stand in the wrong order. */
export function inversions(values: number[], size: number): number {
  const tree = new Int32Array(size + 1);
  let found = 0;
  for (let i = values.length - 1; i >= 0; i--) {
    for (let k = values[i]!; k > 0; k -= k & -k) found += tree[k]!;
    for (let k = values[i]! + 1; k <= size; k += k & -k) tree[k]!++;
  }
  return found;
}
