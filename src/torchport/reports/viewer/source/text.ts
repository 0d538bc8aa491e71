// Numbers and names as people read them.

const LETTERS: [number, string][] = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
const BYTES: [number, string][] = [
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];

/** `1234567` is `1.23M`. */
export function human(value: number): string {
  for (const [factor, letter] of LETTERS) {
    if (Math.abs(value) >= factor) return `${Number((value / factor).toPrecision(3))}${letter}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** `3145728` is `3 MiB`. */
export function humanBytes(value: number): string {
  for (const [factor, unit] of BYTES) {
    if (Math.abs(value) >= factor) return `${Number((value / factor).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

export function humanSeconds(value: number): string {
  if (value >= 1) return `${Number(value.toPrecision(3))} s`;
  if (value >= 1e-3) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${Number((value * 1e6).toPrecision(3))} µs`;
}

/** A number of an overlay in its unit. */
export function measured(value: number, unit: string): string {
  if (unit === "s") return humanSeconds(value);
  if (unit === "B") return humanBytes(value);
  if (unit === "count") return human(value);
  if (unit === "") return value >= 1e300 ? "not finite" : value === 0 ? "0" : value.toExponential(1);
  return `${human(value)} ${unit}`;
}

// Characters that move or hide others: directions, zero widths, controls. They are shown by their number.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** A text of the model in one line in which every character can be seen. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A text that fits, its middle left out. */
export function clip(text: string, most: number): string {
  if (text.length <= most) return text;
  const start = Math.ceil((most - 1) / 2);
  return `${text.slice(0, start)}…${text.slice(text.length - (most - 1 - start))}`;
}
