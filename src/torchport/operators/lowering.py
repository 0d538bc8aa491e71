"""How operators defined once are written in ONNX: as a node, written out, or as a node with a body.

A body is a local function: engines that have a kernel for the node use it, the others run the body. What a lowering
builds may depend on its arguments, so a node's calls that differ in them have bodies under different overloads.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir
import onnxscript
import torch
from onnx_ir.passes.common import InlinePass
from onnxscript import version_converter

from torchport.errors import CaptureError, first_line
from torchport.operators import definition, symbolic
from torchport.operators.definition import Operator
from torchport.torch_compat import registries

Identifier = tuple[str, str, str]


class Lowerings:
    """For one export: translations by overload, and the bodies of the nodes they made."""

    def __init__(self) -> None:
        self.bodies: dict[Identifier, ir.Function] = {}
        self._variants: dict[str, dict[Any, str]] = {}

    def translations(self) -> dict[Any, Callable[..., Any]]:
        return {
            op.overload: made for op in definition.defined().values() if (made := self._translation(op)) is not None
        }

    def _translation(self, op: Operator) -> Callable[..., Any] | None:
        if op.node_name is not None:
            return symbolic.by_arguments(op.overload, lambda given: self._node(op, given))
        if op.lowering is None:
            return None
        if isinstance(op.lowering, onnxscript.OnnxFunction):
            return symbolic.by_arguments(op.overload, lambda given: _expanded(op, op.lowering, given))
        return symbolic.translation(op.overload, op.lowering) if takes_graph(op.lowering) else op.lowering

    def _node(self, op: Operator, given: list[Any]) -> Any:
        assert op.node_name is not None
        inputs, attributes = _parts(op, given)
        domain, _, kind = op.node_name.partition("::")
        overload = "" if op.lowering is None else self._body(op, domain, kind, given)
        outputs = len(registries.schema(op.overload).returns)
        made = symbolic.Graph().op(op.node_name, *inputs, outputs=outputs, overload=overload, **attributes)
        values = [v.value for v in (made if outputs > 1 else (made,))]
        for value in values:
            value.type = None  # torch's exporter knows it; of one that nobody uses a guess would stay
        return tuple(values) if outputs > 1 else values[0]

    def _body(self, op: Operator, domain: str, kind: str, given: list[Any]) -> str:
        """The overload under which this call's body is kept."""
        known = self._variants.setdefault(f"{domain}::{kind}", {})
        key = repr([_like(g) for g in given])
        if key not in known:
            known[key] = f"v{len(known) + 1}" if known else ""
            self.bodies[domain, kind, known[key]] = _traced(op, domain, kind, known[key], given)
        return known[key]


def compositions() -> dict[Any, Callable[..., Any]]:
    """Operators without any lowering are traced through, where their implementation is Python."""
    plain = [op for op in definition.defined().values() if op.node_name is None and op.lowering is None]
    return {op.overload: _through(op, op.function) for op in plain if op.function is not None}


def _through(op: Operator, function: Callable[..., Any]) -> Callable[..., Any]:
    def composition(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise CaptureError(
                f"{op.name} has no ONNX lowering, and its implementation cannot be traced: {first_line(error)}",
                next_step=f'say what it is in ONNX: .onnx("{op.name}") for a node, .onnx(function), or .kernel(...)',
            ) from error

    return composition


def takes_graph(function: Any) -> bool:
    """Whether a lowering is a symbolic: its first parameter is `g`."""
    if isinstance(function, onnxscript.OnnxFunction):
        return False
    return next(iter(inspect.signature(function).parameters), "") == "g"


def for_torchscript(op: Operator) -> Callable[..., Any]:
    """A symbolic for TorchScript's exporter: it knows neither bodies nor onnxscript's functions."""

    def build(g: Any, *given: Any) -> Any:
        pairs = zip(op.arguments, given, strict=True)
        plain_given = [_tensors(v) if "Tensor" in str(a.type) else _constant(v) for a, v in pairs]
        if op.node_name is None:
            return _written_out(op, g, plain_given)
        inputs, attributes = _parts(op, plain_given)
        plain = {k: list(v.value) if isinstance(v, ir.Attr) else v for k, v in attributes.items()}  # empty lists
        return g.op(op.node_name, *inputs, outputs=len(registries.schema(op.overload).returns), **plain)

    return build


def _written_out(op: Operator, g: Any, given: list[Any]) -> Any:
    if op.lowering is None or not takes_graph(op.lowering):
        raise CaptureError(
            f"{op.name} has no lowering that TorchScript's exporter can take",
            next_step=f'take the route export or rewrite, or give a node: .onnx("{op.name}"), or a symbolic (g, ...)',
        )
    none = [a.node().mustBeNone() if hasattr(a, "node") else False for a in given]
    return op.lowering(g, *(None if left_out else a for left_out, a in zip(none, given, strict=True)))


def _tensors(value: Any) -> Any:
    """TorchScript wants a tensor that is left out as it gave it: as a constant without a value."""
    return list(value.node().inputs()) if value.node().kind() == "prim::ListConstruct" else value


def _constant(value: Any) -> Any:
    """TorchScript gives numbers as constants of the graph."""
    node = value.node() if hasattr(value, "node") else None
    if node is None or node.kind() not in ("onnx::Constant", "prim::Constant", "prim::ListConstruct"):
        return value
    if node.kind() == "prim::ListConstruct":
        return [_constant(v) for v in node.inputs()]
    if node.mustBeNone():
        return None
    found = value.toIValue() if node.kind() == "prim::Constant" else getattr(node, node.kindOf("value"))("value")
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
    if "ScalarType" in str(next(a.real_type for a in op.arguments if a.name == name)):
        raise CaptureError(
            f"argument '{name}' of {op.name} is a torch.dtype, which torch and ONNX number differently",
            next_step=f"make '{name}' a str or an int in the operator's signature, or give a lowering without a node",
        )
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

    arguments = []
    for argument, value in zip(op.arguments, given, strict=True):
        arguments.append(stand_in(value, argument.name))
        if value is None and "Tensor" in str(argument.type):  # the node has an empty input in its place
            stand_ins.append(ir.Value(name=argument.name))
    with symbolic.recording() as recorder:
        outputs = _of_their_own(_lowered(op, arguments), stand_ins)
    for place, value in enumerate(outputs):
        value.name = f"output_{place}"
    graph = ir.Graph(stand_ins, outputs, nodes=recorder.nodes, opset_imports={"": recorder.opset.version}, name=kind)
    called = [ir.serde.deserialize_function(f.to_function_proto()) for f in recorder.functions.values()]
    InlinePass()(ir.Model(graph, ir_version=10, functions=called))
    domains = {n.domain for n in ir.traversal.RecursiveGraphIterator(graph)} - {""}
    graph.opset_imports.clear()
    graph.opset_imports.update({"": recorder.opset.version, **dict.fromkeys(sorted(domains), 1)})
    names = [a.name for a in op.arguments if "Tensor" not in str(a.type)]
    undefined = ir.AttributeType.UNDEFINED
    return ir.Function(
        domain, kind, overload, graph=graph, attributes=[ir.Attr(name, undefined, None) for name in names]
    )


def _lowered(op: Operator, arguments: list[Any]) -> Any:
    if isinstance(op.lowering, onnxscript.OnnxFunction):
        return _expanded(op, op.lowering, arguments)
    return symbolic.built(op.lowering, arguments) if takes_graph(op.lowering) else op.lowering(*arguments)


def _of_their_own(result: Any, inputs: list[ir.Value]) -> list[ir.Value]:
    """Outputs of a body: none is an input, and no two are one."""
    outputs: list[ir.Value] = []
    for value in result if isinstance(result, (list, tuple)) else [result]:
        taken = any(value is other for other in (*inputs, *outputs))
        outputs.append(symbolic.Graph().op("Identity", value).value if taken else value)
    return outputs


def _expanded(op: Operator, function: onnxscript.OnnxFunction[..., Any], given: list[Any]) -> Any:
    """The nodes of an onnxscript function for this call, in the opset of the export."""
    own, *others = [
        ir.serde.deserialize_function(f.to_function_proto())
        for f in (function, *function.function_ir.get_called_functions().values())
    ]
    names = list(inspect.signature(function.function).parameters)
    if len(names) != len(given):
        raise CaptureError(
            f"the onnxscript function {function.name} has {len(names)} parameters, {op.name} has {len(given)}",
            next_step="give it the parameters of the operator",
        )
    inputs = {v.name for v in own.inputs}
    values = [symbolic._value(v) for name, v in zip(names, given, strict=True) if name in inputs]
    attributes = [
        ir.convenience.convert_attribute(name, symbolic._attribute(key, plain)[1])
        for argument, name, value in zip(op.arguments, names, given, strict=True)
        if name not in inputs and value is not None
        for key, plain in _attribute(op, argument.name, value).items()
    ]
    stand_ins = [v and ir.Value(name=f"given_{n}", type=v.type, shape=v.shape) for n, v in enumerate(values)]
    call = ir.Node(own.domain, own.name, stand_ins, attributes, num_outputs=len(own.outputs))
    there = [v for v in stand_ins if v is not None]
    graph = ir.Graph(there, call.outputs, nodes=[call], opset_imports={**own.opset_imports, own.domain: 1}, name="call")
    model = ir.Model(graph, ir_version=10, functions=[own, *others])
    InlinePass()(model)
    version_converter.convert_version(model, symbolic.Graph().opset)
    known = {id(s): v for s, v in zip(stand_ins, values, strict=True) if s is not None}
    outputs = [known.get(id(v), v) for v in graph.outputs]
    graph.outputs.clear()
    for stand, value in zip(stand_ins, values, strict=True):
        if stand is not None and value is not None:
            ir.convenience.replace_all_uses_with(stand, value)
    nodes = list(graph)
    graph.remove(nodes)
    for node in nodes:
        node.name = None
        for output in node.outputs:
            output.name = None  # the export names them: two calls must not have the same
    symbolic._recorder().nodes.extend(nodes)
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


@contextlib.contextmanager
def torchscript_symbolics(opset: int) -> Iterator[None]:
    """Ours registered with torch, for the time of an export by TorchScript."""
    defined = {n: f for n, op in definition.defined().items() if (f := for_torchscript(op)) is not None}
    given = {**defined, **symbolic.functions(opset)}
    before = {name: versions.get(opset) for name, versions in registries.custom_symbolics().items()}
    for name, function in given.items():  # for this very opset: torch may have one of its own since a later one
        _torchscript().register_custom_op_symbolic(name, function, opset)
    try:
        yield
    finally:
        for name in given:
            _torchscript().unregister_custom_op_symbolic(name, opset)
            if before.get(name) is not None:
                _torchscript().register_custom_op_symbolic(name, before[name], opset)


def _torchscript() -> Any:
    return torch.onnx  # its annotations leave these two out
