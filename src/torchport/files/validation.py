"""Whether what a file holds is a graph at all: versions known, every name made once and before it is used.

`onnx_ir` mends in silence what it can, and `onnx.checker` refuses models that run well (an unsorted graph, a
graph without a name, an operator it has no schema for), so a model that is opened is held against these rules.
"""

from __future__ import annotations

import collections
import dataclasses
import graphlib
from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from torchport.errors import FileError, UnsafeFileError
from torchport.irtools.serialization import proto_scopes, proto_subgraphs

_MOST_NODES = 10_000_000  # once every function is written out at each place it is called
BROKEN = "the file is broken; export the model again"
_FunctionId = tuple[str, str, str]


def check_well_formed(proto: ModelProto, where: str) -> bool:
    """Refuse what is no usable graph.

    Returns:
        Whether each node comes after what it needs. If not, the nodes must be sorted, which finds cycles.

    Raises:
        FileError: versions, names or functions make no sense, or need a newer onnx.
        UnsafeFileError: the functions unfold to more nodes than any model has.
    """
    check_versions(proto, where)
    _check_support(proto, where)
    check_functions(proto, where)
    imported = _domains(proto.opset_import)
    in_order = _check_names(proto.graph, imported, where)
    for function in proto.functions:
        in_order &= _check_names(function, _domains(function.opset_import), f"{where}, function '{function.name}'")
    return in_order


def check_versions(proto: ModelProto, where: str) -> None:
    """There is a graph, and the installed onnx knows the versions of all that is in it."""
    if not proto.HasField("graph") or proto.ir_version < 1 or not proto.opset_import:
        raise FileError("no complete ONNX model: graph, IR version or opset is missing", where=where, next_step=BROKEN)
    if proto.ir_version > onnx.IR_VERSION:
        _refuse_newer(f"IR version {proto.ir_version}", onnx.IR_VERSION, where)
    for imports in (proto.opset_import, *(f.opset_import for f in proto.functions)):
        _check_opsets(imports, where)


def _check_opsets(imports: Iterable[OperatorSetIdProto], where: str) -> None:
    newest = newest_opsets()
    seen: dict[str, int] = {}
    for opset in imports:
        domain = _domain(opset.domain)
        if opset.version < 1 or seen.setdefault(domain, opset.version) != opset.version:
            raise FileError(f"opset {opset.version} of '{domain}' makes no sense", where=where, next_step=BROKEN)
        if opset.version > newest.get(domain, opset.version):
            _refuse_newer(f"opset {opset.version} of '{domain or 'ai.onnx'}'", newest[domain], where)


def newest_opsets() -> dict[str, int]:
    """The newest opset of each of ONNX's own domains; other domains count as they like."""
    newest: tuple[Any, ...] = onnx.helper.VERSION_TABLE[-1]
    learning, training = newest[3:5]
    return {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": learning, "ai.onnx.training": training}


def _refuse_newer(what: str, newest: int, where: str) -> None:
    raise FileError(
        f"{what} is newer than the installed onnx {onnx.__version__} knows ({newest})",
        where=where,
        next_step="pip install --upgrade onnx, or export the model for an older opset",
    )


def _check_support(proto: ModelProto, where: str) -> None:
    """What `onnx_ir` would drop without a word must not be opened."""
    if proto.training_info:
        raise FileError(
            "training information is not supported",
            where=where,
            next_step="remove `training_info` from the model",
        )
    for scope in proto_scopes(proto.graph, *proto.functions):
        sparse = isinstance(scope, GraphProto) and scope.sparse_initializer
        if sparse or any(a.HasField("sparse_tensor") or a.sparse_tensors for n in scope.node for a in n.attribute):
            raise FileError(
                "sparse tensors are not supported", where=where, next_step="store them dense and export again"
            )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _domains(imports: Iterable[OperatorSetIdProto]) -> set[str]:
    return {_domain(opset.domain) for opset in imports}


def check_functions(proto: ModelProto, where: str) -> None:
    """Functions may call each other, but never in a circle, nor unfold like a chain letter."""
    functions: dict[_FunctionId, FunctionProto] = {}
    for function in proto.functions:
        key = (_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise FileError(f"function '{function.name}' is defined twice", where=where, next_step=BROKEN)
        functions[key] = function
    calls = {key: _operators(function) for key, function in functions.items()}
    sizes: dict[_FunctionId, int] = {}
    for key in _callees_first(calls, where):
        sizes[key] = _unfolded(calls[key], sizes)
    if _unfolded(_operators(proto.graph), sizes) > _MOST_NODES:
        raise UnsafeFileError(
            f"its functions unfold to more than {_MOST_NODES:,} nodes",
            where=where,
            next_step="do not use this file; get it again from a source you trust",
        )


def _operators(scope: GraphProto | FunctionProto) -> collections.Counter[_FunctionId]:
    return collections.Counter(
        (_domain(node.domain), node.op_type, node.overload) for inner in proto_scopes(scope) for node in inner.node
    )


def _callees_first(calls: dict[_FunctionId, collections.Counter[_FunctionId]], where: str) -> Iterator[_FunctionId]:
    order = graphlib.TopologicalSorter({key: [c for c in called if c in calls] for key, called in calls.items()})
    try:
        order.prepare()
    except graphlib.CycleError as error:
        names = " → ".join(name for _, name, _ in reversed(error.args[1]))
        raise FileError(f"functions call each other in a circle: {names}", where=where, next_step=BROKEN) from error
    while order.is_active():
        ready = order.get_ready()
        yield from ready
        order.done(*ready)


def _unfolded(called: collections.Counter[_FunctionId], sizes: dict[_FunctionId, int]) -> int:
    return sum(times * sizes.get(operator, 1) for operator, times in called.items())


@dataclasses.dataclass(frozen=True, eq=False)
class _Scope:
    """A graph or function, where each of its values is made, and the node of the outer scope it is in."""

    body: GraphProto | FunctionProto
    made: dict[Any, int]
    outer: _Scope | None = None
    at: int = 0

    def before(self, name: Any, index: int) -> bool | None:
        """Whether `name` is made before node `index`; None if it is made nowhere in sight."""
        scope = self
        while name not in scope.made:
            if scope.outer is None:
                return None
            scope, index = scope.outer, scope.at
        return scope.made[name] < index


def _check_names(root: GraphProto | FunctionProto, imported: set[str], where: str) -> bool:
    in_order = True
    pending = [_Scope(root, _made(root, where))]
    while pending:
        scope = pending.pop()
        for index, node in enumerate(scope.body.node):
            _check_node(node, imported, where)
            in_order &= _check_inputs(node, scope, index, where)
            graphs = [g for attribute in node.attribute for g in proto_subgraphs(attribute)]
            pending.extend(_Scope(g, _made(g, where), scope, index) for g in graphs)
        for output in scope.body.output:
            name = output if isinstance(scope.body, FunctionProto) else output.name
            if name not in scope.made:
                raise FileError(f"output '{name}' is made by no node", where=where, next_step=BROKEN)
    return in_order


def _made(scope: GraphProto | FunctionProto, where: str) -> dict[Any, int]:
    """Where each value of this scope is made: by which node, or -1 if it is there from the start."""
    function = isinstance(scope, FunctionProto)
    inputs = list(scope.input) if function else [value.name for value in scope.input]
    initializers = [] if function else [tensor.name for tensor in scope.initializer]
    _refuse_twice(inputs, where)
    _refuse_twice(initializers, where)
    made = dict.fromkeys([*inputs, *initializers], -1)
    for index, node in enumerate(scope.node):
        for name in filter(None, node.output):
            if name in made:
                _refuse_twice([name, name], where)
            made[name] = index
    return made


def _refuse_twice(names: list[Any], where: str) -> None:
    twice = [name for name, times in collections.Counter(names).items() if times > 1 or not name]
    if twice:
        what = f"the name '{twice[0]}' is given to two values" if twice[0] else "an input or weight has no name"
        raise FileError(what, where=where, next_step=BROKEN)


def _title(node: NodeProto) -> str:
    kind = f" ({node.op_type})" if node.op_type else ""
    makes = next(iter(filter(None, node.output)), "")
    return f"node '{node.name}'{kind}" if node.name else f"the {node.op_type or 'node'} that makes '{makes}'"


def _check_node(node: NodeProto, imported: set[str], where: str) -> None:
    if not isinstance(node.op_type, str) or not node.op_type:
        raise FileError(f"{_title(node)} has no operator", where=where, next_step=BROKEN)
    if _domain(node.domain) not in imported:
        raise FileError(
            f"the model does not import '{node.domain or 'ai.onnx'}', the domain of operator {node.op_type}",
            where=where,
            next_step="add the domain to the model's opset_import",
        )
    if len({attribute.name for attribute in node.attribute}) < len(node.attribute):
        raise FileError(f"{_title(node)} has an attribute twice", where=where, next_step=BROKEN)


def _check_inputs(node: NodeProto, scope: _Scope, index: int, where: str) -> bool:
    in_order = True
    for name in filter(None, node.input):
        before = scope.before(name, index)
        if before is None:
            raise FileError(
                f"{_title(node)} needs '{name}', which nothing makes",
                where=where,
                next_step=BROKEN,
            )
        in_order &= before
    return in_order
