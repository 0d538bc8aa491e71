"""Read a model."""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from torchport.errors import FileError, OptionError, TorchportError, did_you_mean
from torchport.files.onnx_files import ModelLike, as_model
from torchport.files.validation import BROKEN
from torchport.inspection.cost import measured
from torchport.inspection.description import (
    Description,
    DtypeTotal,
    LocalFunction,
    Module,
    OwnOperator,
    Subgraph,
    Weight,
)
from torchport.irtools import metadata
from torchport.irtools.dims import Dims, input_dims, is_placeholder, plain_dims
from torchport.irtools.metadata import module_of, utf8
from torchport.irtools.names import name_of
from torchport.irtools.node_reader import constant_tensor, is_constant_node
from torchport.irtools.polynomials import Size
from torchport.irtools.shapes import Shapes
from torchport.irtools.traversal import all_nodes, captured_values, inlined, subgraphs
from torchport.irtools.types import dtype_name, is_custom, operator_name, type_text
from torchport.process import silence
from torchport.results import TensorInfo


def describe(model: ModelLike, *, at: Mapping[str, int] | None = None) -> Description:
    """What a model is made of: interface, weights, operators, cost of a run, and the modules it came from.

    No weight is read.

    Args:
        model: an ONNX file, or a model in memory.
        at: sizes of dynamic dimensions, to have the cost in numbers too.

    Raises:
        FileError: the file is missing, broken or of another format.
        OptionError: `at` names a dimension the model does not have.

    Example:
        >>> description = tp.graph.describe("model.onnx", at={"batch": 8})
        >>> print(description)
        >>> description.cost.multiply_adds, description.cost_at.multiply_adds
        (1.62M·batch, 12978688)
    """
    with reading(model):
        return _describe(*opened(model), at or {})


@contextlib.contextmanager
def reading(model: object) -> Iterator[None]:
    """Other libraries' noise is kept away, and what they fail on in a file nobody thought of is a `FileError`."""
    try:
        with silence():
            yield
    except TorchportError:
        raise
    except Exception as error:
        where = str(model) if isinstance(model, (str, os.PathLike)) else None
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise FileError(f"cannot be read: {type(error).__name__}, {reason}", where=where, next_step=BROKEN) from error


def _describe(loaded: ir.Model, path: str, at: Mapping[str, int]) -> Description:
    shapes = Shapes(inlined(loaded))
    symbols = _symbols(loaded, shapes)
    sizes = _checked(_spread(at, loaded), symbols)
    total = measured(shapes)
    nodes = list(all_nodes(loaded))
    weights = sorted(_weights(loaded, nodes), key=lambda w: -w.bytes)
    entries = metadata.read(loaded)
    given = {utf8(k): utf8(v) for k, v in loaded.metadata_props.items()}
    return Description(
        path=path,
        name=utf8(loaded.graph.name or ""),
        ir_version=loaded.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()},
        producer=" ".join(utf8(t) for t in (loaded.producer_name, loaded.producer_version) if t),
        model_version=loaded.model_version,
        metadata={k: v for k, v in given.items() if not k.startswith(metadata.PREFIX)},
        origin={k: v for k, v in entries.items() if k not in ("proof", "operators")},
        proof=entries["proof"] if isinstance(entries.get("proof"), dict) else None,
        inputs=tuple(_info(v) for v in loaded.graph.inputs if v.name not in loaded.graph.initializers),
        outputs=tuple(map(_info, loaded.graph.outputs)),
        nodes=len(nodes),
        weights=tuple(weights),
        dtypes=_dtypes(weights),
        parameters=sum(map(_parameters, weights)),
        operators=_operators(nodes),
        symbols=symbols,
        cost=total,
        at=sizes,
        cost_at=measured(Shapes(shapes.model, sizes, like=shapes)) if sizes else None,
        functions=_functions(loaded, nodes),
        subgraphs=tuple(_subgraphs(nodes)),
        own_operators=_own_operators(loaded, nodes, entries.get("operators")),
        modules=_modules(nodes, total.by_module),
    )


def opened(model: ModelLike) -> tuple[ir.Model, str]:
    """Return the model, and the path of the file it is from."""
    return as_model(model), os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""


def _info(value: ir.Value) -> TensorInfo:
    shape = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return TensorInfo(str(value.name), type_text(value.type), shape)


def _symbols(model: ir.Model, shapes: Shapes) -> tuple[str, ...]:
    """The dynamic dimensions: first those of the inputs, then those that only a run shows."""
    dims = Dims.of(model)
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    named = input_dims((str(v.name), plain_dims(v.shape or ())) for v in inputs).values()
    return tuple(dict.fromkeys([*(d for d in named if dims.is_name(d)), *shapes.symbols()]))


def _spread(at: Mapping[str, int], model: ir.Model) -> dict[str, int]:
    """Give the size of a placeholder that several axes share, ``?``, to each of them."""
    places = [(f"{v.name}:{n}", d) for v in model.graph.inputs for n, d in enumerate(plain_dims(v.shape or ()))]
    shared = {name: [place for place, dim in places if dim == name] for name in at if is_placeholder(name)}
    spread = {place: at[name] for name, axes in shared.items() if len(axes) > 1 for place in axes}
    return spread | {name: size for name, size in at.items() if len(shared.get(name, ())) < 2}


def _checked(at: Mapping[str, int], symbols: tuple[str, ...]) -> dict[str, int]:
    for name, size in at.items():
        if name not in symbols:
            has = f"it has: {', '.join(symbols[:8])}" if symbols else "it has none, its shapes are fixed"
            raise OptionError(
                f"the model has no dynamic dimension '{name}'",
                where=f"--at {name}={size}",
                next_step=did_you_mean(name, symbols, has, most=1),
            )
        if not isinstance(size, int) or not 0 <= size < 2**40:
            raise OptionError(f"{size!r} is no size", where=f"--at {name}={size}", next_step="give a whole number")
    return dict(at)


def _weights(model: ir.Model, nodes: list[ir.Node]) -> Iterator[Weight]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield _weight(name, value.const_value)
    for node in nodes:
        tensor = weight_tensor(node.outputs[0]) if is_constant_node(node) else None
        if tensor is not None and len(tensor.shape) and tensor.size > 1:
            yield _weight(str(node.outputs[0].name), tensor)


def weight_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer, or of a Constant node: older exporters leave weights there.

    Numbers written as an attribute, such as `value_ints`, are no weights.
    """
    producer = value.producer()
    if producer is None:
        return value.const_value
    return constant_tensor(value) if "value" in producer.attributes else None


def _weight(name: str, tensor: ir.TensorProtocol) -> Weight:
    file = str(tensor.location) if isinstance(tensor, ir.ExternalTensor) else ""
    size = tensor.nbytes if tensor.dtype != ir.DataType.STRING else 0
    return Weight(name, dtype_name(tensor.dtype), tuple(tensor.shape.numpy()), size, file)


def _dtypes(weights: list[Weight]) -> tuple[DtypeTotal, ...]:
    groups: dict[str, list[Weight]] = {}
    for weight in weights:
        groups.setdefault(weight.dtype, []).append(weight)
    totals = [
        DtypeTotal(dtype, len(group), sum(map(_elements, group)), sum(w.bytes for w in group))
        for dtype, group in groups.items()
    ]
    return tuple(sorted(totals, key=lambda t: -t.bytes))


def _elements(weight: Weight) -> int:
    total = 1
    for size in weight.shape:
        total *= size
    return total


def _parameters(weight: Weight) -> int:
    """What PyTorch would call parameters or buffers: not shapes and indices, not numbers from the code."""
    narrow = weight.dtype in ("int8", "uint8", "int4", "uint4", "int2", "uint2")
    counted = weight.dtype.startswith(("float", "bfloat", "complex")) or narrow
    return _elements(weight) if counted and weight.shape else 0


def _operators(nodes: list[ir.Node]) -> dict[str, int]:
    counts = collections.Counter(operator_name(node) for node in nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _functions(model: ir.Model, nodes: list[ir.Node]) -> tuple[LocalFunction, ...]:
    calls = collections.Counter(node.op_identifier() for node in nodes)
    return tuple(
        LocalFunction("::".join(filter(None, key)), sum(1 for _ in function.all_nodes()), calls[key])
        for key, function in model.functions.items()
    )


def _subgraphs(nodes: list[ir.Node]) -> Iterator[Subgraph]:
    for node in nodes:
        if not subgraphs(node):
            continue
        for name, given in node.attributes.items():
            if given.type == ir.AttributeType.GRAPH and not given.is_ref():
                graph = given.as_graph()
                count = sum(1 for _ in graph.all_nodes())
                yield Subgraph(utf8(name_of(node)), node.op_type, utf8(name), count, _captured(graph))


def _captured(graph: ir.Graph) -> tuple[str, ...]:
    """The values a body takes from around it."""
    return tuple(dict.fromkeys(str(v.name) for v in captured_values(graph)))


def _own_operators(model: ir.Model, nodes: list[ir.Node], named: Any) -> tuple[OwnOperator, ...]:
    entries = {e["name"]: e for e in named or () if isinstance(e, dict) and isinstance(e.get("name"), str)}
    bodies = {f"{domain}::{name}" for domain, name, _ in model.functions}
    counts = collections.Counter(operator_name(n) for n in nodes if is_custom(n))
    return tuple(
        OwnOperator(
            name,
            count,
            str(entries.get(name, {}).get("library", "")),
            str(entries.get(name, {}).get("sha256", "")),
            name in bodies,
        )
        for name, count in counts.items()
        if name in entries or name not in bodies
    )


def _modules(every: list[ir.Node], work: Mapping[str, Size]) -> tuple[Module, ...]:
    """Every module that has a node, and those above it; a weight belongs to the module that reads it first."""
    nodes: collections.Counter[str] = collections.Counter()
    parameters: collections.Counter[str] = collections.Counter()
    costs: dict[str, Size] = {}
    counted: set[int] = set()
    for node in every:
        path = module_of(node)
        tensors = [t for t in map(weight_tensor, filter(None, node.inputs)) if t is not None and t.size > 1]
        held = {id(t): t for t in tensors if id(t) not in counted}
        counted |= set(held)
        size = sum(_parameters(_weight("", tensor)) for tensor in held.values())
        for above in _above(path):
            nodes[above] += 1
            parameters[above] += size
    for path, cost in work.items():
        for above in _above(path):
            costs[above] = costs.get(above, 0) + cost
    if set(nodes) <= {""}:
        return ()
    return tuple(Module(path, nodes[path], parameters[path], costs.get(path, 0)) for path in _in_tree(nodes))


def _above(path: str) -> list[str]:
    """``a.b.c`` is in ``a.b.c``, ``a.b``, ``a`` and the model itself."""
    parts = path.split(".") if path else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _in_tree(paths: Iterable[str]) -> list[str]:
    """Parents before children, children in the order they were found."""
    children: dict[str, list[str]] = {}
    for path in paths:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    ordered, pending = [], [""]
    while pending:
        path = pending.pop()
        ordered.append(path)
        pending.extend(reversed(children.get(path, [])))
    return ordered
