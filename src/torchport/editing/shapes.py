"""Fix dimensions, make them dynamic, state shapes and forget them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from torchport.editing.make_dynamic.edit import free
from torchport.editing.selection import Tensor
from torchport.editing.transaction import in_place, unproves
from torchport.errors import InputError, did_you_mean
from torchport.irtools.dims import Dims, dim_names, is_placeholder, plain_dims
from torchport.irtools.inference import contradiction
from torchport.irtools.names import check_owned, unknown
from torchport.irtools.shapes import Shapes
from torchport.irtools.traversal import all_values, own_values

Dim = int | str | None


@in_place
@unproves
def set_dim(model: ir.Model, which: str, to: int | str) -> int:
    """Fix a dimension, or make one dynamic and let everything follow.

    A dimension that is fixed becomes that number in every shape, expressions of it included (``2*batch``), and sizes
    that were unknown because of it are worked out. One that is made dynamic takes along what was exported for its old
    size: constant reshape targets, initial states, class tokens and the like.

    Args:
        model: changed in place; as it was if it is refused.
        which: a dimension's name (``batch``), or an input and an axis (``image:0``); several that share a size are
            given together: ``ids:0,mask:0``.
        to: a size, or the name of a dynamic dimension.

    Returns:
        How many shapes and nodes were changed.

    Raises:
        InputError: there is no such dimension; or sizes contradict each other; or a node cannot follow, which it names.

    Example:
        >>> tp.graph.set_dim(model, "batch", 8)
        >>> tp.graph.set_dim(model, "image:0", "batch")
    """
    size = _read(to)
    found = [_find(model, part.strip()) for part in which.split(",")]
    names = {text for text in found if isinstance(text, str)}
    places = [place for place in found if not isinstance(place, str)]
    changed = sum(replace_dim(model, name, size) for name in sorted(names) if name != size)
    if isinstance(size, str):
        return changed + (free(model, places, size) if places else 0)
    return changed + _fix(model, places, size)


def _read(to: int | str) -> int | str:
    if isinstance(to, str) and to.strip().lstrip("-").isdigit():
        to = int(to)
    if isinstance(to, bool) or not isinstance(to, (int, str)) or (isinstance(to, int) and to < 1):
        raise InputError(f"a dimension is a size from 1 on or a name, not {to!r}", next_step="such as 8 or batch")
    if isinstance(to, str) and not to.replace(".", "_").isidentifier():
        raise InputError(f"'{to}' is no name for a dimension", next_step="letters, digits and _, such as batch")
    return to


def _find(model: ir.Model, text: str) -> str | tuple[str, int]:
    """A dimension's name; or the input and axis of one that has a number, or no name."""
    named = dim_names(model)
    if text in named:
        return text
    name, colon, number = text.rpartition(":")
    inputs = {str(v.name): v for v in model.graph.inputs if not v.is_initializer()}
    if not colon or name not in inputs or not number.lstrip("-").isdigit():
        raise _unknown(text, named, inputs)
    shape, axis = inputs[name].shape, int(number)
    if shape is None or not -len(shape) <= axis < len(shape):
        rank = "no known rank" if shape is None else f"rank {len(shape)}"
        raise InputError(f"input '{name}' has {rank}, there is no axis {axis}", next_step="count axes from 0")
    own = plain_dims(shape)[axis]
    is_named = isinstance(own, str) and own in named and not is_placeholder(own)
    return str(own) if is_named else (name, axis % len(shape))


def _unknown(text: str, named: set[str], inputs: dict[str, ir.Value]) -> InputError:
    places = [f"{name}:{axis}" for name, v in inputs.items() for axis in range(len(v.shape or ()))]
    known = [*sorted(named), *places]
    hint = did_you_mean(text, [*known, *inputs], f"a name, or an input and an axis: {', '.join(known[:6])}")
    return InputError(f"there is no dimension '{text}' in the model", next_step=hint)


def _fix(model: ir.Model, places: Sequence[tuple[str, int]], size: int) -> int:
    """Axes of inputs without a name; those of another fixed size become dynamic on the way."""
    inputs = {str(v.name): v for v in model.graph.inputs}
    shapes = {place: inputs[place[0]].shape for place in places}
    other = [p for p, shape in shapes.items() if shape is not None and shape[p[1]] != size]
    if not other:
        return 0
    name = next(n for n in ("fixed", *(f"fixed_{k}" for k in range(99))) if n not in dim_names(model))
    changed = free(model, other, name)
    replace_dim(model, name, size)
    return changed


# --- stating and forgetting -------------------------------------------------------------------------------------------


@in_place
def set_shape(model: ir.Model, tensor: Tensor, shape: Sequence[Dim | ir.SymbolicDim] | ir.Shape) -> int:
    """State the shape of a tensor.

    An input's dimensions are set as by `set_dim`: numbers fix them, names make them dynamic, None leaves them. For any
    other tensor it is a statement of what is so, and checked against what is known.

    Args:
        model: changed in place.
        tensor: an input, an output or a tensor inside, or its name.
        shape: numbers, names, and None for what nobody knows; or an `ir.Shape`.

    Returns:
        How many shapes and nodes were changed.

    Raises:
        InputError: there is no such tensor, or the shape contradicts what is known.

    Example:
        >>> tp.graph.set_shape(model, "image", ["batch", 3, 224, 224])
    """
    value = _tensor(model, tensor)
    own = value.is_graph_input() and value.graph is model.graph and value.shape is not None
    stated = plain_dims(shape)
    dims = [_read(d) if own and d is not None else d for d in stated]
    if value.shape is not None and len(value.shape) != len(dims):
        raise InputError(
            f"'{value.name}' has rank {len(value.shape)} ({value.shape}), {stated} has {len(dims)}",
            next_step="give as many dimensions as it has",
        )
    if value.is_initializer() and not value.is_graph_input():
        raise InputError(f"'{value.name}' is a weight: its data says its shape", next_step="replace the weight")
    if own:
        return _set_input(model, value, dims)
    return _state(model, value, dims)


def _tensor(model: ir.Model, given: Tensor) -> ir.Value:
    if isinstance(given, ir.Value):
        check_owned(model, given)
        return given
    found = {str(v.name): v for v in reversed(list(all_values(model)))}
    if given not in found:
        raise unknown(given, "tensor", found)
    return found[given]


def _set_input(model: ir.Model, value: ir.Value, dims: Sequence[Dim]) -> int:
    """Set each axis that differs."""
    changed = 0
    for axis, to in enumerate(dims):
        if to is not None and value.shape is not None and value.shape[axis] != to:
            changed += set_dim(model, f"{value.name}:{axis}", to)
    return changed


def _state(model: ir.Model, value: ir.Value, dims: Sequence[Dim]) -> int:
    known = Shapes(model).of(value)
    stated = (
        [d if isinstance(d, int) else d.value for d in value.shape] if value.shape is not None else [None] * len(dims)
    )
    if known is not None and len(known) != len(dims):
        raise InputError(
            f"'{value.name}' has rank {len(known)}, {list(dims)} has {len(dims)}", next_step="give a size for each axis"
        )
    for axis, (new, old, sure) in enumerate(zip(dims, stated, known or stated, strict=True)):
        fixed = sure if isinstance(sure, int) else old
        if new is not None and fixed is not None and new != fixed:
            raise InputError(
                f"axis {axis} of '{value.name}' is {fixed}, and cannot be stated as {new}",
                next_step="change the dimension of the input it comes from, with set_dim",
            )
    return checked(model, lambda: _put(value, dims, stated), f"'{value.name}' cannot be {list(dims)}")


def _put(value: ir.Value, dims: Sequence[Dim], stated: Sequence[Dim]) -> int:
    new = [b if a is None else a for a, b in zip(dims, stated, strict=True)]
    changed = value.shape is None or list(value.shape) != new
    value.shape = ir.Shape(new)
    return int(changed)


@in_place
def clear_shapes(model: ir.Model) -> int:
    """Forget the shapes of all tensors inside; inputs and outputs keep theirs.

    For a model whose stated shapes are wrong, or whose sizes are to be worked out anew. Types stay.

    Returns:
        How many shapes were forgotten.

    Example:
        >>> tp.graph.clear_shapes(model)
    """
    keep = {*model.graph.inputs, *model.graph.outputs}
    inner = [v for v in all_values(model) if v not in keep and v.const_value is None and v.shape is not None]
    for value in inner:
        value.shape = None
    return len(inner)


def replace_dim(model: ir.Model, name: str, to: int | str) -> int:
    """A number or another name for a dimension, in every shape."""
    if isinstance(to, str) and to in dim_names(model):
        raise InputError(
            f"the model has a dimension '{to}' already", next_step=f"take another name, or fix '{name}' and '{to}'"
        )
    return checked(model, lambda: _write(model, name, to), f"'{name}' cannot be {to}")


def checked(model: ir.Model, change: Callable[[], int], what: str) -> int:
    """Make a change, and refuse it if the shapes do not agree with each other any more."""
    sound = contradiction(model) is None
    changed = change()
    wrong = contradiction(model) if sound else None
    if wrong is not None:
        raise InputError(f"{what}: {wrong}", next_step="give a size that fits the model's weights and constants")
    _work_out(model)
    return changed


def _write(model: ir.Model, name: str, to: int | str) -> int:
    changed = 0
    known = Dims.of(model)
    for value in all_values(model):
        if value.shape is None:
            continue
        dims = [d if isinstance(d, int) else _with(d, name, to, known) for d in value.shape]
        if dims != list(value.shape):
            value.shape = ir.Shape(dims)
            changed += 1
    return changed


def _with(dim: ir.SymbolicDim, name: str, to: int | str, dims: Dims) -> int | str | ir.SymbolicDim:
    if dim.value == name:
        return to
    if dim.value is None or name not in dims.symbols(dim.value):
        return dim
    return dims.evaluated(dim.value, {name: to}) if isinstance(to, int) else dims.renamed(dim.value, {name: to})


def _work_out(model: ir.Model) -> None:
    """Sizes that are known now and were not."""
    shapes = Shapes(model)
    for graph in model.graphs():
        for value in own_values(graph):
            found = shapes.of(value)
            if found is None or value.const_value is not None:
                continue
            if value.type is None and (kind := shapes.dtype(value)) is not None:
                value.dtype = kind
            if value.type is None:
                continue  # a shape is written with its type or not at all
            if value.shape is None:
                value.shape = ir.Shape([d if isinstance(d, int) else None for d in found])
            elif len(value.shape) == len(found):
                pairs = zip(value.shape, found, strict=True)
                value.shape = ir.Shape([b if isinstance(b, int) else a for a, b in pairs])
