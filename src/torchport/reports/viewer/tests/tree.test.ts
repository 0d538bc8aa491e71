import assert from "node:assert/strict";
import { test } from "node:test";
import { arrange } from "../source/arrange.ts";
import { blocksOf } from "../source/blocks.ts";
import { Tree } from "../source/tree.ts";
import { model } from "./model.ts";

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
