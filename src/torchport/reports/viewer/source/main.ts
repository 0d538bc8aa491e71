// The page: puts the parts together, and keeps what is open, chosen and searched for.

import { arrange, type Block, type Plan } from "./arrange.ts";
import { blocksOf } from "./blocks.ts";
import { Cut } from "./cut.ts";
import { type PageData, unpack } from "./data.ts";
import { h } from "./dom.ts";
import { builtIn, Overlay } from "./overlay.ts";
import { type Actions, Panel, Uses } from "./panel.ts";
import { Index } from "./search.ts";
import { clip, visible } from "./text.ts";
import { type Item, Tree } from "./tree.ts";
import { View } from "./view.ts";

declare const LAYOUT_WORKER: string;

const START_BOXES = 60; // modules are opened at the start while there are no more boxes than this
const HITS = 60;

/** Lays blocks out beside the page; in the page where the browser lets no worker start. */
class Layout {
  private readonly worker: Worker | null;
  private readonly waiting = new Map<number, (plan: Plan) => void>();
  private count = 0;

  constructor() {
    this.worker = this.start();
  }

  private start(): Worker | null {
    try {
      const worker = new Worker(URL.createObjectURL(new Blob([LAYOUT_WORKER], { type: "text/javascript" })));
      worker.onmessage = (event: MessageEvent<{ number: number; plan: Plan }>) => {
        this.waiting.get(event.data.number)?.(event.data.plan);
        this.waiting.delete(event.data.number);
      };
      return worker;
    } catch (error) {
      console.info("the layout runs in the page:", error);
      return null;
    }
  }

  get isBusy(): boolean {
    return this.waiting.size > 0;
  }

  plan(block: Block): Promise<Plan> {
    const { worker } = this;
    if (!worker) return Promise.resolve(arrange(block));
    return new Promise((resolve) => {
      this.waiting.set(++this.count, resolve);
      worker.postMessage({ number: this.count, block });
    });
  }
}

class Page implements Actions {
  private readonly tree: Tree;
  private readonly index: Index;
  private readonly overlays: Overlay[];
  private readonly panel: Panel;
  private readonly cut: Cut;
  private readonly layout = new Layout();
  private readonly open = new Set<number>();
  private readonly view: View;
  private readonly side = h("div", { class: "side-content", tabindex: 0, "aria-label": "What is known of it" });
  private readonly said = h("div", { class: "said", "aria-live": "polite" });
  private readonly tabs: Record<"summary" | "node" | "outline", HTMLButtonElement>;
  private readonly results = h("ul", {
    class: "results",
    id: "results",
    role: "listbox",
    "aria-label": "Search results",
    hidden: true,
  });
  private readonly input = h("input", {
    type: "search",
    placeholder: "Search: name, operator, module, tensor, line  ( / )",
    "aria-label": "Search nodes",
    "aria-controls": "results",
    autocomplete: "off",
    spellcheck: "false",
  });
  private readonly menu = h("select", { "aria-label": "Color by" }, h("option", { value: "" }, "Color: operator"));
  private readonly legend = h("div", { class: "legend", hidden: true });
  private round = 0;

  constructor(private readonly page: PageData) {
    this.tree = new Tree(page.model);
    this.index = new Index(page.model);
    this.overlays = [...page.overlays, ...builtIn(page.model)].map((data) => new Overlay(data));
    this.cut = new Cut(page.model, page.title, page.served === true, (nodes) => {
      this.view.found = new Set([...nodes].map((node) => this.tree.ofNode.get(node)?.id ?? -1));
      this.view.refresh();
    });
    this.panel = new Panel(page, this.tree, new Uses(page.model, page.faults), this.overlays, this, this.cut);
    const canvas = h("canvas", {
      tabindex: 0,
      role: "application",
      "aria-label":
        "Graph. Arrow keys walk along its edges, Enter opens and closes a box, plus and minus zoom. The outline has the same as a list.",
    });
    const map = h("canvas", { class: "map", width: 150, height: 200, "aria-hidden": "true" });
    this.view = new View(canvas, map, this.tree, {
      select: (item) => this.select(item),
      toggle: (item) => void this.toggle(item),
    });
    const tab = (name: "summary" | "node" | "outline", label: string) =>
      h("button", { type: "button", role: "tab", "aria-selected": "false", onclick: () => this.showTab(name) }, label);
    this.tabs = {
      summary: tab("summary", "Summary"),
      node: tab("node", "Selected"),
      outline: tab("outline", "Outline"),
    };
    this.build(canvas, map);
    this.listen(canvas);
  }

  private build(canvas: HTMLElement, map: HTMLElement): void {
    const button = (text: string, title: string, act: () => void) =>
      h("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    const bar = h(
      "header",
      { class: "bar" },
      h("h1", { title: visible(this.page.title) }, clip(visible(this.page.title), 60)),
      h("div", { class: "search" }, this.input, this.results),
      this.overlayMenu(),
      h(
        "div",
        { class: "buttons", role: "group", "aria-label": "View" },
        button("−", "Zoom out (-)", () => this.view.zoom(1 / 1.4)),
        button("+", "Zoom in (+)", () => this.view.zoom(1.4)),
        button("Fit", "Show the whole graph (0)", () => this.view.whole()),
        button("Open all", "Open every module (e)", () => void this.openAll()),
        button("Close all", "Close every module (c)", () => void this.closeAll()),
      ),
    );
    const graph = h("main", { class: "graph" }, canvas, map, this.legend, this.cut.element, this.said);
    const widen = h(
      "button",
      { type: "button", class: "widen", title: "Wider or narrower", "aria-label": "Wider or narrower" },
      "⇔",
    );
    widen.addEventListener("click", () => document.body.classList.toggle("wide"));
    const tabs = h(
      "div",
      { class: "tabs", role: "tablist" },
      this.tabs.summary,
      this.tabs.node,
      this.tabs.outline,
      widen,
    );
    document.body.replaceChildren(bar, graph, h("aside", { class: "side" }, tabs, this.side));
    document.title = visible(this.page.title);
  }

  private overlayMenu(): HTMLElement {
    const { menu } = this;
    this.overlays.forEach((overlay, n) => {
      if (overlay.largest > 0) menu.append(h("option", { value: n }, `Color: ${overlay.data.name}`));
    });
    menu.addEventListener("change", () =>
      this.setOverlay(menu.value === "" ? null : (this.overlays[Number(menu.value)] ?? null)),
    );
    return menu;
  }

  private setOverlay(overlay: Overlay | null): void {
    this.view.overlay = overlay;
    this.view.recolor();
    this.legend.hidden = !overlay;
    if (!overlay) return;
    const { kinds } = overlay.data;
    const list = overlay.worst(kinds ? 200 : 10).map((node) => {
      const name = this.page.model.nodes.name[node] ?? "";
      const value = h("small", {}, overlay.text(overlay.numbers.get(node) ?? 0));
      const mark = overlay.isFirst(node) ? h("small", {}, visible(overlay.notes.get(node) ?? "")) : null;
      return h("li", {}, h("div", {}, this.panel.nodeLink(node, clip(visible(name), 26)), mark, value));
    });
    this.legend.replaceChildren(
      h("strong", {}, overlay.data.name),
      ...(kinds ? this.kinds(overlay) : this.scale(overlay)),
      overlay.data.note ? h("p", { class: "note" }, visible(overlay.data.note)) : "",
      h("ol", {}, ...list),
    );
  }

  private scale(overlay: Overlay): HTMLElement[] {
    const slider = h("input", {
      type: "range",
      min: 0,
      max: 1,
      step: 0.01,
      value: overlay.threshold,
      "aria-label": "Threshold",
    });
    slider.addEventListener("input", () => {
      overlay.threshold = Number(slider.value);
      this.view.recolor();
    });
    const ends = [h("span", {}, "0"), h("i"), h("span", {}, overlay.text(overlay.most))];
    return [h("div", { class: "ramp" }, ...ends), h("label", {}, "only above ", slider)];
  }

  private kinds(overlay: Overlay): HTMLElement[] {
    return overlay.counts().map(([kind, count]) => h("div", { class: `kind-of ${kind}` }, `${count} ${kind}`));
  }

  // what is open

  async start(): Promise<void> {
    this.openSome();
    await this.arrange(null);
    this.showTab("summary");
    const changes = this.overlays.findIndex((overlay) => overlay.data.kinds && overlay.largest > 0);
    if (changes >= 0) {
      this.menu.value = String(changes);
      this.setOverlay(this.overlays[changes]!);
    }
    await this.followLink();
  }

  /** Open modules from the outside in while the picture stays small. */
  private openSome(): void {
    let shown = this.tree.root.children.length;
    let level = [...this.tree.root.children];
    while (level.length) {
      const next: Item[] = [];
      for (const item of level.sort((a, b) => a.count - b.count)) {
        if (item.kind !== "module" || shown + item.children.length > START_BOXES) continue;
        this.open.add(item.id);
        shown += item.children.length;
        next.push(...item.children);
      }
      level = next;
    }
  }

  private async arrange(keep: Item | null): Promise<void> {
    const round = ++this.round;
    const plan = await this.layout.plan(blocksOf(this.tree, this.open));
    if (round === this.round) this.view.show(plan, keep);
  }

  async toggle(item: Item): Promise<void> {
    if (!this.tree.opens(item)) return;
    this.tree.expand(item);
    if (!this.open.delete(item.id)) this.open.add(item.id);
    this.select(item, { center: false });
    await this.arrange(item);
    this.say(`${visible(item.label)} is ${this.open.has(item.id) ? "open" : "closed"}`);
  }

  private async openAll(): Promise<void> {
    for (const item of this.tree.items) if (item.children.length && item !== this.tree.root) this.open.add(item.id);
    await this.arrange(this.view.selected);
  }

  private async closeAll(): Promise<void> {
    this.open.clear();
    await this.arrange(null);
  }

  /** Open what an item is in. */
  private async reveal(item: Item): Promise<void> {
    let changed = false;
    for (let above = item.parent; above && above !== this.tree.root; above = above.parent) {
      if (this.open.has(above.id)) continue;
      this.open.add(above.id);
      changed = true;
    }
    if (changed || !this.view.has(item)) await this.arrange(this.view.selected);
  }

  // what is chosen

  go(node: number): void {
    const item = this.tree.find(node);
    if (item) void this.show(item);
  }

  goModule(module: number): void {
    const { parents } = this.page.model.modules;
    for (let above = module; above > 0; above = parents[above] ?? 0) {
      const item = this.tree.ofModule.get(above);
      if (item) return void this.show(item);
    }
  }

  private async show(item: Item): Promise<void> {
    await this.reveal(item);
    this.select(item, { center: true });
  }

  private select(item: Item | null, { center = false, link = true } = {}): void {
    this.view.selected = item;
    if (item) {
      this.showTab("node");
      if (center || !this.view.isInSight(item)) this.view.center(item);
      this.say(`${item.kind} ${visible(item.label)}`);
      const hash = this.link(item);
      if (link && location.hash !== hash) history.pushState(null, "", hash);
    } else this.showTab("summary");
    this.view.refresh();
  }

  private say(text: string): void {
    this.said.textContent = text;
  }

  // links: #node=NAME, #node=NAME&number=N where a name is not the only one, #module=PATH, #value=NAME

  link(item: Item): string {
    const { nodes, modules, values } = this.page.model;
    if (item.kind === "node") return `#node=${encodeURIComponent(nodes.name[item.node] ?? "")}&number=${item.node}`;
    if (item.kind === "module") return `#module=${encodeURIComponent(modules.paths[item.module] || item.label)}`;
    return `#${item.kind}=${encodeURIComponent(values.name[item.value] ?? "")}`;
  }

  private async followLink(): Promise<void> {
    const given = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
    const item = this.linked(given);
    if (!item) return void (location.hash ? undefined : this.select(null, { link: false }));
    await this.reveal(item);
    this.select(item, { center: true, link: false });
  }

  private linked(given: URLSearchParams): Item | undefined {
    const { nodes, modules, values } = this.page.model;
    const name = given.get("node");
    if (name !== null) {
      const number = Number(given.get("number") ?? -1);
      return this.tree.find(nodes.name[number] === name ? number : nodes.name.indexOf(name));
    }
    const path = given.get("module");
    if (path !== null) return this.tree.ofModule.get(modules.paths.indexOf(path));
    for (const kind of ["input", "output"]) {
      const value = given.get(kind);
      if (value !== null) {
        return this.tree.root.children.find((item) => item.kind === kind && values.name[item.value] === value);
      }
    }
    return undefined;
  }

  // the side

  private showTab(name: "summary" | "node" | "outline"): void {
    for (const [key, tab] of Object.entries(this.tabs)) tab.setAttribute("aria-selected", String(key === name));
    const { selected } = this.view;
    if (name === "summary") this.side.replaceChildren(this.panel.summary());
    else if (name === "outline") this.side.replaceChildren(this.outline(this.tree.root));
    else this.side.replaceChildren(selected ? this.panel.item(selected) : h("p", {}, "Choose a box of the graph."));
    this.side.scrollTop = 0;
  }

  /** The graph as a list, made as it is unfolded: for the keyboard and for screen readers. */
  private outline(item: Item): HTMLElement {
    const list = h("ul", { class: "outline" });
    for (const child of item.children.slice(0, 2000)) {
      const name =
        child.kind === "node" ? `${child.label} ${this.page.model.nodes.name[child.node] ?? ""}` : child.label;
      const button = h(
        "button",
        { type: "button", class: "link", onclick: () => void this.show(child) },
        clip(visible(name), 70),
      );
      const count = child.count ? h("small", {}, ` ${child.count} nodes`) : null;
      if (!child.children.length) list.append(h("li", {}, button));
      else {
        const details = h("details", {}, h("summary", {}, button, count));
        details.addEventListener("toggle", () => {
          if (details.open && details.children.length === 1) details.append(this.outline(child));
        });
        list.append(h("li", {}, details));
      }
    }
    return list;
  }

  // search

  private search(): void {
    const hits = this.index.find(this.input.value);
    this.view.found = new Set(hits.map((hit) => this.tree.ofNode.get(hit.node)?.id ?? -1));
    this.view.refresh();
    this.results.hidden = !this.input.value.trim();
    const items = hits.slice(0, HITS).map((hit) => {
      const name = `${this.index.operator(hit.node)} ${this.page.model.nodes.name[hit.node] ?? ""}`;
      const shown = hit.field === "name" || hit.field === "operator" ? "" : `${hit.field}: ${hit.text}`;
      const button = h("button", { type: "button", onclick: () => this.go(hit.node) }, clip(visible(name), 64));
      if (shown) button.append(h("small", {}, clip(visible(shown), 80)));
      return h("li", { role: "option" }, button);
    });
    const more = hits.length > HITS ? [h("li", { class: "note" }, `and ${hits.length - HITS} more`)] : [];
    const none = hits.length ? [] : [h("li", { class: "note" }, "nothing fits")];
    this.results.replaceChildren(...items, ...more, ...none);
    this.say(`${hits.length} found`);
  }

  private listen(canvas: HTMLElement): void {
    addEventListener("hashchange", () => void this.followLink());
    addEventListener("popstate", () => void this.followLink());
    this.input.addEventListener("input", () => this.search());
    this.input.addEventListener("focus", () => this.search());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.results.querySelector("button")?.click();
      if (event.key === "Enter" || event.key === "Escape") this.closeSearch(canvas);
      if (event.key === "ArrowDown") this.results.querySelector("button")?.focus();
    });
    this.results.addEventListener("keydown", (event) => this.walkResults(event, canvas));
    this.results.addEventListener("click", () => {
      this.results.hidden = true;
    });
    addEventListener("pointerdown", (event) => {
      if (!(event.target as Element).closest?.(".search")) this.results.hidden = true;
    });
    addEventListener("keydown", (event) => this.key(event));
  }

  private closeSearch(canvas: HTMLElement): void {
    this.results.hidden = true;
    canvas.focus();
  }

  private walkResults(event: KeyboardEvent, canvas: HTMLElement): void {
    const buttons = [...this.results.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    if (event.key === "ArrowDown") buttons[at + 1]?.focus();
    else if (event.key === "ArrowUp") (buttons[at - 1] ?? this.input).focus();
    else if (event.key === "Escape") this.closeSearch(canvas);
    else return;
    event.preventDefault();
  }

  // the keyboard

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.matches("input, select, textarea")) return;
    if (event.key === "/") this.input.select();
    else if (event.key === "Escape") this.select(null);
    else if (event.key === "+" || event.key === "=") this.view.zoom(1.3);
    else if (event.key === "-") this.view.zoom(1 / 1.3);
    else if (event.key === "0") this.view.whole();
    else if (event.key === "e") void this.openAll();
    else if (event.key === "c") void this.closeAll();
    else if (!target.matches("canvas, body")) return;
    else if (event.key === "Enter" && this.view.selected) void this.toggle(this.view.selected);
    else if (event.key === "ArrowDown") this.walk(1);
    else if (event.key === "ArrowUp") this.walk(-1);
    else if (event.key === "ArrowRight") this.aside(1);
    else if (event.key === "ArrowLeft") this.aside(-1);
    else return;
    event.preventDefault();
  }

  /** Along an edge, to what is below or above. */
  private walk(direction: 1 | -1): void {
    const { selected } = this.view;
    const next = selected ? this.view.neighbors(selected, direction)[0] : this.tree.root.children[0];
    if (next) this.select(next);
  }

  /** To the next box that hangs on the same one. */
  private aside(step: 1 | -1): void {
    const { selected } = this.view;
    if (!selected) return;
    const beside = this.view.beside(selected);
    const next = beside[beside.indexOf(selected) + step];
    if (next) this.select(next);
  }

  /** For the tests: how the page is doing. */
  get inner(): { tree: Tree; view: View; open: Set<number>; isBusy: () => boolean } {
    return { tree: this.tree, view: this.view, open: this.open, isBusy: () => this.layout.isBusy };
  }
}

async function main(): Promise<void> {
  const holder = document.getElementById("model-data");
  const data = await unpack(holder?.textContent ?? "");
  holder?.remove();
  const page = new Page(data);
  Object.defineProperty(window, "torchportPage", { value: page.inner });
  await page.start();
  document.documentElement.dataset["ready"] = String(Math.round(performance.now()));
}

main().catch((error: unknown) => {
  const text = error instanceof Error ? error.message : String(error);
  document.body.replaceChildren(
    h("p", { class: "failed" }, `The page cannot be shown: ${text}. Open it in a browser of 2023 or later.`),
  );
  document.documentElement.dataset["ready"] = "failed";
});
