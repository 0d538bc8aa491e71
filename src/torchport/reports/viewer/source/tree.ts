// What can be seen of a model: modules, nodes, bodies of nodes and functions as a tree, made where it is opened.

import type { ModelData } from "./data.ts";

export type Kind = "module" | "node" | "input" | "output";

/** A box that can be drawn. A module holds others; so does a node with bodies, or one that calls a function. */
export interface Item {
  id: number;
  kind: Kind;
  label: string;
  node: number;
  value: number;
  module: number;
  parent: Item | null;
  children: Item[];
  /** The number of nodes in it. */
  count: number;
  /** The graph of a function that this node calls, until it is opened; -1 if there is none. */
  calls: number;
  scope: Scope;
}

/** One graph at one place: the main graph, a branch, a loop's body, or one call of a function. */
export class Scope {
  readonly producers = new Map<number, Item>();
  constructor(
    readonly graph: number,
    readonly outer: Scope | null,
  ) {}

  /** The box that gives a value, here or in a graph around this one. */
  producer(value: number): Item | undefined {
    return this.producers.get(value) ?? this.outer?.producer(value);
  }
}

const MOST_DEPTH = 200; // of scopes in scopes: a hostile file may have thousands

export class Tree {
  readonly items: Item[] = [];
  readonly root: Item;
  /** The first box of each node. */
  readonly ofNode = new Map<number, Item>();
  /** The first box of each module. */
  readonly ofModule = new Map<number, Item>();
  private readonly owners = new Map<number, number>();
  private readonly graphOf: Int32Array;

  constructor(readonly data: ModelData) {
    this.graphOf = new Int32Array(data.nodes.name.length);
    data.graphs.forEach((graph, number) => {
      this.graphOf.fill(number, graph.first, graph.first + graph.count);
    });
    this.findOwners();
    const scope = new Scope(0, null);
    this.root = this.add("module", data.graphs[0]?.name || "model", null, scope);
    this.fill(this.root, scope, 0);
  }

  /** The graph that is behind a node: a function's, or of a body. */
  private findOwners(): void {
    const { nodes, functions, operators } = this.data;
    for (let node = nodes.name.length - 1; node >= 0; node--) {
      for (const [, graph] of nodes.bodies[node] || []) this.owners.set(graph, node);
      const called = functions[operators[nodes.operator[node] ?? -1] ?? ""];
      if (called !== undefined) this.owners.set(called, node);
    }
  }

  private add(kind: Kind, label: string, parent: Item | null, scope: Scope, node = -1, module = 0, value = -1): Item {
    const item: Item = {
      id: this.items.length,
      kind,
      label,
      node,
      value,
      module,
      parent,
      children: [],
      count: 0,
      calls: -1,
      scope,
    };
    this.items.push(item);
    parent?.children.push(item);
    return item;
  }

  /** Put the boxes of a graph into a container. */
  private fill(container: Item, scope: Scope, base: number): void {
    const graph = this.data.graphs[scope.graph];
    if (!graph) return;
    for (const value of graph.inputs) {
      const item = this.add("input", this.data.values.name[value] ?? "", container, scope, -1, 0, value);
      scope.producers.set(value, item);
    }
    const folders = new Folders(this.data, graph.first, graph.count, base);
    const made = new Map<number, Item>();
    for (let node = graph.first; node < graph.first + graph.count; node++) {
      this.addNode(node, this.folder(folders.of(node), folders, made, container, scope), scope);
    }
    for (const value of graph.outputs) {
      this.add("output", this.data.values.name[value] ?? "", container, scope, -1, 0, value);
    }
  }

  private folder(module: number, folders: Folders, made: Map<number, Item>, container: Item, scope: Scope): Item {
    if (module < 0) return container;
    const known = made.get(module);
    if (known) return known;
    const parent = this.folder(folders.parent(module), folders, made, container, scope);
    const item = this.add("module", folders.label(module), parent, scope, -1, module);
    made.set(module, item);
    if (!this.ofModule.has(module)) this.ofModule.set(module, item);
    return item;
  }

  private addNode(node: number, parent: Item, scope: Scope): void {
    const { nodes, operators, functions } = this.data;
    const operator = operators[nodes.operator[node] ?? -1] ?? "";
    const item = this.add("node", operator, parent, scope, node, nodes.module[node] ?? 0);
    if (!this.ofNode.has(node)) this.ofNode.set(node, item);
    for (const value of nodes.outputs[node] ?? []) scope.producers.set(value, item);
    for (let above: Item | null = parent; above; above = above.parent) above.count++;
    item.calls = functions[operator] ?? -1;
    this.addBodies(item, scope);
  }

  private addBodies(item: Item, scope: Scope): void {
    const bodies = this.data.nodes.bodies[item.node] || [];
    if (depth(scope) > MOST_DEPTH) return;
    for (const [name, graph] of bodies) {
      const inside = new Scope(graph, scope);
      const body = bodies.length > 1 ? this.add("module", name, item, inside) : item;
      this.fill(body, inside, item.module);
    }
  }

  /** Whether there is something in a box. */
  opens(item: Item): boolean {
    return item.children.length > 0 || item.calls >= 0;
  }

  /** Make the boxes in a call of a function, if they are not there yet. */
  expand(item: Item): void {
    if (item.calls < 0 || item.children.length) return;
    const graph = item.calls;
    item.calls = -1;
    this.fill(item, new Scope(graph, null), item.module);
  }

  /** The box of a node; the calls and bodies that it is in are made on the way. */
  find(node: number): Item | undefined {
    const known = this.ofNode.get(node);
    if (known || node < 0 || node >= this.graphOf.length) return known;
    const owner = this.owners.get(this.graphOf[node] ?? -1);
    const holder = owner === undefined ? undefined : this.find(owner);
    if (holder) this.expand(holder);
    return this.ofNode.get(node);
  }
}

function depth(scope: Scope): number {
  let found = 0;
  for (let outer = scope.outer; outer; outer = outer.outer) found++;
  return found;
}

/** Which modules become boxes: not one with a single node, nor one with nothing but another module in it. */
class Folders {
  private readonly counts = new Map<number, number>();
  private readonly parts = new Map<number, Set<number>>();

  constructor(
    private readonly data: ModelData,
    first: number,
    count: number,
    private readonly base: number,
  ) {
    for (let node = first; node < first + count; node++) {
      const module = this.start(data.nodes.module[node] ?? 0);
      for (let above = module; above > 0; above = this.above(above)) {
        this.counts.set(above, (this.counts.get(above) ?? 0) + 1);
      }
    }
    for (let node = first; node < first + count; node++) {
      const module = this.start(data.nodes.module[node] ?? 0);
      let part = -1 - node;
      for (let above = module; above > 0; above = this.above(above)) {
        if ((this.counts.get(above) ?? 0) < 2) continue;
        const parts = this.parts.get(above) ?? new Set<number>();
        this.parts.set(above, parts.add(part));
        part = above;
      }
    }
  }

  /** The module of a node; 0 where it is outside of the module that this graph is in. */
  private start(module: number): number {
    return module === this.base ? 0 : module;
  }

  private above(module: number): number {
    const parent = this.data.modules.parents[module] ?? 0;
    return parent === this.base ? 0 : parent;
  }

  private isBox(module: number): boolean {
    return (this.parts.get(module)?.size ?? 0) > 1;
  }

  private nearest(module: number): number {
    let found = module;
    while (found > 0 && !this.isBox(found)) found = this.above(found);
    return found > 0 ? found : -1;
  }

  of(node: number): number {
    return this.nearest(this.start(this.data.nodes.module[node] ?? 0));
  }

  parent(module: number): number {
    return this.nearest(this.above(module));
  }

  /** The last parts of its path: from the box around it on. */
  label(module: number): string {
    const { labels, source } = this.data.modules;
    const names = [labels[module] ?? ""];
    for (let above = this.above(module); above > 0 && !this.isBox(above); above = this.above(above)) {
      names.unshift(labels[above] ?? "");
    }
    return names.join(source === "names" ? "/" : ".");
  }
}
