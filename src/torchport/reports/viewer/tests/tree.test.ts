import assert from "node:assert/strict";
import { test } from "node:test";
import { arrange } from "../source/arrange.ts";
import { blocksOf } from "../source/blocks.ts";
import type { ModelData } from "../source/data.ts";
import { Tree } from "../source/tree.ts";

/** x -> a.p -> a.q -> (If with two branches that read x) -> f(), a function of one node -> y */
function model(): ModelData {
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

test("a module with nothing but a module in it is one box with both names", () => {
  const tree = new Tree(model());
  assert.deepEqual(
    tree.root.children.map((one) => one.label),
    ["x", "a.b", "Relu", "If", "my::F", "y"],
  );
  assert.equal(tree.root.children[1]!.count, 2);
});

test("a module with one node is that node", () => {
  const tree = new Tree(model());
  assert.equal(tree.find(2)!.parent, tree.root);
});

test("branches are in their node, a function's nodes in its call", () => {
  const tree = new Tree(model());
  assert.deepEqual(
    tree.find(3)!.children.map((one) => one.label),
    ["then_branch", "else_branch"],
  );
  assert.equal(tree.find(5)!.parent!.label, "then_branch");
  assert.equal(tree.find(4)!.children.length, 0);
  assert.equal(tree.find(7)!.parent, tree.find(4));
});

test("edges into a closed box end at it, and cross the border of an open one", () => {
  const tree = new Tree(model());
  const closed = blocksOf(tree, new Set());
  assert.equal(closed.inner.length, 0);
  const ends = closed.edges.map((edge) => [edge.from, edge.to].join());
  assert.deepEqual([...ends].sort(), ["0,1", "0,3", "1,2", "1,3", "2,3", "3,4", "4,5"]);
  const open = blocksOf(tree, new Set([tree.root.children[1]!.id]));
  assert.equal(open.inner.length, 1);
  assert.deepEqual([open.inner[0]![1].ins, open.inner[0]![1].outs], [1, 2]);
});

test("all open boxes hold their boxes", () => {
  const tree = new Tree(model());
  for (const item of [...tree.items]) tree.expand(item);
  const plan = arrange(blocksOf(tree, new Set(tree.items.map((item) => item.id))));
  const places = new Map<number, number[]>();
  for (let i = 0; i < plan.boxes.length; i += 6) places.set(plan.boxes[i]!, [...plan.boxes.subarray(i + 1, i + 5)]);
  assert.equal(places.size, tree.items.length - 1);
  for (const [id, [x, y, width, height]] of places) {
    const outer = places.get(tree.items[id]!.parent!.id);
    if (!outer) continue;
    assert.ok(x! >= outer[0]! && y! >= outer[1]!);
    assert.ok(x! + width! <= outer[0]! + outer[2]! + 1e-6 && y! + height! <= outer[1]! + outer[3]! + 1e-6);
  }
});
