import type { ModelData } from "../source/data.ts";

/** x -> a.p -> a.q -> (If with two branches that read x) -> f(), a function of one node -> y */
export function model(): ModelData {
  const names = ["p", "q", "r", "branch", "call", "then", "else", "body"];
  return {
    assumed: 64,
    graphs: [
      { name: "main", inputs: [0], outputs: [5], first: 0, count: 5 },
      { name: "then", inputs: [], outputs: [6], first: 5, count: 1 },
      { name: "else", inputs: [], outputs: [7], first: 6, count: 1 },
      { name: "f", inputs: [8], outputs: [9], first: 7, count: 1 },
    ],
    functions: { "my::F": 3 },
    modules: { source: "origins", parents: [-1, 0, 1, 0], labels: ["", "a", "b", "c"], paths: ["", "a", "a.b", "c"] },
    nodes: {
      name: names,
      operator: [0, 0, 0, 1, 2, 0, 0, 0],
      source: names.map(() => 0),
      torch: names.map(() => 0),
      inputs: [[0], [1], [2], [3], [4], [0], [1], [8]],
      outputs: [[1], [2], [3], [4], [5], [6], [7], [9]],
      attributes: names.map(() => 0 as const),
      bodies: [
        0,
        0,
        0,
        [
          ["then_branch", 1],
          ["else_branch", 2],
        ],
        0,
        0,
        0,
        0,
      ],
      work: names.map(() => 0),
      moved: names.map(() => 0),
      edit: names.map(() => 0 as const),
      module: [2, 2, 3, 0, 0, 0, 0, 0],
    },
    values: { name: ["x", "1", "2", "3", "4", "y", "6", "7", "8", "9"], type: Array<number>(10).fill(0) },
    weights: {},
    operators: ["Relu", "If", "my::F"],
    sources: [""],
    torch: [""],
    types: ["float32[2]"],
    lines: {},
    docs: {},
  };
}
