import assert from "node:assert/strict";
import { test } from "node:test";
import { between, command } from "../source/cut.ts";
import { model } from "./model.ts";

test("a part is what leads from some tensors to others, through branches too", () => {
  const part = between(model(), new Set([2]), new Set([4]));
  assert.deepEqual(
    [...part.nodes].sort((a, b) => a - b),
    [0, 2, 3],
  );
});

test("a branch needs what its nodes read: the input that it takes from outside is missing", () => {
  assert.deepEqual(between(model(), new Set([1, 2]), new Set([4])).missing, [0]);
  assert.deepEqual(between(model(), new Set(), new Set([4])).missing, []);
});

test("names are quoted for the shell, or there is no command", () => {
  assert.equal(
    command("m.onnx", ["a/b:0"], ["it's"]),
    "torchport cut m.onnx --from a/b:0 --to 'it'\\''s' -o part.onnx",
  );
  assert.equal(command("m.onnx", ["$(rm x)"], []), "torchport cut m.onnx --from '$(rm x)' -o part.onnx");
  assert.equal(command("m.onnx", ["a\u001b[31m"], []), null);
  assert.equal(command("m.onnx", ["a,b"], []), null);
});
