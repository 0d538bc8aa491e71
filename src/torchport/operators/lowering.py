"""How operators defined once are written in ONNX: as a node, written out, or as a node with a body.

A body is a local function: engines that have a kernel for the node use it, the others run the body. What a lowering
builds may depend on its arguments, so a node's calls that differ in them have bodies under different overloads.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import onnxscript

from torchport.errors import CaptureError
from torchport.operators import defining, symbolic
from torchport.operators.defining import Operator

Identifier = tuple[str, str, str]


class Lowerings:
    """For one export: translations by overload, and the bodies of the nodes they made."""

    def __init__(self) -> None:
        self.bodies: dict[Identifier, ir.Function] = {}
        self._variants: dict[str, dict[Any, str]] = {}

    def translations(self) -> dict[Any, Callable[..., Any]]:
        return {op.overload: made for op in defining.defined().values() if (made := self._translation(op)) is not None}

    def _translation(self, op: Operator) -> Callable[..., Any] | None:
        if op.node_name is not None:
            return symbolic.by_arguments(op.overload, lambda given: self._node(op, given))
        if op.lowering is None:
            return None
        return symbolic.translation(op.overload, op.lowering) if takes_graph(op.lowering) else op.lowering

    def _node(self, op: Operator, given: list[Any]) -> Any:
        assert op.node_name is not None
        inputs, attributes = _parts(op, given)
        domain, _, kind = op.node_name.partition("::")
        overload = "" if op.lowering is None else self._body(op, domain, kind, given)
        outputs = len(op.overload._schema.returns)
        made = symbolic.Graph().op(op.node_name, *inputs, outputs=outputs, overload=overload, **attributes)
        return tuple(v.value for v in made) if outputs > 1 else made.value

    def _body(self, op: Operator, domain: str, kind: str, given: list[Any]) -> str:
        """The overload under which this call's body is kept."""
        if isinstance(op.lowering, onnxscript.OnnxFunction):
            function = ir.serde.deserialize_function(op.lowering.to_function_proto())
            function.domain, function.name = domain, kind
            self.bodies[domain, kind, ""] = function
            return ""
        known = self._variants.setdefault(f"{domain}::{kind}", {})
        key = repr([_like(g) for g in given])
        if key not in known:
            known[key] = f"v{len(known) + 1}" if known else ""
            self.bodies[domain, kind, known[key]] = _traced(op, domain, kind, known[key], given)
        return known[key]


def compositions() -> dict[Any, Callable[..., Any]]:
    """Operators without any lowering are traced through, where their implementation is Python."""
    plain = [op for op in defining.defined().values() if op.node_name is None and op.lowering is None]
    return {op.overload: _through(op, op.function) for op in plain if op.function is not None}


def _through(op: Operator, function: Callable[..., Any]) -> Callable[..., Any]:
    def composition(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            why = str(error).splitlines()[0]
            raise CaptureError(
                f"{op.name} has no ONNX lowering, and its implementation cannot be traced: {why}",
                next_step=f'say what it is in ONNX: .onnx("{op.name}") for a node, .onnx(function), or .kernel(...)',
            ) from error

    return composition


def takes_graph(function: Any) -> bool:
    """Whether a lowering is a symbolic: its first parameter is `g`."""
    if isinstance(function, onnxscript.OnnxFunction):
        return False
    return next(iter(inspect.signature(function).parameters), "") == "g"


def for_torchscript(op: Operator) -> Callable[..., Any] | None:
    """A symbolic for TorchScript's exporter: it knows neither bodies nor onnxscript's functions."""
    if op.node_name is None:
        return op.lowering if op.lowering is not None and takes_graph(op.lowering) else None

    def build(g: Any, *given: Any) -> Any:
        inputs, attributes = _parts(op, [_constant(g) for g in given])
        return g.op(op.node_name, *inputs, outputs=len(op.overload._schema.returns), **attributes)

    return build


def _constant(value: Any) -> Any:
    """TorchScript gives numbers as constants of the graph."""
    node = value.node() if hasattr(value, "node") else None
    if node is None or node.kind() not in ("onnx::Constant", "prim::Constant", "prim::ListConstruct"):
        return value
    if node.kind() == "prim::ListConstruct":
        return [_constant(v) for v in node.inputs()]
    if node.mustBeNone():
        return None
    found = value.toIValue() if node.kind() == "prim::Constant" else node.t("value")
    return found.tolist() if hasattr(found, "tolist") and found.dim() <= 1 else found


def _parts(op: Operator, given: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments as the node's inputs and its attributes, with the suffixes of `g.op`."""
    inputs: list[Any] = []
    attributes: dict[str, Any] = {}
    for argument, value in zip(op.arguments, given, strict=True):
        kind = str(argument.type)
        if kind == "List[Tensor]":
            inputs += list(value)
        elif "Tensor" in kind:
            inputs.append(value)
        elif value is not None and "Device" not in kind and "Layout" not in kind:
            attributes |= _attribute(op, argument.name, value)
    if not any(str(a.type) == "List[Tensor]" for a in op.arguments):
        while inputs and inputs[-1] is None:
            inputs.pop()
    return inputs, attributes


def _attribute(op: Operator, name: str, value: Any) -> dict[str, Any]:
    kind = str(next(a.type for a in op.arguments if a.name == name))
    plain = list(value) if isinstance(value, (list, tuple)) else [value]
    for item in plain:
        if not isinstance(item, (bool, int, float, str)):
            raise CaptureError(
                f"argument '{name}' of {op.name} is computed while the model runs; as an attribute of the node "
                f"{op.node_name} it must be a number",
                next_step=f"make '{name}' a Tensor in the operator's signature",
            )
    if "List[str]" in kind:
        texts = ir.StringTensor([text.encode() for text in plain], shape=ir.Shape([len(plain)]))
        return {f"{name}_t": texts}  # kernels cannot read lists of texts, but they can read tensors of them
    suffix = "s" if "str" in kind else "f" if re.search("float|number", kind) else "i"
    if not plain:
        lists = {"f": ir.AttributeType.FLOATS, "i": ir.AttributeType.INTS}
        return {f"{name}_{suffix}": ir.Attr(name, lists[suffix], ())}
    return {f"{name}_{suffix}": value}


def _like(given: Any) -> Any:
    """What a body may depend on: numbers as they are, of tensors the type and rank."""
    if isinstance(given, ir.Value):
        return given.dtype, len(given.shape) if given.shape is not None else None
    return [_like(g) for g in given] if isinstance(given, (list, tuple)) else given


def _traced(op: Operator, domain: str, kind: str, overload: str, given: list[Any]) -> ir.Function:
    """The nodes that the lowering builds for a call like this one."""
    stand_ins: list[ir.Value] = []

    def stand_in(value: Any, name: str) -> Any:
        if isinstance(value, (list, tuple)):
            return [stand_in(v, f"{name}_{n}") for n, v in enumerate(value)]
        if not isinstance(value, ir.Value):
            return value
        rank = len(value.shape) if value.shape is not None else None
        shape = ir.Shape([None] * rank) if rank is not None else None
        stand_ins.append(ir.Value(name=name, type=value.type, shape=shape))
        return stand_ins[-1]

    arguments = [stand_in(g, a.name) for a, g in zip(op.arguments, given, strict=True)]
    with symbolic.recording() as recorder:
        result = symbolic.built(op.lowering, arguments) if takes_graph(op.lowering) else op.lowering(*arguments)
    outputs = list(result) if isinstance(result, (list, tuple)) else [result]
    for place, value in enumerate(outputs):
        value.name = f"output_{place}"
    graph = ir.Graph(stand_ins, outputs, nodes=recorder.nodes, opset_imports={"": recorder.opset.version}, name=kind)
    names = [a.name for a in op.arguments if "Tensor" not in str(a.type)]
    undefined = ir.AttributeType.UNDEFINED
    return ir.Function(
        domain, kind, overload, graph=graph, attributes=[ir.Attr(name, undefined, None) for name in names]
    )
