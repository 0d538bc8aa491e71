"""What the steps before and behind a model have in common: their names, types and layouts, and what each does."""

from __future__ import annotations

import difflib
from typing import Any

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.image_steps import Images, order_of

ARITHMETIC = {"scale": "Div", "multiply": "Mul", "divide": "Div", "add": "Add", "subtract": "Sub"}
_LAYOUTS = {1: "C", 2: "NC", 3: "NCL", 4: "NCHW", 5: "NCDHW"}


def chosen(values: list[ir.Value], name: str | None, what: str) -> ir.Value:
    names = [str(v.name) for v in values]
    if name is None and len(values) == 1:
        return values[0]
    if name in names:
        return values[names.index(str(name))]
    if name is None:
        raise InputError(f"the model has {len(values)} {what}s", next_step=f"say which: {', '.join(names)}")
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names
    raise InputError(f"the model has no {what} '{name}'", next_step=f"did you mean {', '.join(close)}?")


def read_type(value: Any) -> ir.DataType:
    names = {d.name.lower(): d for d in ir.DataType} | {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}
    found = names.get(str(value).lower())
    if found is None or found == ir.DataType.UNDEFINED:
        close = difflib.get_close_matches(str(value), list(names), n=3, cutoff=0.5)
        raise InputError(
            f"there is no type '{value}'", next_step=f"did you mean {', '.join(close or ['float32', 'uint8'])}?"
        )
    return found


def layout_of(shape: ir.Shape) -> str:
    """A letter for each axis; images are told by where their channels, 1, 3 or 4, are."""
    last = len(shape) == 4 and shape[1] not in (1, 3, 4) and shape[3] in (1, 3, 4)
    return "NHWC" if last else _LAYOUTS.get(len(shape), "N" * (len(shape) - 1) + "C")


def apply_step(images: Images, name: str, value: Any, x: ir.Value) -> ir.Value:
    if name == "cast":
        return images.b.cast(x, read_type(value))
    if name in ARITHMETIC:
        return _computed(images, name, value, x)
    if name == "transpose":
        return images.transposed(x, order_of(value, images.layout)[0])
    do = {
        "normalize": images.normalize,
        "resize": images.resized,
        "letterbox": images.letterboxed,
        "crop": images.cropped,
        "pad": images.padded,
        "swap_channels": images.swapped,
    }
    return do[name](x, value)


def _computed(images: Images, name: str, value: Any, x: ir.Value) -> ir.Value:
    if name in ("scale", "divide") and value in (0, 0.0):
        raise InputError(f"the step '{name}' cannot divide by 0")
    return images.arithmetic(x, ARITHMETIC[name], value, name)
