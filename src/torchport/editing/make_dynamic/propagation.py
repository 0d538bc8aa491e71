"""Propagate a dimension through a graph at two sizes at once, and fix what fits the old size only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TypeProto

from torchport.editing.make_dynamic.value_pair import (
    Fact,
    Picks,
    Probe,
    all_sure,
    constant_fact,
    filled,
    folded_as,
    is_static,
    likened,
    new_side,
    old_side,
    settled_type,
    tensor_type,
)
from torchport.errors import InputError
from torchport.irtools.inference import UNINFERABLE, Inference
from torchport.irtools.metadata import origin_of
from torchport.irtools.names import FreshNames, where
from torchport.irtools.traversal import subgraphs
from torchport.tensors import Array

Mender = Callable[["Walk", ir.Node, list["Fact | None"]], None]


class Walk:
    """What is known of every value at both sizes.

    Attributes:
        facts: by value.
        mended: the nodes that were changed.
        replaced: the values they read before.
    """

    def __init__(
        self, model: ir.Model, probe: Probe, menders: Mapping[str, Mender], known: Inference, picks: Picks | None = None
    ) -> None:
        self.model = model
        self.probe = probe
        self.menders = menders
        self.picks = picks
        self.facts: dict[ir.Value, Fact] = {}
        self.mended: set[ir.Node] = set()
        self.replaced: list[ir.Value] = []
        self.opset = model.opset_imports.get("", 0)
        self._infer = known
        self._attributes: dict[str, onnx.AttributeProto] | None = None  # those of the call, inside a function

    @property
    def mending(self) -> bool:
        return self.picks is not None

    def run(self) -> None:
        """Raises `InputError` at the first node that does not follow."""
        for value in self.model.graph.inputs:
            if value not in self.facts and not value.is_initializer():
                self.facts[value] = self._begin(value)
        self.graph(self.model.graph)

    def _begin(self, value: ir.Value) -> Fact:
        old, new = settled_type(value, self.probe.old), settled_type(value, self.probe.new)
        for kind, size in ((old, self.probe.was), (new, self.probe.now)):
            for axis, dim in enumerate(kind.tensor_type.shape.dim):
                if (value.name, axis) in self.probe.places:
                    dim.dim_value = size
                elif not dim.HasField("dim_value") and f"{value.name}:{axis}" in self.probe.others:
                    dim.dim_value = self.probe.others[f"{value.name}:{axis}"]
        return Fact(old, new)

    def graph(self, graph: ir.Graph | ir.Function) -> None:
        for node in list(graph):
            self.visit(node)

    def visit(self, node: ir.Node) -> None:
        from torchport.editing.make_dynamic import control_flow

        given = [None if v is None else self.fact(v) for v in node.inputs]
        if node.op_identifier() in self.model.functions:
            control_flow.call(self, node)
        elif subgraphs(node):
            control_flow.control_flow(self, node)
        elif not any(f is not None and f.changed for f in given):
            self._unchanged(node, given)
        elif not self._folded(node, given):
            self._changed(node, given)

    def fact(self, value: ir.Value) -> Fact:
        found = self.facts.get(value)
        if found is None:
            if value.const_value is not None and value.producer() is None:
                found = constant_fact(value.const_value)
            else:
                found = Fact(settled_type(value, self.probe.old), settled_type(value, self.probe.new))
            self.facts[value] = found
        return found

    # --- nodes ---

    def proto(self, node: ir.Node) -> onnx.NodeProto:
        """The node's message, attributes that are a function's parameters replaced by those of the call."""
        message = ir.serde.serialize_node(node)
        for attribute in [a for a in message.attribute if a.ref_attr_name]:
            given = (self._attributes or {}).get(attribute.ref_attr_name)
            name = attribute.name
            message.attribute.remove(attribute)
            if given is not None:
                message.attribute.add().CopyFrom(given)
                message.attribute[-1].name = name
        return message

    def attribute(self, node: ir.Node, name: str, default: Any) -> Any:
        found = node.attributes.get(name)
        if found is None:
            return default
        if found.is_ref():
            given = (self._attributes or {}).get(str(found.ref_attr_name))
            return default if given is None else onnx.helper.get_attribute_value(given)
        return found.value

    def inside(self, attributes: dict[str, onnx.AttributeProto] | None) -> dict[str, onnx.AttributeProto] | None:
        """Enter a function's body with the attributes of its call; gives those from before, to come back with."""
        before, self._attributes = self._attributes, attributes
        return before

    def _unchanged(self, node: ir.Node, given: list[Fact | None]) -> None:
        data = None
        if node.op_type == "Constant" and node.domain == "" and "value" in node.attributes:
            self.facts[node.outputs[0]] = constant_fact(node.attributes["value"].as_tensor())
            return
        if node.op_type in ("Shape", "Size") and self._folded(node, given):
            return
        if all(f is None or f.old_data is not None for f in given) and node.domain == "":
            data = self._infer.data(node, self.proto(node), old_side(given)[1])
        if data is not None and len(data) == len(node.outputs):
            self._take_data(node, data, data, sure=all_sure(given))
            return
        stated = [settled_type(v, self.probe.old) for v in node.outputs]
        if not all(is_static(kind) for kind in stated):
            stated = self._types(node, *old_side(given), stated)
        for value, kind in zip(node.outputs, stated, strict=True):
            self.facts[value] = Fact(kind, kind)

    def _folded(self, node: ir.Node, given: list[Fact | None]) -> bool:
        """Shapes, and sums made of them, are known as numbers at both sizes."""
        first = given[0] if given else None
        if node.domain == "" and node.op_type in ("Shape", "Size") and first is not None:
            was, now = first.was, first.now
            if was is None or now is None or None in was or None in now:
                return False
            pair = [_measured(self, node, dims) for dims in (was, now)]
            self._take_data(node, [pair[0]], [pair[1]], sure=not self.probe.others)
            return True
        if not all(f is None or (f.old_data is not None and f.new_data is not None and not f.held) for f in given):
            return False
        proto = self.proto(node)
        old = self._infer.data(node, proto, old_side(given)[1])
        new = None if old is None else self._infer.data(node, proto, new_side(given)[1])
        if old is None or new is None or len(old) != len(node.outputs):
            return False
        self._take_data(node, old, new, sure=all_sure(given))
        return True

    def _take_data(self, node: ir.Node, old: list[Array], new: list[Array], *, sure: bool) -> None:
        for value, a, b in zip(node.outputs, old, new, strict=True):
            same = a.shape == b.shape
            kinds = [tensor_type(int(ir.DataType.from_numpy(v.dtype)), v.shape) for v in (a, b)]
            self.facts[value] = Fact(kinds[0], kinds[1], a, b, sure) if same else Fact(kinds[0], kinds[1])

    def _changed(self, node: ir.Node, given: list[Fact | None]) -> None:
        mender = self.menders.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if mender is not None:
            mender(self, node, given)
            if all(v in self.facts for v in node.outputs):
                return
            given = [None if v is None else self.fact(v) for v in node.inputs]
        stated = [settled_type(v, self.probe.old) for v in node.outputs]
        old = self._types(node, *old_side(given), stated)
        if self._infer.schema(node) is None:
            new = self._guessed(node, given, old)
        else:
            new = self._types(node, *new_side(given), None)
        for value, a, b in zip(node.outputs, old, new, strict=True):
            self.facts[value] = Fact(a, b, inner=folded_as(a, b, given))
        check_kept(self, node, given)
        check_not_mixed(self, node, given)

    def _types(
        self,
        node: ir.Node,
        kinds: Sequence[TypeProto | None],
        data: Sequence[Array | None],
        stated: list[TypeProto] | None,
    ) -> list[TypeProto]:
        if self._infer.schema(node) is None:
            return stated if stated is not None else [TypeProto() for _ in node.outputs]
        try:
            found = self._infer.types(node, self.proto(node), kinds, data)
        except UNINFERABLE as error:
            if stated is not None and all(is_static(kind) for kind in stated):
                return stated
            raise self.refusal(node, _reason(error)) from error
        return [filled(kind, None if stated is None else stated[n]) for n, kind in enumerate(found)]

    def _guessed(self, node: ir.Node, given: list[Fact | None], old: list[TypeProto]) -> list[TypeProto]:
        found = [likened(kind, given) for kind in old]
        if None in found:
            raise self.refusal(node, "nothing tells what shape this operator gives then")
        return [kind for kind in found if kind is not None]

    # --- changes ---

    def make(self, before: ir.Node, op_type: str, inputs: Iterable[ir.Value | None], **attributes: Any) -> ir.Value:
        """A new node in front of another, with its origin; its output is known at once."""
        node = ir.node(op_type, list(inputs), attributes=attributes)
        node.name = self.fresh(f"{before.name or before.op_type}_{op_type}")
        node.outputs[0].name = self.fresh(f"{node.name}_out")
        node.metadata_props.update(before.metadata_props)
        assert before.graph is not None
        before.graph.insert_before(before, node)
        self.mended.add(before)
        self.visit(node)
        fact = self.facts[node.outputs[0]]
        node.outputs[0].dtype = ir.DataType(fact.old.tensor_type.elem_type)
        return node.outputs[0]

    def constant(self, before: ir.Node, numbers: Any) -> ir.Value:
        return self.make(before, "Constant", [], value=ir.tensor(np.asarray(numbers, dtype=np.int64)))

    def size(self, before: ir.Node, value: ir.Value, axes: Sequence[int], factor: Fraction = Fraction(1)) -> ir.Value:
        """The product of some axes of a value, times a factor, as a vector of one number."""
        shape = self.make(before, "Shape", [value])
        found = self.make(before, "Gather", [shape, self.constant(before, [axes[0]])], axis=0)
        for axis in axes[1:]:
            other = self.make(before, "Gather", [shape, self.constant(before, [axis])], axis=0)
            found = self.make(before, "Mul", [found, other])
        if factor.numerator != 1:
            found = self.make(before, "Mul", [found, self.constant(before, [factor.numerator])])
        if factor.denominator != 1:
            found = self.make(before, "Div", [found, self.constant(before, [factor.denominator])])
        return found

    def give(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let a node read another value."""
        self._check_may_mend(node)
        before = node.inputs[index]
        if before is not None and before is not value:
            self.replaced.append(before)
        node.replace_input_with(index, value)
        self.mended.add(node)

    def _check_may_mend(self, node: ir.Node) -> None:
        if self._attributes is not None:
            raise self.refusal(node, "it would have to change inside a function", "inline the functions first")

    @functools.cached_property
    def _names(self) -> FreshNames:
        return FreshNames(self.model)

    def fresh(self, base: str) -> str:
        """A name that nothing in the model has."""
        return self._names.fresh(base)

    def refusal(self, node: ir.Node, why: str, next_step: str | None = None) -> InputError:
        """Why a node cannot follow, with where it comes from."""
        traced = node.metadata_props.get("pkg.torch.onnx.stack_trace", "").strip().splitlines()[:1]
        found = origin_of(node)
        origin = [found.module, found.source or "".join(traced)]
        places = ",".join(f"{name}:{axis}" for name, axis in self.probe.places)
        return InputError(
            f"'{places}' cannot become '{self.probe.name}': {where(node)} does not follow: {why}",
            where=", ".join(t.strip() for t in origin if t) or None,
            next_step=next_step or "replace that node, or export the model with this dimension dynamic",
        )


def _measured(walk: Walk, node: ir.Node, dims: Sequence[int | None]) -> Array:
    if node.op_type == "Size":
        return np.array(np.prod(np.array(dims, dtype=np.int64), dtype=np.int64))
    start, end = walk.attribute(node, "start", 0), walk.attribute(node, "end", None)
    return np.array(list(dims)[start:end], dtype=np.int64)


def _reason(error: Exception) -> str:
    return str(error).split("] ", 1)[-1].strip()


# A dimension must not be lost on the way, and the rows of a batch must not be mixed.
#
# A dimension of size 1 leaves no trace: a reshape may have folded it with the axis before it or after it. The wrong
# reading gives a model that runs, and attends from one row of the batch to another. It shows where an operator sums
# over an axis that the dimension is folded into.

_ALONG = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "TopK", "CumSum", "LpNormalization")
_LOSES = (  # operators that may give, of something that holds the dimension, something that does not
    *("Shape", "Size", "ArgMax", "ArgMin", "Gather", "Slice", "MatMul", "Gemm", "Einsum", "Resize", "Compress"),
    *("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "TopK", "If", "Loop", "Scan", "EyeLike", "Det", "Expand"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "NonMaxSuppression", "NonZero", "Unique", "Pad"),
)


def check_kept(walk: Walk, node: ir.Node, given: list[Fact | None]) -> None:
    """Raises `InputError` where the dimension goes into a node and should come out, and does not."""
    held = any(f is not None and f.held for f in given)
    kept = any(walk.facts[v].changed or None in (walk.facts[v].now or (None,)) for v in node.outputs)
    if held and not kept and node.op_type not in _LOSES and not node.op_type.startswith("Reduce"):
        raise walk.refusal(node, "the dimension goes in and does not come out")


def check_not_mixed(walk: Walk, node: ir.Node, given: list[Fact | None]) -> None:
    """Raises `InputError` where a node sums over an axis into which a dimension of size 1 was folded."""
    if walk.probe.was != 1 or node.domain != "":
        return
    folded = [set() if f is None or f.was is None else {a for a in f.held if f.was[a] != 1} for f in given]
    if any(folded[n] & summed for n, summed in _summed(walk, node, given).items()):
        raise walk.refusal(node, "it sums over an axis that the dimension is folded into with others")
    for value in node.outputs:
        fact = walk.facts[value]
        if len(fact.held) > 1 and any((fact.was or ())[a] != 1 for a in fact.held):
            raise walk.refusal(node, "it puts every row of the dimension against every other")


def _summed(walk: Walk, node: ir.Node, given: list[Fact | None]) -> dict[int, set[int]]:
    """For each input the axes over which the node sums."""
    ranks = [0 if f is None or f.was is None else len(f.was) for f in given]
    if node.op_type in ("MatMul", "MatMulInteger"):
        return {0: {ranks[0] - 1}, 1: {max(ranks[1] - 2, 0)}}
    if node.op_type == "Gemm":
        turned = [bool(walk.attribute(node, name, 0)) for name in ("transA", "transB")]
        return {0: {0 if turned[0] else 1}, 1: {1 if turned[1] else 0}}
    if node.op_type == "LayerNormalization":
        return {0: set(range(walk.attribute(node, "axis", -1) % ranks[0], ranks[0]))}
    if node.op_type == "Einsum":
        return _summed_letters(walk, node)
    if node.op_type.startswith("Reduce"):
        return {0: _reduced(walk, node, given, ranks[0])}
    if node.op_type in _ALONG and ranks[0]:
        default = 1 if node.op_type == "Softmax" and walk.opset < 13 else -1
        return {0: {walk.attribute(node, "axis", default) % ranks[0]}}
    return {}


def _reduced(walk: Walk, node: ir.Node, given: list[Fact | None], rank: int) -> set[int]:
    data = given[1].old_data if len(given) > 1 and given[1] is not None else None
    axes = data.reshape(-1).tolist() if data is not None else walk.attribute(node, "axes", None)
    return {axis % rank for axis in axes} if axes is not None and rank else set()


def _summed_letters(walk: Walk, node: ir.Node) -> dict[int, set[int]]:
    text = walk.attribute(node, "equation", "")
    text = (text.decode() if isinstance(text, bytes) else text).replace(" ", "")
    terms, arrow, result = text.partition("->")
    if not arrow or "." in text:
        return {}
    return {n: {a for a, x in enumerate(term) if x not in result} for n, term in enumerate(terms.split(","))}
