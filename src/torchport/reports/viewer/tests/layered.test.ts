import assert from "node:assert/strict";
import { test } from "node:test";
import { draw, inversions, isotonic, type Level } from "../source/layered.ts";

function level(count: number, edges: [number, number][]): Level {
  return {
    widths: Array<number>(count).fill(80),
    heights: Array<number>(count).fill(30),
    edges,
    leaves: edges.map(() => 0),
    arrives: edges.map(() => 0),
    tops: count,
    bottoms: count,
  };
}

test("a chain stands straight, each box below the one before", () => {
  const { x, y } = draw(
    level(4, [
      [0, 1],
      [1, 2],
      [2, 3],
    ]),
  );
  assert.deepEqual(new Set(x).size, 1);
  assert.deepEqual(
    [...y],
    [...y].sort((a, b) => a - b),
  );
  assert.equal(new Set(y).size, 4);
});

test("boxes of one layer do not overlap", () => {
  const edges: [number, number][] = Array.from({ length: 30 }, (_, n) => [0, n + 1]);
  const { x } = draw(level(31, edges));
  const places = [...x].slice(1).sort((a, b) => a - b);
  for (let n = 1; n < places.length; n++) assert.ok(places[n]! - places[n - 1]! >= 80);
});

test("a cycle is drawn, with each of its edges", () => {
  const { y, lines } = draw(
    level(3, [
      [0, 1],
      [1, 2],
      [2, 0],
    ]),
  );
  assert.equal(lines.length, 3);
  assert.ok(y[0]! < y[1]! && y[1]! < y[2]!);
});

test("an edge over several layers goes around the boxes between", () => {
  const drawing = draw(
    level(3, [
      [0, 1],
      [1, 2],
      [0, 2],
    ]),
  );
  const line = drawing.lines[2]!;
  assert.ok(line.length > 4);
  assert.ok(Math.abs(line[2]! - drawing.x[1]!) >= 40);
});

test("two chains that cross are untangled", () => {
  const { x } = draw(
    level(4, [
      [0, 3],
      [1, 2],
    ]),
  );
  assert.ok((x[0]! - x[1]!) * (x[3]! - x[2]!) > 0);
});

test("no boxes are an empty drawing", () => {
  assert.equal(draw(level(0, [])).lines.length, 0);
});

test("5,000 boxes are laid out in seconds", () => {
  const edges: [number, number][] = [];
  for (let n = 1; n < 5000; n++) edges.push([n - 1, n]);
  for (let n = 10; n < 5000; n += 10) edges.push([n - 10, n]);
  const began = performance.now();
  draw(level(5000, edges));
  assert.ok(performance.now() - began < 3000);
});

test("the isotonic numbers rise and are the nearest", () => {
  assert.deepEqual(isotonic([1, 3, 2, 4], [1, 1, 1, 1]), [1, 2.5, 2.5, 4]);
  assert.deepEqual(isotonic([3, 0], [1, 3]), [0.75, 0.75]);
});

test("inversions are counted", () => {
  assert.equal(inversions([2, 0, 1], 3), 2);
  assert.equal(inversions([0, 0, 1], 3), 0);
});
