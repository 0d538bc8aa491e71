// The picture of the graph: a canvas with the plan on it, moved and scaled by hand.

import type { Plan } from "./arrange.ts";
import { linesOf, titleOf, typeOf } from "./blocks.ts";
import type { Overlay } from "./overlay.ts";
import { heat, kindOf, stateColor, type Theme, theme } from "./palette.ts";
import { clip } from "./text.ts";
import type { Item, Tree } from "./tree.ts";

const FIELDS = 6; // numbers of a box in a plan
const READABLE = 0.42; // the scale from which text is drawn
const MOST_SCALE = 3;
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const MOST_CURVES = 6000; // edges in sight; more are drawn as straight lines
const MOST_LINES = 40_000;

interface Box {
  item: Item;
  x: number;
  y: number;
  width: number;
  height: number;
  depth: number;
}

export interface ViewEvents {
  select(item: Item | null): void;
  toggle(item: Item): void;
}

export class View {
  private plan: Plan | null = null;
  private boxes: Box[] = [];
  private readonly boxOf = new Map<number, Box>();
  private bounds = new Float64Array(0);
  private scale = 1;
  private left = 0;
  private top = 0;
  private colors: Theme = theme();
  private waiting = false;
  private readonly pointers = new Map<number, { x: number; y: number }>();
  private moved = 0;
  selected: Item | null = null;
  found = new Set<number>();
  overlay: Overlay | null = null;
  /** Frames drawn and the milliseconds they took, for the tests. */
  readonly frames = { count: 0, milliseconds: 0 };

  constructor(
    readonly canvas: HTMLCanvasElement,
    readonly map: HTMLCanvasElement,
    private readonly tree: Tree,
    private readonly events: ViewEvents,
  ) {
    new ResizeObserver(() => this.redraw()).observe(canvas);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(query).addEventListener("change", () => {
        this.colors = theme();
        this.drawMap();
        this.redraw();
      });
    }
    this.listen();
  }

  // what is shown

  /** Show a plan. `keep`: a box that stays where it is on the screen. */
  show(plan: Plan, keep: Item | null): void {
    const before = keep ? this.boxOf.get(keep.id) : undefined;
    const at = before && { x: before.x * this.scale + this.left, y: before.y * this.scale + this.top };
    this.plan = plan;
    this.boxes = [];
    this.boxOf.clear();
    for (let i = 0; i < plan.boxes.length; i += FIELDS) {
      const [item, x, y, width, height, depth] = plan.boxes.subarray(i, i + FIELDS) as unknown as number[];
      const box = { item: this.tree.items[item!]!, x: x!, y: y!, width: width!, height: height!, depth: depth! };
      this.boxes.push(box);
      this.boxOf.set(box.item.id, box);
    }
    this.measureEdges();
    const after = keep ? this.boxOf.get(keep.id) : undefined;
    if (at && after) {
      this.left = at.x - after.x * this.scale;
      this.top = at.y - after.y * this.scale;
      this.clamp();
    } else this.fit();
    this.drawMap();
    this.refresh();
  }

  private measureEdges(): void {
    const { points, starts } = this.plan!;
    const count = starts.length - 1;
    this.bounds = new Float64Array(count * 4);
    for (let e = 0; e < count; e++) {
      let [x0, y0, x1, y1] = [Infinity, Infinity, -Infinity, -Infinity];
      for (let i = starts[e]!; i < starts[e + 1]!; i += 2) {
        x0 = Math.min(x0, points[i]!);
        x1 = Math.max(x1, points[i]!);
        y0 = Math.min(y0, points[i + 1]!);
        y1 = Math.max(y1, points[i + 1]!);
      }
      this.bounds.set([x0, y0, x1, y1], e * 4);
    }
  }

  has(item: Item): boolean {
    return this.boxOf.has(item.id);
  }

  /** The whole picture, or its upper end where the whole could not be read. */
  fit(): void {
    const { width, height } = this.size();
    if (!this.plan) return;
    const whole = Math.min((width - 40) / this.plan.width, (height - 40) / this.plan.height, 1.1);
    this.scale = whole > 0.3 ? whole : Math.min(Math.max((width - 40) / this.plan.width, 0.5), 0.9);
    this.left = (width - this.plan.width * this.scale) / 2;
    this.top = whole > 0.3 ? (height - this.plan.height * this.scale) / 2 : 20;
    if (whole <= 0.3) this.centerStart(width);
    this.refresh();
  }

  private centerStart(width: number): void {
    const first = this.boxes.find((box) => box.item.kind === "input") ?? this.boxes[0];
    if (first) this.left = width / 2 - (first.x + first.width / 2) * this.scale;
  }

  /** On paper nobody can pan: the whole graph at once. */
  private print(): void {
    const before = [this.scale, this.left, this.top] as const;
    this.fitWhole();
    this.draw();
    [this.scale, this.left, this.top] = before;
  }

  whole(): void {
    this.fitWhole();
    this.refresh();
  }

  private fitWhole(): void {
    const { width, height } = this.size();
    if (!this.plan) return;
    this.scale = Math.min((width - 40) / this.plan.width, (height - 40) / this.plan.height, 1.1);
    this.left = (width - this.plan.width * this.scale) / 2;
    this.top = (height - this.plan.height * this.scale) / 2;
  }

  center(item: Item): void {
    const box = this.boxOf.get(item.id);
    const { width, height } = this.size();
    if (!box) return;
    this.scale = Math.max(this.scale, Math.min(0.9, (width - 60) / box.width));
    this.left = width / 2 - (box.x + box.width / 2) * this.scale;
    const tall = box.height * this.scale > height - 80;
    this.top = tall ? 40 - box.y * this.scale : height / 2 - (box.y + box.height / 2) * this.scale;
    this.refresh();
  }

  isInSight(item: Item): boolean {
    const box = this.boxOf.get(item.id);
    const { width, height } = this.size();
    if (!box || this.scale < READABLE) return false;
    const [x, y] = [box.x * this.scale + this.left, box.y * this.scale + this.top];
    return x > 0 && y > 0 && x + Math.min(box.width * this.scale, 80) < width && y + 20 < height;
  }

  zoom(factor: number, x = this.size().width / 2, y = this.size().height / 2): void {
    const least = this.plan ? Math.min(0.3, (0.5 * this.size().height) / this.plan.height) : 0.1;
    const scale = Math.max(least, Math.min(MOST_SCALE, this.scale * factor));
    this.left = x - ((x - this.left) * scale) / this.scale;
    this.top = y - ((y - this.top) * scale) / this.scale;
    this.scale = scale;
    this.clamp();
    this.refresh();
  }

  pan(x: number, y: number): void {
    this.left += x;
    this.top += y;
    this.clamp();
    this.refresh();
  }

  /** Some of the picture stays in sight. */
  private clamp(): void {
    const { width, height } = this.size();
    if (!this.plan) return;
    const edge = 60;
    this.left = Math.min(width - edge, Math.max(edge - this.plan.width * this.scale, this.left));
    this.top = Math.min(height - edge, Math.max(edge - this.plan.height * this.scale, this.top));
  }

  private size(): { width: number; height: number } {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  refresh(): void {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.redraw();
    });
  }

  private redraw(): void {
    if (matchMedia("print").matches) this.print();
    else this.draw();
  }

  // drawing

  draw(): void {
    const began = performance.now();
    const { width, height } = this.size();
    const pixels = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * pixels) || this.canvas.height !== Math.round(height * pixels)) {
      this.canvas.width = Math.round(width * pixels);
      this.canvas.height = Math.round(height * pixels);
    }
    const pen = this.canvas.getContext("2d")!;
    pen.setTransform(pixels, 0, 0, pixels, 0, 0);
    pen.fillStyle = this.colors.paper;
    pen.fillRect(0, 0, width, height);
    if (!this.plan) return;
    pen.setTransform(pixels * this.scale, 0, 0, pixels * this.scale, pixels * this.left, pixels * this.top);
    const sight = {
      x0: -this.left / this.scale,
      y0: -this.top / this.scale,
      x1: (width - this.left) / this.scale,
      y1: (height - this.top) / this.scale,
    };
    const boxes = this.boxes.filter(
      (box) => box.x < sight.x1 && box.x + box.width > sight.x0 && box.y < sight.y1 && box.y + box.height > sight.y0,
    );
    for (const box of boxes) if (box.depth >= 0) this.drawOpen(pen, box);
    this.drawEdges(pen, sight);
    for (const box of boxes) if (box.depth < 0) this.drawClosed(pen, box);
    for (const box of boxes) if (box.depth >= 0) this.drawTitle(pen, box, sight.y0, sight.x0);
    this.drawMapFrame();
    this.frames.count++;
    this.frames.milliseconds += performance.now() - began;
  }

  private drawOpen(pen: CanvasRenderingContext2D, box: Box): void {
    pen.fillStyle = this.colors.boxes[Math.min(box.depth - 1, this.colors.boxes.length - 1)]!;
    round(pen, box, 8);
    pen.fill();
    this.outline(pen, box, this.colors.border);
  }

  /** The titles of open boxes, over the rest: they stay in sight while their box is. */
  private drawTitle(pen: CanvasRenderingContext2D, box: Box, top: number, left: number): void {
    if (this.scale < READABLE / 2) return;
    const size = 12 * Math.max(1, Math.min(2.2, 0.75 / this.scale));
    pen.font = `600 ${size}px ${FONT}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const name = box.item.kind === "node" ? linesOf(box.item, this.tree.data).slice(0, 2).join(" ") : titleOf(box.item);
    const title = `▾ ${name}`;
    const x = Math.max(box.x + 10, Math.min(left + 8 / this.scale, box.x + box.width - title.length * size * 0.6));
    const stuck = top + (15 + (box.depth - 1) * 19) / this.scale; // the title stays in sight, below those around it
    const y = Math.max(box.y + 15, Math.min(stuck, box.y + box.height - 15));
    if (y > box.y + 15) {
      pen.fillStyle = this.colors.boxes[Math.min(box.depth - 1, this.colors.boxes.length - 1)]!;
      pen.fillRect(x - 3, y - size * 0.75, Math.min(pen.measureText(title).width, box.width - 16) + 6, size * 1.5);
    }
    pen.fillStyle = this.colors.faint;
    pen.fillText(title, x, y, box.width - 16);
  }

  private outline(pen: CanvasRenderingContext2D, box: Box, color: string): void {
    const chosen = this.selected === box.item;
    const found = this.found.has(box.item.id);
    pen.strokeStyle = chosen || found ? this.colors.accent : color;
    pen.lineWidth = chosen ? Math.max(2.5, 2 / this.scale) : found ? Math.max(1.8, 1.5 / this.scale) : 1;
    if (found && !chosen) pen.setLineDash([6, 3]);
    pen.stroke();
    pen.setLineDash([]);
  }

  private drawClosed(pen: CanvasRenderingContext2D, box: Box): void {
    const { item } = box;
    const color = this.colorOf(item);
    pen.fillStyle = color.fill;
    if (this.scale < 0.2 && this.selected !== item && !this.found.has(item.id)) {
      pen.fillRect(box.x, box.y, box.width, box.height);
      return;
    }
    round(pen, box, item.kind === "input" || item.kind === "output" ? box.height / 2 : 5);
    pen.fill();
    this.outline(pen, box, this.colors.border);
    if (this.scale < READABLE) return;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const middle = box.x + box.width / 2;
    const lines = linesOf(item, this.tree.data);
    lines.forEach((line, n) => {
      pen.font = n ? `11px ${FONT}` : `600 12px ${FONT}`;
      pen.fillStyle = n ? (color.second ?? this.colors.faint) : color.ink;
      pen.fillText(line, middle, box.y + 14 + n * 15, box.width - 10);
    });
    if (this.tree.opens(item)) {
      pen.textAlign = "right";
      pen.font = `600 12px ${FONT}`;
      pen.fillStyle = color.ink;
      pen.fillText("+", box.x + box.width - 6, box.y + 12);
    }
  }

  private colorOf(item: Item): { fill: string; ink: string; second?: string } {
    const { kinds, ink, dark } = this.colors;
    if (this.overlay) {
      const value = this.overlay.of(item);
      const part = value === undefined ? 0 : this.overlay.part(value);
      if (!value && this.overlay.data.kinds) return { fill: kinds["module"]!, ink, second: this.colors.faint };
      if (value === undefined || part < this.overlay.threshold)
        return { fill: kinds["module"]!, ink, second: this.colors.faint };
      const kind = this.overlay.kind(value);
      const color = kind ? stateColor(kind, dark) : heat(part, dark);
      return { ...color, second: color.ink };
    }
    const kind = item.kind === "node" ? kindOf(item.label) : item.kind;
    return { fill: kinds[kind] ?? kinds["other"]!, ink };
  }

  private drawEdges(pen: CanvasRenderingContext2D, sight: { x0: number; y0: number; x1: number; y1: number }): void {
    const { starts, ends } = this.plan!;
    const seen: number[] = [];
    const marked: number[] = [];
    for (let e = 0; e < starts.length - 1; e++) {
      const b = e * 4;
      if (this.bounds[b]! > sight.x1 || this.bounds[b + 2]! < sight.x0) continue;
      if (this.bounds[b + 1]! > sight.y1 || this.bounds[b + 3]! < sight.y0) continue;
      const own = this.selected && (ends[e * 3 + 1] === this.selected.id || ends[e * 3 + 2] === this.selected.id);
      (own ? marked : seen).push(e);
    }
    const curved = seen.length < MOST_CURVES && this.scale > 0.12;
    const step = Math.ceil(seen.length / MOST_LINES);
    pen.strokeStyle = this.colors.line;
    pen.lineWidth = Math.min(3, Math.max(1, 0.7 / this.scale));
    pen.beginPath();
    for (let n = 0; n < seen.length; n += step) this.trace(pen, seen[n]!, curved);
    pen.stroke();
    if (this.scale > 0.3) this.drawHeads(pen, seen, this.colors.line);
    pen.strokeStyle = this.colors.accent;
    pen.lineWidth = Math.max(2, 1.5 / this.scale);
    pen.beginPath();
    for (const e of marked) this.trace(pen, e, true);
    pen.stroke();
    this.drawHeads(pen, marked, this.colors.accent);
    if (this.scale > 0.7) this.drawLabels(pen, [...seen, ...marked]);
  }

  private trace(pen: CanvasRenderingContext2D, e: number, curved: boolean): void {
    const { points, starts } = this.plan!;
    const [start, end] = [starts[e]!, starts[e + 1]!];
    pen.moveTo(points[start]!, points[start + 1]!);
    for (let i = start + 2; i < end; i += 2) {
      const [x0, y0, x1, y1] = [points[i - 2]!, points[i - 1]!, points[i]!, points[i + 1]!];
      if (curved && x0 !== x1) {
        const bend = y1 > y0 ? (y1 - y0) / 2 : 40;
        pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
      } else pen.lineTo(x1, y1);
    }
  }

  private drawHeads(pen: CanvasRenderingContext2D, edges: number[], color: string): void {
    const { points, starts, ends } = this.plan!;
    pen.fillStyle = color;
    pen.beginPath();
    for (const e of edges) {
      if (ends[e * 3 + 2]! < 0) continue;
      const [x, y] = [points[starts[e + 1]! - 2]!, points[starts[e + 1]! - 1]!];
      pen.moveTo(x, y);
      pen.lineTo(x - 3.5, y - 7);
      pen.lineTo(x + 3.5, y - 7);
    }
    pen.fill();
  }

  /** The type of a value beside its edge, where it leaves a box. */
  private drawLabels(pen: CanvasRenderingContext2D, edges: number[]): void {
    const { points, starts, ends } = this.plan!;
    const said = new Set<string>();
    pen.font = `10px ${FONT}`;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const e of edges) {
      if (ends[e * 3 + 1]! < 0) continue;
      const i = starts[e]!;
      const key = `${ends[e * 3]}:${points[i]},${points[i + 1]}`;
      if (said.has(key)) continue;
      said.add(key);
      const shape = /\[(.+)\]$/.exec(typeOf(ends[e * 3]!, this.tree.data))?.[1];
      if (!shape) continue;
      const text = clip(
        shape
          .split(",")
          .map((dim) => clip(dim, 9))
          .join("×"),
        30,
      );
      pen.fillStyle = this.colors.faint;
      pen.fillText(text, points[i]! + 5, points[i + 1]! + 10);
    }
  }

  // the map

  private drawMap(): void {
    const { map, plan } = this;
    if (!plan) return;
    this.overlay?.rescale(this.boxes.filter((box) => box.depth < 0).map((box) => box.item));
    const pen = map.getContext("2d")!;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = this.colors.paper;
    pen.fillRect(0, 0, map.width, map.height);
    const scale = this.mapScale();
    pen.setTransform(scale, 0, 0, scale, (map.width - plan.width * scale) / 2, (map.height - plan.height * scale) / 2);
    for (const box of this.boxes) {
      pen.fillStyle = box.depth >= 0 ? this.colors.boxes[Math.min(box.depth - 1, 3)]! : this.colorOf(box.item).fill;
      if (box.depth < 0 && box.item.kind === "module")
        pen.fillStyle = this.overlay ? this.colorOf(box.item).fill : this.colors.border;
      pen.fillRect(box.x, box.y, Math.max(box.width, 1 / scale), Math.max(box.height, 1 / scale));
    }
    this.mapPicture.width = map.width;
    this.mapPicture.height = map.height;
    this.mapPicture.getContext("2d")!.drawImage(map, 0, 0);
  }

  private readonly mapPicture = document.createElement("canvas");

  private mapScale(): number {
    return Math.min((this.map.width - 8) / this.plan!.width, (this.map.height - 8) / this.plan!.height);
  }

  private drawMapFrame(): void {
    const { map, plan } = this;
    if (!plan) return;
    const pen = map.getContext("2d")!;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.drawImage(this.mapPicture, 0, 0);
    const scale = this.mapScale();
    const [x0, y0] = [(map.width - plan.width * scale) / 2, (map.height - plan.height * scale) / 2];
    const { width, height } = this.size();
    const [x, y] = [x0 - (this.left / this.scale) * scale, y0 - (this.top / this.scale) * scale];
    pen.strokeStyle = this.colors.accent;
    pen.lineWidth = 2;
    pen.strokeRect(x, y, Math.max(4, (width / this.scale) * scale), Math.max(3, (height / this.scale) * scale));
  }

  /** The boxes at the other ends of a box's edges: below it, or above. */
  neighbors(item: Item, direction: 1 | -1): Item[] {
    const { ends } = this.plan!;
    const [own, other] = direction > 0 ? [1, 2] : [2, 1];
    const found = new Set<Item>();
    for (let e = 0; e < ends.length; e += 3) {
      const end = ends[e + other]!;
      if (ends[e + own] === item.id && end >= 0) found.add(this.tree.items[end]!);
    }
    if (!found.size && item.parent && item.parent !== this.tree.root) return this.neighbors(item.parent, direction);
    return [...found].sort((a, b) => this.boxOf.get(a.id)!.x - this.boxOf.get(b.id)!.x);
  }

  /** The boxes of the same container that overlap in height, from left to right. */
  beside(item: Item): Item[] {
    const own = this.boxOf.get(item.id);
    if (!own || !item.parent) return [];
    const row = item.parent.children.flatMap((child) => this.boxOf.get(child.id) ?? []);
    return row
      .filter((box) => box.y < own.y + own.height && box.y + box.height > own.y)
      .sort((a, b) => a.x - b.x)
      .map((box) => box.item);
  }

  recolor(): void {
    this.drawMap();
    this.refresh();
  }

  private mapTo(event: PointerEvent): void {
    if (!this.plan) return;
    const frame = this.map.getBoundingClientRect();
    const scale = this.mapScale();
    const px =
      ((event.clientX - frame.left) / frame.width) * this.map.width - (this.map.width - this.plan.width * scale) / 2;
    const py =
      ((event.clientY - frame.top) / frame.height) * this.map.height - (this.map.height - this.plan.height * scale) / 2;
    const { width, height } = this.size();
    this.left = width / 2 - (px / scale) * this.scale;
    this.top = height / 2 - (py / scale) * this.scale;
    this.clamp();
    this.refresh();
  }

  // the hand

  /** The innermost box at a point of the canvas. */
  pick(x: number, y: number): Item | null {
    const [px, py] = [(x - this.left) / this.scale, (y - this.top) / this.scale];
    for (let i = this.boxes.length - 1; i >= 0; i--) {
      const box = this.boxes[i]!;
      if (px >= box.x && px <= box.x + box.width && py >= box.y && py <= box.y + box.height) {
        if (box.depth < 0 || py < box.y + 30 / Math.min(1, this.scale * 1.5) || box.item.kind !== "module")
          return box.item;
      }
    }
    return null;
  }

  /** Where the middle of a box's title is on the canvas; for the tests too. */
  positionOf(item: Item): { x: number; y: number } | null {
    const box = this.boxOf.get(item.id);
    if (!box) return null;
    const height = box.depth >= 0 ? 24 : box.height;
    return { x: (box.x + box.width / 2) * this.scale + this.left, y: (box.y + height / 2) * this.scale + this.top };
  }

  private listen(): void {
    const { canvas, map } = this;
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const step = event.deltaMode === 1 ? 16 : 1;
        if (event.ctrlKey || event.metaKey) {
          this.zoom(Math.exp(-event.deltaY * step * 0.01), event.offsetX, event.offsetY);
        } else if (event.shiftKey) this.pan(-event.deltaY * step, 0);
        else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(-event.deltaX * step, 0);
        else this.zoom(Math.exp(-event.deltaY * step * 0.0016), event.offsetX, event.offsetY);
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      if (this.pointers.size === 1) this.moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => this.dragged(event));
    canvas.addEventListener("pointerup", (event) => {
      const single = this.pointers.size === 1;
      this.pointers.delete(event.pointerId);
      if (single && this.moved < 5) this.clicked(event);
    });
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    map.addEventListener("pointerdown", (event) => {
      map.setPointerCapture(event.pointerId);
      this.mapTo(event);
    });
    map.addEventListener("pointermove", (event) => {
      if (event.buttons) this.mapTo(event);
    });
  }

  private dragged(event: PointerEvent): void {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      const item = this.pick(event.offsetX, event.offsetY);
      this.canvas.style.cursor = item ? "pointer" : "grab";
      return;
    }
    const now = { x: event.offsetX, y: event.offsetY };
    const others = [...this.pointers.entries()].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    this.pointers.set(event.pointerId, now);
    this.moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (others[0]) {
      const distance = (at: { x: number; y: number }) => Math.hypot(at.x - others[0]!.x, at.y - others[0]!.y);
      this.zoom(distance(now) / Math.max(1, distance(before)), (now.x + others[0].x) / 2, (now.y + others[0].y) / 2);
    } else if (this.moved >= 5) this.pan(now.x - before.x, now.y - before.y);
  }

  private clicked(event: PointerEvent): void {
    const item = this.pick(event.offsetX, event.offsetY);
    if (item && item.kind === "module") this.events.toggle(item);
    else if (item && event.detail > 1 && this.tree.opens(item)) this.events.toggle(item);
    else this.events.select(item);
  }
}

function round(pen: CanvasRenderingContext2D, box: Box, radius: number): void {
  pen.beginPath();
  pen.roundRect(box.x, box.y, box.width, box.height, radius);
}
