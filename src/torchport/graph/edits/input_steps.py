"""What stands in front of an input: its new shape and type, and the nodes of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.image_steps import Dims, Images, letters, options, order_of, pad_sizes
from torchport.graph.edits.output_steps import Step
from torchport.graph.edits.step_kinds import apply_step, read_type
from torchport.irtools.builder import Builder

_FREES_SIZE = ("resize", "letterbox", "crop")


def side_names(model: ir.Model, old: ir.Value) -> tuple[str, str]:
    """Names for the sides of an image of any size, which no other input has."""
    others = {d.value for v in model.graph.inputs for d in v.shape or () if not isinstance(d, int)}
    taken = bool(others & {"height", "width"})
    return (f"{old.name}_height", f"{old.name}_width") if taken else ("height", "width")


def backwards(plan: Sequence[Step], after: list[Any], layout: str, sides: tuple[str, str]) -> tuple[Dims, str]:
    """The shape and layout in front of all steps, from those behind them."""
    dims: Dims = [d if isinstance(d, int) else d.value for d in after]
    for name, value in reversed(plan):
        if name == "transpose":
            order, said = order_of(value, layout)
            if len(order) != len(dims):
                raise InputError(f"the step 'transpose' has {len(order)} axes, the input {len(dims)}")
            dims = [dims[order.index(n)] for n in range(len(dims))]
            layout = said or "".join(layout[order.index(n)] for n in range(len(dims)))
        elif name == "swap_channels":
            dims[layout.index("C")] = len(letters(value, name)[0])
        elif name in (*_FREES_SIZE, "pad") and {"H", "W"} <= set(layout):
            dims = _sized(name, value, dims, layout, sides)
    return dims, layout


def _sized(name: str, value: Any, dims: Dims, layout: str, sides: tuple[str, str]) -> Dims:
    found = list(dims)
    axes = [layout.index("H"), layout.index("W")]
    if name == "pad":
        left, top, right, bottom = pad_sizes(options(value, "sizes", {"sizes": None, "fill": 0}, "pad")["sizes"])
        added = (top + bottom, left + right)
    else:
        added = (0, 0)
    for axis, free, extra in zip(axes, sides, added, strict=True):
        size = found[axis]
        found[axis] = size - extra if name == "pad" and isinstance(size, int) else free
    return found


def narrowed(dims: Dims, shape: Sequence[int | str | None] | None, name: str) -> ir.Shape:
    """The shape that follows from the steps, or the narrower one that is given."""
    if shape is None:
        return ir.Shape(dims)
    fits = len(shape) == len(dims) and all(
        b == a or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(dims, shape, strict=False)
    )
    if not fits:
        raise InputError(
            f"input '{name}' would be {dims} by its steps, not {list(shape)}", next_step="leave shape away"
        )
    return ir.Shape([b if b is not None else a for a, b in zip(dims, shape, strict=True)])


def dtype_before(plan: Sequence[Step], given: str | None, old: ir.Value) -> ir.DataType:
    """What is given; uint8 for an image that is cast first; the model's own otherwise."""
    assert old.dtype is not None
    if given is not None:
        return read_type(given)
    moves = ("transpose", "swap_channels", "crop", "pad")  # they keep the type
    first = next((name for name, _ in plan if name not in moves), "")
    return ir.DataType.UINT8 if first == "cast" else old.dtype


def before(b: Builder, plan: Sequence[Step], x: ir.Value, layout: str, old: ir.Value) -> ir.Value:
    """The steps one after the other, and a cast to what the model takes."""
    assert old.dtype is not None
    floats = old.dtype if old.dtype.is_floating_point() else ir.DataType.FLOAT
    images = Images(b, layout, floats)
    for name, value in plan:
        x = apply_step(images, name, value, x)
    return b.cast(x, old.dtype)


def check_fits(old: ir.Value, result: ir.Value) -> None:
    """What the steps give must be what the model takes."""
    if old.shape is None or result.shape is None:
        return
    both = list(zip(old.shape, result.shape, strict=False))
    if len(old.shape) != len(result.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in both
    ):
        raise InputError(
            f"the steps give {result.shape}, input '{old.name}' takes {old.shape}",
            next_step="resize or crop to the size the model takes, and transpose to its layout",
        )
