// Tables that sort by the column that is clicked, with their rows to download.

import type { Cell, TableData } from "./data.ts";
import { h } from "./dom.ts";
import { visible } from "./text.ts";

const MOST_ROWS = 500; // more than anybody reads; the download has all

export function sortable(table: TableData, go: (node: number) => void): HTMLElement {
  const body = h("tbody");
  let rows = table.rows;
  const fill = () => {
    body.replaceChildren(
      ...rows
        .slice(0, MOST_ROWS)
        .map((row) =>
          h("tr", {}, ...row.map((cell) => h("td", { class: isNumber(cell) ? "number" : "" }, shown(cell, go)))),
        ),
    );
  };
  const heads = table.columns.map((name, n) => {
    const button = h("button", { type: "button" }, name);
    const numeric = table.rows.some((row) => isNumber(row[n] ?? ""));
    const head = h("th", { scope: "col", "aria-sort": "none", class: numeric ? "number" : "" }, button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows = [...table.rows].sort((a, b) => (down ? -1 : 1) * order(a[n] ?? "", b[n] ?? ""));
      fill();
    });
    return head;
  });
  fill();
  const more =
    table.rows.length > MOST_ROWS ? `the first ${MOST_ROWS} of ${table.rows.length} rows; the download has all` : "";
  return h(
    "section",
    { class: "table" },
    h("h3", {}, table.title, h("button", { type: "button", class: "quiet", onclick: () => download(table) }, "CSV")),
    ...table.note
      .split("\n")
      .filter(Boolean)
      .map((note) => h("p", { class: "note" }, visible(note))),
    h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body)),
    more ? h("p", { class: "note" }, more) : null,
  );
}

function isNumber(cell: Cell): boolean {
  return typeof cell !== "string" && "number" in cell;
}

function shown(cell: Cell, go: (node: number) => void): Node | string {
  if (typeof cell === "string") return visible(cell);
  if ("node" in cell) {
    return cell.node < 0
      ? visible(cell.text)
      : h("button", { type: "button", class: "link", onclick: () => go(cell.node) }, visible(cell.text));
  }
  return visible(cell.text);
}

function order(a: Cell, b: Cell): number {
  if (typeof a !== "string" && typeof b !== "string" && "number" in a && "number" in b) return a.number - b.number;
  return textOf(a).localeCompare(textOf(b), undefined, { numeric: true });
}

function textOf(cell: Cell): string {
  return typeof cell === "string" ? cell : cell.text;
}

/** Rows as CSV. A cell that a spreadsheet would compute is made a text. */
export function csv(table: TableData): string {
  const field = (cell: Cell) => {
    const text = typeof cell !== "string" && "number" in cell ? String(cell.number) : textOf(cell);
    const safe = typeof cell === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  return [table.columns, ...table.rows].map((row) => row.map(field).join(",")).join("\r\n");
}

function download(table: TableData): void {
  const url = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
  h("a", { href: url, download: `${table.title.replace(/\W+/g, "-").toLowerCase()}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
