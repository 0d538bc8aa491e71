"""Give a captured model the face the user asked for: names of inputs, outputs, weights and dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from torchport.capture.dynamic_dims import DynamicSpec, InputDims
from torchport.capture.origins import write_origins
from torchport.errors import CaptureError
from torchport.irtools.polynomials import Size
from torchport.irtools.shapes import Shape, Shapes
from torchport.irtools.traversal import all_nodes, all_values, inlined, subgraphs, used_values
from torchport.results import Dim
from torchport.tensors import dtype_name, numpy_dtype

_PREFIX = "model."  # structure.FlatModule holds the user's module under this name


def dress(
    model: ir.Model,
    *,
    tensors: Mapping[str, torch.Tensor],
    dims: InputDims,
    input_names: Sequence[str],
    output_names: Sequence[str],
    keep_unused: bool,
) -> None:
    """Name everything in place.

    Args:
        model: straight from a route; its inputs carry the route's names, in order.
        tensors: the example inputs by torchport's own names, in order.
        dims: dynamic axes by those names.
        input_names: the names to save under.
        output_names: likewise, for the outputs.
        keep_unused: keep inputs the graph does not use.
    """
    write_origins(model)
    if len(model.graph.outputs) != len(output_names):
        raise CaptureError(
            f"the captured graph has {len(model.graph.outputs)} outputs, the model gives {len(output_names)}"
        )
    _restore_inputs(model, tensors)
    _strip_prefix(model)
    _separate_outputs(model)
    _clean_dims(model)
    _name_dims(model, dims, list(tensors))
    renamed = dict(zip(tensors, input_names, strict=True))
    _rename(
        model,
        [*model.graph.inputs, *model.graph.outputs],
        [*(renamed[str(i.name)] for i in model.graph.inputs), *output_names],
    )
    if not keep_unused:
        for value in [i for i in model.graph.inputs if not i.uses() and not i.is_graph_output()]:
            model.graph.inputs.remove(value)


def _restore_inputs(model: ir.Model, tensors: Mapping[str, torch.Tensor]) -> None:
    """Inputs by torchport's names in the signature's order; those a route dropped come back."""
    inputs = model.graph.inputs
    if len(inputs) == len(tensors):  # all there: in order, whatever they are called
        by_name = dict(zip(tensors, list(inputs), strict=True))
    else:
        by_name = {str(v.name): v for v in inputs if v.name in tensors}
    while inputs:
        inputs.pop()  # not `del`: onnx-ir 1.1 then goes on to take the value for an input
    for name, tensor in tensors.items():
        value = by_name.get(name) or ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(numpy_dtype(dtype_name(tensor.dtype)))),
            shape=ir.Shape(list(tensor.shape)),
        )
        value.name = _free(model, name, value)
        inputs.append(value)
        value.name = name


def _free(model: ir.Model, name: str, owner: ir.Value) -> str:
    """Move any other value of that name out of the way, and return the name."""
    for value in all_values(model.graph):
        if value is not owner and value.name == name:
            value.name = f"{name}.inner"
    return name


def _strip_prefix(model: ir.Model) -> None:
    taken = {v.name for v in all_values(model.graph)}
    for value in list(model.graph.initializers.values()):
        name = str(value.name)
        bare = name.removeprefix(_PREFIX)
        if bare != name and bare not in taken:
            value.name = bare
            if value.const_value is not None:
                value.const_value.name = bare


def _separate_outputs(model: ir.Model) -> None:
    """An output that is also an input, a weight or another output gets a value of its own."""
    seen: set[int] = set()
    outputs = model.graph.outputs
    for index, value in enumerate(list(outputs)):
        if id(value) in seen or value.is_graph_input() or value.is_initializer():
            node = ir.node("Identity", [value])
            node.outputs[0].name = f"{value.name}.output{index}"
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            model.graph.append(node)
            outputs[index] = node.outputs[0]
        seen.add(id(value))


def _rename(model: ir.Model, values: Sequence[ir.Value], names: Sequence[str]) -> None:
    chosen = {id(v) for v in values}
    wanted = set(names)
    for value in all_values(model.graph):
        if id(value) not in chosen and value.name in wanted:
            value.name = f"{value.name}.inner"
    for position, value in enumerate(values):  # two steps, so that names may be swapped
        value.name = f"torchport.renaming.{position}"
    for value, name in zip(values, names, strict=True):
        value.name = name


# --- dimensions -------------------------------------------------------------------------------------------------------


def _clean_dims(model: ir.Model) -> None:
    """torch writes a size it froze as a symbol that is called '3'."""
    for value in all_values(model):
        if value.shape is None:
            continue
        value.shape = ir.Shape(
            [
                int(d.value) if isinstance(d, ir.SymbolicDim) and d.value and d.value.isdecimal() else d
                for d in value.shape
            ]
        )


def _name_dims(model: ir.Model, dims: InputDims, names: list[str]) -> None:
    """Give the inputs' dims their names, and every expression over torch's symbols those names too."""
    symbols: dict[str, str] = {}
    for value, name in zip(model.graph.inputs, names, strict=True):
        axes = dims.get(name, {})
        shape = list(value.shape) if value.shape is not None else []
        for axis, dim in axes.items():
            size = shape[axis]
            symbol = None if isinstance(size, int) else size.value
            if symbol and symbol.isidentifier() and symbol != dim.name and dim.root == dim.name:
                symbols.setdefault(symbol, dim.name)
    for value in all_values(model):
        if value.shape is None:
            continue
        value.shape = ir.Shape([_renamed_dim(d, symbols) for d in value.shape])
    for value, name in zip(model.graph.inputs, names, strict=True):
        assert value.shape is not None
        axes = dims.get(name, {})
        value.shape = ir.Shape([axes[a].name if a in axes else d for a, d in enumerate(value.shape)])


def _renamed_dim(dim: int | ir.SymbolicDim, symbols: Mapping[str, str]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return None
    return re.sub(r"[A-Za-z_]\w*", lambda m: symbols.get(m[0], m[0]), dim.value)


def name_output_dims(
    model: ir.Model,
    *,
    dims: InputDims,
    spec: DynamicSpec,
    observed: Sequence[tuple[Mapping[str, int], Sequence[tuple[int, ...]]]],
) -> None:
    """Name the outputs' dims by what PyTorch's answers showed.

    A route may leave an output's dim unnamed, named after a node, or frozen. The answers at several sizes tell: a dim
    that always equals ``batch`` is ``batch``.

    Args:
        observed: for each question the sizes of the roots and the outputs' shapes.
    """
    known = {d.name: d for axes in dims.values() for d in axes.values()}
    counted = _counted_axes(model, known, observed)
    for position, value in enumerate(model.graph.outputs):
        shapes = [(sizes, answer[position]) for sizes, answer in observed]
        ranks = {len(shape) for _, shape in shapes}
        if len(ranks) == 1 and (value.shape is None or ranks != {len(value.shape)}):
            value.shape = ir.Shape([None] * len(shapes[0][1]))  # a route may be wrong about a rank, too
        if value.shape is None:
            continue
        if ranks - {len(value.shape)}:
            value.shape = None  # the rank itself depends on the sizes
            continue
        wanted = spec.outputs.get(str(value.name), {})
        value.shape = ir.Shape(
            [
                _output_dim(
                    dim,
                    [(z, s[axis]) for z, s in shapes],
                    {} if (position, axis) in counted else known,
                    wanted,
                    f"{value.name}_dim{axis}",
                    axis,
                    len(value.shape),
                )
                for axis, dim in enumerate(value.shape)
            ]
        )


_COUNTING = ("NonZero", "Compress", "Unique", "NonMaxSuppression")  # operators whose numbers decide on a size


def _counted_axes(
    model: ir.Model, known: Mapping[str, Dim], observed: Sequence[tuple[Mapping[str, int], Sequence[tuple[int, ...]]]]
) -> set[tuple[int, int]]:
    """Return the output axes whose size the values decide, by output and axis.

    Such a size may be that of an input in every case that was seen, and is none of its dimensions: a mask that selected
    everything. Those behind a counting operator are meant that do not follow from the sizes of the inputs.
    """
    behind = [n for n, value in enumerate(model.graph.outputs) if _counts(value)]
    if not behind or not observed:
        return set()
    sizes, shapes = observed[0]
    given = {**sizes, **{d.name: d.size(sizes[d.root]) for d in known.values() if d.root in sizes}}
    found = Shapes(inlined(model), given)
    outputs = [found.of(value) for value in found.model.graph.outputs]
    return {
        (n, axis)
        for n in behind
        for axis in range(len(shapes[n]))
        if not isinstance(_at(outputs[n], axis, len(shapes[n])), int)
    }


def _at(shape: Shape | None, axis: int, rank: int) -> Size | None:
    return shape[axis] if shape is not None and len(shape) == rank else None


def _counts(value: ir.Value) -> bool:
    """Check that a value is computed from what a counting operator gives."""
    waiting, seen = [value.producer()], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        inner = [n for graph in subgraphs(node) for n in ir.traversal.RecursiveGraphIterator(graph)]
        if any(one.op_type in _COUNTING for one in (node, *inner)):
            return True
        waiting += [used.producer() for used in used_values(node)]
    return False


def check_ranks(model: ir.Model, observed: Sequence[tuple[Mapping[str, int], Sequence[tuple[int, ...]]]]) -> None:
    """Check that every output has one number of axes at all sizes: a file of ONNX cannot declare another.

    Raises:
        CaptureError: `squeeze` without an axis, say, drops a batch of one.
    """
    for position, value in enumerate(model.graph.outputs if observed else ()):
        shapes = [(sizes, answer[position]) for sizes, answer in observed]
        shapes.sort(key=lambda seen: 1 in seen[0].values())  # the exception comes last
        (_, one), (sizes, other) = (
            shapes[0],
            next((seen for seen in shapes if len(seen[1]) != len(shapes[0][1])), shapes[0]),
        )
        if len(one) == len(other):
            continue
        dim = next((d for d, size in sizes.items() if size == 1), next(iter(sizes), ""))
        raise CaptureError(
            f"output '{value.name}' has shape {list(one)} and, where {dim} is {sizes.get(dim)}, {list(other)}; "
            "an output of an ONNX file has one number of axes",
            next_step=f"name the axis that goes, as in x.squeeze(1), or leave such sizes out: {dim}[2..]",
        )


def _output_dim(
    dim: int | ir.SymbolicDim,
    seen: Sequence[tuple[Mapping[str, int], int]],
    known: Mapping[str, Dim],
    wanted: Mapping[int, str],
    fallback: str,
    axis: int,
    rank: int,
) -> int | str:
    varies = len({size for _, size in seen}) > 1
    given = wanted.get(axis, wanted.get(axis - rank))
    if isinstance(dim, int) and not varies:
        return dim
    if given is not None:
        return given
    text = None if isinstance(dim, int) else dim.value
    words = set(re.findall(r"[A-Za-z_]\w*", text or ""))
    if text and words and words <= (set(known) | {"Max", "Min", "floor", "ceil", "Mod"}):
        return text
    equal = [
        name
        for name, d in known.items()
        if varies and all(d.root in sizes and d.size(sizes[d.root]) == size for sizes, size in seen)
    ]
    if equal:
        return equal[0]
    return (_multiple(seen, known) if varies else None) or fallback


def _multiple(seen: Sequence[tuple[Mapping[str, int], int]], known: Mapping[str, Dim]) -> str | None:
    """``2*height``, where every answer's size is that many times the dimension's."""
    for name, dim in known.items():
        sizes = [dim.size(s[dim.root]) if dim.root in s else 0 for s, _ in seen]
        factor = seen[0][1] // sizes[0] if sizes[0] else 0
        if factor > 1 and all(size == factor * own for own, (_, size) in zip(sizes, seen, strict=True)):
            return f"{factor}*{name}"
    return None


def drop_unused_functions(model: ir.Model) -> None:
    used = {node.op_identifier() for node in all_nodes(model)}
    for identifier in [i for i in model.functions if i not in used]:
        del model.functions[identifier]
