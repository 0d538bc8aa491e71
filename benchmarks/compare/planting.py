"""Make one node of an ONNX model wrong: a changed weight, an attribute, another input."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

Plant = Callable[[ir.Model, ir.Node, random.Random], bool]


def weight(model: ir.Model, node: ir.Node, chance: random.Random) -> bool:
    """One row of a weight of this node a tenth larger; other nodes that share the weight keep theirs."""
    places = [
        i
        for i, v in enumerate(node.inputs)
        if v is not None and v.is_initializer() and v.const_value is not None and v.dtype == ir.DataType.FLOAT
    ]
    if not places:
        return False
    place = chance.choice(places)
    old = node.inputs[place]
    assert old is not None
    array = np.array(old.const_value.numpy())  # type: ignore[union-attr]
    if not array.any():
        return False
    flat = array.reshape(array.shape[0], -1) if array.ndim else array.reshape(1, 1)
    row = int(np.abs(flat).max(axis=1).argmax())
    flat[row] *= 1.5
    new = ir.val(f"{old.name}_planted", const_value=ir.tensor(array, name=f"{old.name}_planted"))
    new.type, new.shape = old.type, old.shape
    model.graph.initializers.add(new)
    node.replace_input_with(place, new)
    return True


def attribute(model: ir.Model, node: ir.Node, chance: random.Random) -> bool:
    """Another value of an attribute that leaves the shapes as they are."""
    changed: dict[str, Any] = {}
    if node.op_type in ("Conv", "MaxPool", "AveragePool"):
        pads = list(node.attributes.get_ints("pads", ()))
        if pads and any(pads):
            half = len(pads) // 2
            changed["pads"] = [p + 1 for p in pads[:half]] + [p - 1 for p in pads[half:]]
    elif node.op_type == "LayerNormalization":
        changed["epsilon"] = 0.5
    elif node.op_type == "Softmax":
        changed["axis"] = -2
    elif node.op_type == "Gemm":
        changed["alpha"] = 1.25
    if not changed or min(changed.get("pads", [0])) < 0:
        return False
    for name, value in changed.items():
        node.attributes[name] = ir.convenience.convert_attribute(name, value)
    return True


def other_input(model: ir.Model, node: ir.Node, chance: random.Random) -> bool:
    """Inputs swapped, or one read from another tensor of the same shape computed before."""
    if node.op_type in ("Sub", "Div") and all(v is not None for v in node.inputs):
        first, second = node.inputs[:2]
        if first.shape == second.shape:  # type: ignore[union-attr]
            node.replace_input_with(0, second)
            node.replace_input_with(1, first)
            return True
    before: list[ir.Value] = []
    for other in model.graph:
        if other is node:
            break
        before += [v for v in other.outputs if v.dtype == ir.DataType.FLOAT]
    places = [i for i, v in enumerate(node.inputs) if v is not None and v.dtype == ir.DataType.FLOAT and v.producer()]
    for place in chance.sample(places, len(places)):
        old = node.inputs[place]
        assert old is not None
        alike = [v for v in before if v is not old and v.shape == old.shape and v not in node.inputs]
        if alike:
            node.replace_input_with(place, chance.choice(alike))
            return True
    return False


KINDS: dict[str, Plant] = {"weight": weight, "attribute": attribute, "input": other_input}


def plant(model: ir.Model, seed: int) -> tuple[str, str]:
    """Make a random node wrong; its name and what was done to it."""
    chance = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    nodes = [n for n in model.graph if n.op_type != "Constant"]
    for node in chance.sample(nodes, len(nodes)):
        if KINDS[kind](model, node, chance):
            return str(node.name), kind
    raise LookupError(f"no node for a fault of kind '{kind}'")
