// The data of a page as torchport writes it (reports/model_data.py, reports/page.py), and how it is unpacked.

export interface GraphData {
  name: string;
  inputs: number[];
  outputs: number[];
  first: number;
  count: number;
}

export interface WeightData {
  elements: number;
  bytes: number;
  file?: string;
  read: number;
  values?: string;
  statistics?: Record<string, number | string> | null;
  histogram?: { low: number; high: number; counts: number[] } | null;
}

export interface OperatorDoc {
  doc: string;
  since: number;
  deprecated: boolean;
  inputs: { name: string; doc: string }[];
  outputs: { name: string; doc: string }[];
  attributes: Record<string, { doc: string; default: string; required: boolean }>;
}

export interface ModelData {
  /** The size that dynamic dimensions were given where work and memory are counted. */
  assumed: number;
  graphs: GraphData[];
  functions: Record<string, number>;
  modules: { source: string; parents: number[]; labels: string[]; paths: string[] };
  nodes: {
    name: string[];
    operator: number[];
    source: number[];
    torch: number[];
    inputs: number[][];
    outputs: number[][];
    attributes: (Record<string, string> | 0)[];
    bodies: ([string, number][] | 0)[];
    work: (number | null)[];
    moved: (number | null)[];
    edit: (string | 0)[];
    module: number[];
  };
  values: { name: string[]; type: number[] };
  weights: Record<string, WeightData>;
  operators: string[];
  sources: string[];
  torch: string[];
  types: string[];
  lines: Record<string, string>;
  docs: Record<string, OperatorDoc>;
}

export interface Fault {
  severity: "error" | "warning" | "note";
  rule: string;
  message: string;
  next_step: string;
  node: string;
  tensor: string;
  source: string;
}

/** A number for each of some nodes, to color them by. */
export interface OverlayData {
  name: string;
  unit: string;
  /** What a module has of it: the sum over its nodes, or the largest. */
  total: "sum" | "max";
  note: string;
  nodes: number[];
  numbers: number[];
  notes: string[];
  /** Names of the kinds that the numbers 1, 2, ... stand for, where they measure nothing. */
  kinds?: string[];
  /** The note of nodes that stand first in the list. */
  first?: string;
}

/** Rows of a result: the first row names the columns; a number with its text sorts by the number. */
export type Cell = string | { text: string; number: number } | { text: string; node: number };

export interface TableData {
  title: string;
  note: string;
  columns: string[];
  rows: Cell[][];
}

/** Bars, one below the other. */
export interface PlotData {
  title: string;
  unit: string;
  logarithmic: boolean;
  bars: { label: string; number: number; good: boolean }[];
}

export interface PageData {
  schema: number;
  torchport: string;
  title: string;
  verdicts: { state: "good" | "bad" | "none"; text: string }[];
  facts: [string, string, string][];
  plots: PlotData[];
  tables: TableData[];
  faults: Fault[];
  model: ModelData;
  /** The page comes from `torchport view`, which can be asked. */
  served?: boolean;
  overlays: OverlayData[];
}

export const SCHEMA = 1;

/** Unpack base64 of gzip of JSON. The element holds nothing that HTML could read otherwise. */
export async function unpack(base64: string): Promise<PageData> {
  const binary = atob(base64.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text()) as PageData;
  if (data.schema !== SCHEMA) throw new Error(`this page reads data of version ${SCHEMA}, not ${data.schema}`);
  return data;
}
