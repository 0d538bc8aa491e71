"""Casts around nodes whose types ONNX Runtime has no kernel for, such as bfloat16 arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir

from torchport.engines.onnxruntime.decompositions import elementwise
from torchport.engines.protocol import Use, Workaround, one_node, use_of
from torchport.irtools.inference import fill_in
from torchport.irtools.metadata import call_of

# Casts, and only where ONNX Runtime has no kernel for an operator in the type it is used with.
#
# ONNX Runtime tries each operator with its types, in a model of that one node: there is no list of kernels here. An
# operator without a kernel is computed in the next type up that holds all numbers of its own, between casts:
#
#     bfloat16 x ─ Cast ─▶ float32 ─ MatMul ─▶ float32 ─ Cast ─▶ bfloat16
#
# The cast back stays where it rounds, as PyTorch rounds to bfloat16 after each operator. It goes where it does not: the
# largest of some bfloat16 numbers is one of them, and the steps within one of PyTorch's operators (the scores of an
# attention) are not rounded by PyTorch either. Weights stay in the file in their own type; ONNX Runtime casts them
# once, when it opens the model. Where no type holds all numbers (float64), first a decomposition is tried, then
# float32, which the proof may not let pass.

HasKernels = Callable[[onnx.ModelProto], bool]

_T = ir.DataType
_PLAIN = {_T.FLOAT, _T.INT64, _T.BOOL, _T.STRING, None}
_WIDER: dict[ir.DataType | None, tuple[ir.DataType, ...]] = {
    _T.BFLOAT16: (_T.FLOAT,),
    _T.FLOAT16: (_T.FLOAT,),
    _T.INT8: (_T.INT32, _T.INT64, _T.FLOAT),
    _T.UINT8: (_T.INT32, _T.INT64, _T.FLOAT),
    _T.INT16: (_T.INT32, _T.INT64, _T.FLOAT),
    _T.UINT16: (_T.INT32, _T.INT64, _T.FLOAT),
    _T.INT32: (_T.INT64, _T.DOUBLE),
    _T.UINT32: (_T.INT64,),
    _T.BOOL: (_T.INT32, _T.FLOAT),
    _T.DOUBLE: (_T.FLOAT,),
}
_LOSING = (_T.DOUBLE, _T.FLOAT)

# Their answers are numbers they were given, up to sign, or whole numbers no larger: a cast back changes nothing.
_EXACT = frozenset(
    (
        *("Abs", "Ceil", "Clip", "Floor", "Max", "MaxPool", "GlobalMaxPool", "Min", "Neg", "ReduceMax", "ReduceMin"),
        *("Relu", "Round", "Sign", "TopK", "Where", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten"),
        *("Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape", "ReverseSequence"),
        *("ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu"),
        "Unsqueeze",
    )
)


def fit(model: ir.Model, has_kernels: HasKernels) -> list[Workaround]:
    """Change `model` in place so that every operator has a kernel, as far as possible.

    Args:
        model: changed in place.
        has_kernels: checks that ONNX Runtime has every kernel that a small model needs.

    Returns:
        What was done, for each pair of types.
    """
    _fill_in(model)
    if model.functions and any(_unusual(node) for f in model.functions.values() for node in f.all_nodes()):
        ir.passes.common.InlinePass()(model)
        _fill_in(model)
    fitting = _Fitting(model, has_kernels)
    fitting.run()
    return fitting.workarounds()


def _fill_in(model: ir.Model) -> None:
    fill_in(model.graph, model.opset_imports.get("", 1))


class _Fitting:
    def __init__(self, model: ir.Model, has_kernels: HasKernels) -> None:
        self._model = model
        self._has_kernels = has_kernels
        self._answers: dict[Use, bool] = {}
        self._casts: dict[tuple[int, int, ir.DataType], ir.Value] = {}
        self._done: dict[tuple[ir.DataType, ir.DataType | None], list[str]] = {}

    def run(self) -> None:
        for node in list(self._model.graph.all_nodes()):
            if _unusual(node) and not self._runs(node, use_of(node)):
                self._fit_node(node)
        _drop_needless(self._model)

    def _fit_node(self, node: ir.Node) -> None:
        use = use_of(node)
        for kind in [k for k in _WIDER if k in (*use.inputs, *use.outputs)]:
            for wide in _WIDER[kind]:
                if (kind, wide) == _LOSING and self._take_apart(node):
                    return
                if self._runs(node, _changed(use, kind, wide)):
                    assert kind is not None
                    self._done.setdefault((kind, wide), []).append(node.op_type)
                    self._cast_around(node, kind, wide)
                    return

    def _take_apart(self, node: ir.Node) -> bool:
        """The node's parts in its place, if it has any; each of them is fitted in turn."""
        name = node.op_type
        new = elementwise.of(node, self._model)
        if new is None:
            return False
        self._done.setdefault((_T.DOUBLE, None), []).append(name)
        fill_in(self._model.graph, self._model.opset_imports.get("", 1))
        for part in new:
            if _unusual(part) and not self._runs(part, use_of(part)):
                self._fit_node(part)
        return True

    def _runs(self, node: ir.Node, use: Use) -> bool:
        if use not in self._answers:
            self._answers[use] = self._has_kernels(one_node(node, use, self._model))
        return self._answers[use]

    def _cast_around(self, node: ir.Node, kind: ir.DataType, wide: ir.DataType) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == kind:
                node.replace_input_with(index, self._cast_before(node, value, wide))
        for attribute in node.attributes.values():
            if attribute.name in ("to", "dtype") and attribute.value == int(kind):
                node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(wide))
        for value in [v for v in node.outputs if v.dtype == kind]:
            _cast_after(node, value, kind, wide)

    def _cast_before(self, node: ir.Node, value: ir.Value, wide: ir.DataType) -> ir.Value:
        """The value in `wide`, cast once in a graph: right after the node that gives it, or at the graph's start."""
        graph = node.graph
        assert graph is not None
        key = (id(graph), id(value), wide)
        if key not in self._casts:
            cast = _cast(value, wide)
            cast.outputs[0].name = f"{value.name}.as_{_shown(wide)}.{len(self._casts)}"
            producer = value.producer()
            if producer is not None and producer.graph is graph:
                graph.insert_after(producer, cast)
            else:
                graph.insert_before(graph[0], cast)
            self._casts[key] = cast.outputs[0]
        return self._casts[key]

    def workarounds(self) -> list[Workaround]:
        return [_workaround(kind, wide, names) for (kind, wide), names in self._done.items()]


def _workaround(kind: ir.DataType, wide: ir.DataType | None, names: list[str]) -> Workaround:
    shown = ", ".join(dict.fromkeys(names))
    text = f"ONNX Runtime's CPU has no {_shown(kind)} kernel of {shown}: "
    many = f"{len(names)} node" + ("s are" if len(names) > 1 else " is")
    if wide is None:
        text += f"{many} written out in simpler operators, which are slower"
        return Workaround(f"{_shown(kind)}-in-simpler-operators", len(names), text)
    text += f"{many} computed in {_shown(wide)}, between casts"
    text += "; the answers are less precise" if (kind, wide) == _LOSING else ""
    return Workaround(f"{_shown(kind)}-computed-in-{_shown(wide)}", len(names), text)


def _shown(kind: ir.DataType) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(kind.name, kind.name.lower())


def _unusual(node: ir.Node) -> bool:
    """Whether it is used with a type that not every engine has every kernel for."""
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return False  # control flow takes all types; what is inside is looked at by itself
    return any(v is not None and v.dtype not in _PLAIN for v in (*node.inputs, *node.outputs))


def _changed(use: Use, kind: ir.DataType | None, wide: ir.DataType) -> Use:
    inputs, outputs = (tuple(wide if t == kind else t for t in types) for types in (use.inputs, use.outputs))
    return dataclasses.replace(use, inputs=inputs, outputs=outputs)


def _cast(value: ir.Value, to: ir.DataType) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(to)})
    node.outputs[0].type = ir.TensorType(to)
    node.outputs[0].shape = value.shape
    return node


def _cast_after(node: ir.Node, value: ir.Value, kind: ir.DataType, wide: ir.DataType) -> None:
    """A cast back to `kind` between the node and everyone who uses what it gives."""
    graph = node.graph
    assert graph is not None
    cast = _cast(value, kind)
    cast.metadata_props.update(node.metadata_props)
    back = cast.outputs[0]
    value.replace_all_uses_with(back, replace_graph_outputs=True)
    cast.replace_input_with(0, value)
    back.name, value.name = value.name, f"{value.name}.{_shown(wide)}"
    value.type = ir.TensorType(wide)
    graph.insert_after(node, cast)


# --- casts that change nothing ----------------------------------------------------------------------------------------


def _drop_needless(model: ir.Model) -> None:
    """Where a cast down is undone right after, and the rounding between is not PyTorch's, both are passed by."""
    for up, wide in list(_undone(model)):
        exact = _fits(wide, up.inputs[0].dtype if up.inputs[0] is not None else None)
        for node, index in up.outputs[0].uses():
            if exact or _one_call(wide.producer(), node):
                node.replace_input_with(index, wide)
    for node in reversed(list(model.graph.all_nodes())):
        if node.op_type == "Cast" and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            assert node.graph is not None
            node.graph.remove(node, safe=True)


def _undone(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Each cast up whose input is a cast down from the same type."""
    for up in model.graph.all_nodes():
        down = up.inputs[0].producer() if up.op_type == "Cast" and up.inputs[0] is not None else None
        wide = down.inputs[0] if down is not None and down.op_type == "Cast" else None
        if wide is not None and wide.dtype == up.outputs[0].dtype:
            yield up, wide


def _one_call(producer: ir.Node | None, consumer: ir.Node) -> bool:
    """Check that both nodes come from one call of a torch operator: within it PyTorch computes in float32 too."""
    call = call_of(consumer)
    return bool(call) and producer is not None and call_of(producer) == call


def _fits(value: ir.Value, kind: ir.DataType | None) -> bool:
    """Whether every number of `value` is one of `kind`'s: it was cast from it, and only selected from since."""
    node = value.producer()
    if node is None:
        return False
    if node.op_type == "Cast":
        return node.inputs[0] is not None and node.inputs[0].dtype == kind
    same = [v for v in node.inputs if v is not None and v.dtype == value.dtype]
    return node.op_type in _EXACT and bool(same) and all(_fits(v, kind) for v in same)
