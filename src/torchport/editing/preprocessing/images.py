"""Image steps of a preprocessing, and the kinds of steps there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import InputError, did_you_mean
from torchport.irtools.builder import Builder

# Steps that prepare images: what each adds to the graph, and what shape it must be given.
#
# The numbers are PyTorch's and torchvision's: half-pixel centers, antialiasing as told, crops from the middle.

Dims = list[int | str | None]
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_FLOATS = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def options(value: Any, main: str, allowed: Mapping[str, Any], step: str) -> dict[str, Any]:
    """The options of a step: a mapping, or the value of its main one alone."""
    given = dict(value) if isinstance(value, Mapping) else ({} if value is None else {main: value})
    wrong = [str(name) for name in given if name not in allowed]
    if wrong:
        raise InputError(
            f"the step '{step}' has no option '{wrong[0]}'", next_step=f"its options: {', '.join(allowed)}"
        )
    return {**allowed, **given}


def pair(value: Any, step: str) -> list[int]:
    """Height and width."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return [value, value]
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(v, int) and v > 0 for v in value):
        return [int(v) for v in value]
    raise InputError(
        f"the step '{step}' takes a height and a width, not {value!r}", next_step=f"such as {step}: [224, 224]"
    )


def numbers(value: Any, step: str) -> list[float]:
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not given or any(isinstance(v, (bool, str)) or not isinstance(v, (int, float)) for v in given):
        raise InputError(f"the step '{step}' takes a number, or one for each channel, not {value!r}")
    return [float(v) for v in given]


class Images:
    """Adds steps to a graph.

    Attributes:
        b: what builds the nodes.
        layout: a letter for each axis of the image: ``NCHW``.
        to: the float type to compute in.
    """

    def __init__(self, b: Builder, layout: str, to: ir.DataType) -> None:
        self.b, self.layout, self.to = b, layout, to

    def floating(self, x: ir.Value) -> ir.Value:
        """Numbers that can be computed with: whole ones become the model's floats."""
        return x if x.dtype in _FLOATS else self.b.cast(x, self.to)

    def per_channel(self, values: list[float], x: ir.Value, step: str) -> ir.Value:
        axis, rank = self.layout.index("C"), len(self.layout)
        channels = None if x.shape is None else x.shape[axis]
        if len(values) > 1 and isinstance(channels, int) and channels != len(values):
            raise InputError(
                f"the step '{step}' has {len(values)} numbers, the image {channels} channels",
                where=f"layout {self.layout}",
                next_step="give one number for each channel, or put the step before or after the transpose",
            )
        shape = [len(values)] + [1] * (rank - axis - 1) if len(values) > 1 else []
        assert x.dtype is not None
        return self.b.constant(np.array(values).reshape(shape), x.dtype.numpy())

    def arithmetic(self, x: ir.Value, op: str, value: Any, step: str) -> ir.Value:
        x = self.floating(x)
        return self.b.op(op, x, self.per_channel(numbers(value, step), x, step))

    def normalize(self, x: ir.Value, value: Any) -> ir.Value:
        given = IMAGENET if value == "imagenet" else value
        if not isinstance(given, Mapping) or set(given) != {"mean", "std"}:
            raise InputError(
                f"the step 'normalize' takes mean and std, not {value!r}",
                next_step="such as normalize: imagenet, or normalize: {mean: [0.5], std: [0.5]}",
            )
        if 0 in numbers(given["std"], "normalize"):
            raise InputError("the step 'normalize' cannot divide by a std of 0")
        return self.arithmetic(self.arithmetic(x, "Sub", given["mean"], "normalize"), "Div", given["std"], "normalize")

    def swapped(self, x: ir.Value, value: Any) -> ir.Value:
        before, after = letters(value, "swap_channels")
        order = self.b.ints([before.index(c) for c in after])
        return self.b.op("Gather", x, order, axis=self.layout.index("C"))

    def transposed(self, x: ir.Value, order: list[int]) -> ir.Value:
        self.layout = "".join(self.layout[n] for n in order)
        return self.b.op("Transpose", x, perm=order)

    # --- size ---

    def in_chw(self, x: ir.Value, change: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """Done in the layout that every engine has kernels for."""
        self.check_image()
        if self.layout == "NCHW":
            return change(x)
        there = [self.layout.index(c) for c in "NCHW"]
        back = ["NCHW".index(c) for c in self.layout]
        return self.b.op("Transpose", change(self.b.op("Transpose", x, perm=there)), perm=back)

    def check_image(self) -> None:
        if sorted(self.layout) != sorted("NCHW"):
            raise InputError(
                f"images have four axes, this input has {len(self.layout)}",
                next_step="take steps that do not resize, crop or pad",
            )

    def resized(self, x: ir.Value, value: Any) -> ir.Value:
        plain = value if isinstance(value, Mapping) else {"size": value}
        given = options(plain, "size", {"size": None, "mode": "linear", "antialias": False}, "resize")
        shorter = given["size"] if isinstance(given["size"], int) else None
        size = None if shorter else pair(given["size"], "resize")
        marks = self._mode(given["mode"], bool(given["antialias"]))

        def change(image: ir.Value) -> ir.Value:
            sides = self.b.ints(size) if size else self._shorter_side(image, pair(shorter, "resize")[0])
            return self._resize(image, sides, **marks)

        return self.in_chw(x if given["mode"] == "nearest" else self.floating(x), change)

    def _mode(self, mode: Any, antialias: bool) -> dict[str, Any]:
        if mode not in ("linear", "nearest", "cubic"):
            raise InputError(f"the step 'resize' has no mode {mode!r}", next_step="linear, nearest or cubic")
        if antialias and mode == "nearest":
            raise InputError(
                "the step 'resize' cannot antialias in mode nearest", next_step="take mode linear or cubic"
            )
        if antialias and self.b.opset < 18:
            raise _too_old("an antialiased resize", self.b.opset)
        if mode == "nearest":
            return {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        cubic = {"cubic_coeff_a": -0.5 if antialias else -0.75} if mode == "cubic" else {}
        smooth = {"antialias": 1, "exclude_outside": 1} if antialias else {}
        return {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel", **cubic, **smooth}

    def _resize(self, x: ir.Value, sides: ir.Value, **marks: Any) -> ir.Value:
        if self.b.opset >= 18:
            return self.b.op("Resize", x, None, None, sides, axes=[2, 3], **marks)
        outer = self.b.slice(self.b.op("Shape", x), 0, 2)
        unused = None if self.b.opset >= 13 else self.b.constant(np.zeros(0), np.float32)
        return self.b.op("Resize", x, unused, unused, self.b.op("Concat", outer, sides, axis=0), **marks)

    def _sides(self, x: ir.Value) -> ir.Value:
        return self.b.slice(self.b.op("Shape", x), 2, 4)

    def _shorter_side(self, x: ir.Value, size: int) -> ir.Value:
        """The shorter side becomes `size`, the longer ``size * longer // shorter``."""
        sides = self._sides(x)
        short = self.b.reduce("ReduceMin", sides, [0])
        return self.b.op("Div", self.b.op("Mul", sides, self.b.ints([size])), short)

    def letterboxed(self, x: ir.Value, value: Any) -> ir.Value:
        """The whole image inside a box, its ratio kept, the rest filled."""
        given = options(value, "size", {"size": None, "fill": 114, "mode": "linear", "antialias": False}, "letterbox")
        size, marks = pair(given["size"], "letterbox"), self._mode(given["mode"], bool(given["antialias"]))
        fill = numbers(given["fill"], "letterbox")[0]

        def change(image: ir.Value) -> ir.Value:
            b = self.b
            sides, box = b.cast(self._sides(image), ir.DataType.FLOAT), b.constant(size, np.float32)
            scale = b.reduce("ReduceMin", b.op("Div", box, sides), [0])
            near = b.op("Floor", b.op("Add", b.op("Mul", sides, scale), b.constant([0.5], np.float32)))
            fitted = b.op("Min", b.op("Max", near, b.constant([1.0], np.float32)), box)  # not beyond it by rounding
            whole = b.cast(fitted, ir.DataType.INT64)
            rest = b.op("Sub", b.ints(size), whole)
            before = b.op("Div", rest, b.ints([2]))
            zeros = b.ints([0, 0])
            pads = b.op("Concat", zeros, before, zeros, b.op("Sub", rest, before), axis=0)
            return self._pad(self._resize(image, whole, **marks), pads, fill)

        return self.in_chw(self.floating(x), change)

    def cropped(self, x: ir.Value, value: Any) -> ir.Value:
        """The middle, as torchvision's CenterCrop takes it. A smaller image gives what it has."""
        size = pair(value, "crop")

        def change(image: ir.Value) -> ir.Value:
            b = self.b
            rest = b.cast(b.op("Sub", self._sides(image), b.ints(size)), ir.DataType.FLOAT)
            half = b.cast(b.op("Round", b.op("Div", rest, b.constant([2.0], np.float32))), ir.DataType.INT64)
            start = b.op("Max", half, b.ints([0])) if b.opset >= 12 else half
            return b.op("Slice", image, start, b.op("Add", start, b.ints(size)), b.ints([2, 3]))

        return self.in_chw(x, change)

    def padded(self, x: ir.Value, value: Any) -> ir.Value:
        given = options(value, "sizes", {"sizes": None, "fill": 0}, "pad")
        left, top, right, bottom = pad_sizes(given["sizes"])
        fill = numbers(given["fill"], "pad")[0]
        pads = self.b.ints([0, 0, top, left, 0, 0, bottom, right])
        return self.in_chw(x, lambda image: self._pad(image, pads, fill))

    def _pad(self, x: ir.Value, pads: ir.Value, fill: float) -> ir.Value:
        return self.b.op("Pad", x, pads, self.b.scalar_like(fill, x), mode="constant")


def pad_sizes(value: Any) -> tuple[int, int, int, int]:
    """Left, top, right, bottom, as torchvision has them; or one number for all, or two for the sides."""
    given = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in given)
    if not whole or len(given) not in (1, 2, 4):
        raise InputError(
            f"the step 'pad' takes left, top, right, bottom, not {value!r}", next_step="such as pad: [2, 2, 2, 2]"
        )
    full = given * (4 // len(given))
    return full[0], full[1], full[2], full[3]


def letters(value: Any, step: str) -> tuple[str, str]:
    """``BGR->RGB`` as both sides."""
    before, arrow, after = str(value).replace(" ", "").upper().partition("->")
    if not arrow or not before or not after or set(after) - set(before) or len(set(before)) < len(before):
        hint = "NHWC->NCHW" if step == "transpose" else "BGR->RGB"
        raise InputError(
            f"the step '{step}' takes two orders of the same letters, not {value!r}", next_step=f"such as {hint}"
        )
    return before, after


def order_of(value: Any, layout: str) -> tuple[list[int], str | None]:
    """The permutation a transpose means, and the layout before it where that is said."""
    if isinstance(value, str):
        before, after = letters(value, "transpose")
        if len(before) == len(after):
            return [before.index(c) for c in after], before
    elif isinstance(value, Sequence) and sorted(value) == list(range(len(layout))):
        return [int(n) for n in value], None
    raise InputError(
        f"the step 'transpose' takes an order of {len(layout)} axes, not {value!r}",
        next_step="such as NHWC->NCHW or [0, 3, 1, 2]",
    )


def _too_old(what: str, opset: int) -> InputError:
    return InputError(
        f"{what} needs opset 18, the model has {opset}", next_step="raise it first: `torchport edit --set-opset 18`"
    )


# What the steps before and behind a model have in common: their names, types and layouts, and what each does.

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
    hint = did_you_mean(name, names, f"did you mean {', '.join(names)}?")
    raise InputError(f"the model has no {what} '{name}'", next_step=hint)


def read_type(value: Any) -> ir.DataType:
    names = {d.name.lower(): d for d in ir.DataType} | {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}
    found = names.get(str(value).lower())
    if found is None or found == ir.DataType.UNDEFINED:
        hint = did_you_mean(str(value), names, "did you mean float32, uint8?")
        raise InputError(f"there is no type '{value}'", next_step=hint)
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
