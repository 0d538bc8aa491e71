import assert from "node:assert/strict";
import { test } from "node:test";
import { length } from "../source/plot.ts";
import { csv } from "../source/table.ts";
import { clip, human, humanBytes, humanSeconds, visible } from "../source/text.ts";

test("characters that hide or turn others are shown by their number", () => {
  assert.equal(visible("a\u202eb\u0000c\u200b"), "a\\u202eb\\u0000c\\u200b");
  assert.equal(visible("<script>é卷积"), "<script>é卷积");
});

test("numbers have their units", () => {
  assert.deepEqual(
    [human(1234567), human(999), humanBytes(3 * 2 ** 20), humanSeconds(0.00123)],
    ["1.23M", "999", "3 MiB", "1.23 ms"],
  );
});

test("a long text keeps its ends", () => {
  assert.equal(clip("abcdefghij", 5), "ab…ij");
});

test("a cell that a spreadsheet would compute is a text in the CSV", () => {
  const table = { title: "t", note: "", columns: ["a"], rows: [["=1+1"], [{ text: "x", number: -2 }], ['say "hi"']] };
  assert.equal(csv(table), '"a"\r\n"\'=1+1"\r\n"-2"\r\n"say ""hi"""');
});

test("bars are as long as their numbers, by the logarithm where asked", () => {
  assert.equal(length(5, [5, 10], false), 0.5);
  assert.ok(length(1e-7, [1e-7, 1e-3], true) > 0);
  assert.ok(Math.abs(length(1e-5, [1e-7, 1e-3], true) - 0.54) < 0.01);
  assert.deepEqual([length(0, [1], true), length(1e300, [1], true), length(1, [], false)], [0, 1, 0]);
});
