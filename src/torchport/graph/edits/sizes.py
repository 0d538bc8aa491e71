"""graph.edits.sizes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from torchport.errors import InputError
from torchport.irtools.dims import _free_symbols as _symbols, names_in
from torchport.irtools.inference import contradiction
from torchport.irtools.shapes import Shapes
from torchport.irtools.traversal import each_value, values_of


def replace_dim(model: ir.Model, name: str, to: int | str) -> int:
    """A number or another name for a dimension, in every shape."""
    if isinstance(to, str) and to in names_in(model):
        raise InputError(
            f"the model has a dimension '{to}' already", next_step=f"take another name, or fix '{name}' and '{to}'"
        )
    return checked(model, lambda one: _write(one, name, to), f"'{name}' cannot be {to}")


def checked(model: ir.Model, change: Callable[[ir.Model], int], what: str) -> int:
    """Make a change if, on a copy, the shapes still agree with each other after it."""
    if contradiction(model) is None:
        trial = model.clone()
        change(trial)
        wrong = contradiction(trial)
        if wrong is not None:
            raise InputError(f"{what}: {wrong}", next_step="give a size that fits the model's weights and constants")
    changed = change(model)
    _work_out(model)
    return changed


def _write(model: ir.Model, name: str, to: int | str) -> int:
    changed = 0
    for value in each_value(model):
        if value.shape is None:
            continue
        dims = [d if isinstance(d, int) else _with(d, name, to) for d in value.shape]
        if dims != list(value.shape):
            value.shape = ir.Shape(dims)
            changed += 1
    return changed


def _with(dim: ir.SymbolicDim, name: str, to: int | str) -> int | str | ir.SymbolicDim:
    if dim.value == name:
        return to
    if dim.value is None or name not in _symbols(dim):
        return dim
    if isinstance(to, int):
        return dim.evaluate({name: to})
    import sympy

    expression = dim._expr
    assert expression is not None
    symbol = next(s for s in expression.free_symbols if str(s) == name)
    return ir.SymbolicDim(expression.subs(symbol, sympy.Symbol(to, integer=True, positive=True)))


def _work_out(model: ir.Model) -> None:
    """Sizes that are known now and were not."""
    shapes = Shapes(model)
    for graph in model.graphs():
        for value in values_of(graph):
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
