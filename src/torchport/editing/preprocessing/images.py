"""Image steps of a preprocessing, and the kinds of steps there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import InputError, did_you_mean
from torchport.irtools.builder import Builder
from torchport.tensors import Array

# Steps that prepare images: what each adds to the graph, and what shape it must be given.
#
# The numbers are PyTorch's and torchvision's: half-pixel centers, antialiasing as told, crops from the middle.

Dims = list[int | str | None]
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_NUMPY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}
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
        self._colors: list[Callable[[Array], Array]] = []  # what the steps did to the color of a pixel

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
        given = np.array(numbers(value, step))
        self._colors.append(lambda color: _NUMPY[op](color, given))
        return self.b.op(op, x, self.per_channel(numbers(value, step), x, step))

    def _colored(self, fill: float) -> list[float]:
        """Return what the steps so far made of a color of the image: one number, or one for each channel."""
        color = np.array([fill])
        for change in self._colors:
            color = change(color)
        return [float(number) for number in (color[:1] if np.all(color == color[0]) else color)]

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
        places = [before.index(c) for c in after]
        self._colors.append(lambda color: color[places] if color.size > 1 else color)
        order = self.b.ints(places)
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
            shown = pair(shorter, "resize")[0] if shorter else 0
            sides = self.b.ints(size) if size else shorter_side(self.b, self._sides(image), shown)
            found = self._resize(image, sides, **marks)
            if image.shape is not None:
                found.shape = ir.Shape([*image.shape[:2], *(size or (None, None))])
            return found

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
        # All four sizes, not `axes`: ONNX Runtime moves a transpose across Resize as if there were always four.
        outer = self.b.slice(self.b.op("Shape", x), 0, 2)
        unused = None if self.b.opset >= 13 else self.b.constant(np.zeros(0), np.float32)
        return self.b.op("Resize", x, unused, unused, self.b.op("Concat", outer, sides, axis=0), **marks)

    def _sides(self, x: ir.Value) -> ir.Value:
        return self.b.slice(self.b.op("Shape", x), 2, 4)

    def letterboxed(self, x: ir.Value, value: Any) -> ir.Value:
        """The whole image inside a box, its ratio kept, the rest filled with a color of the image as it was given."""
        given = options(value, "size", {"size": None, "fill": 114, "mode": "linear", "antialias": False}, "letterbox")
        size, marks = pair(given["size"], "letterbox"), self._mode(given["mode"], bool(given["antialias"]))
        fill = self._colored(numbers(given["fill"], "letterbox")[0])

        def change(image: ir.Value) -> ir.Value:
            b = self.b
            whole, before, rest = fitted(b, self._sides(image), size)
            zeros = b.ints([0, 0])
            pads = b.op("Concat", zeros, before, zeros, b.op("Sub", rest, before), axis=0)
            inner = self._resize(image, whole, **marks)
            if len(fill) == 1:
                return self._pad(inner, pads, fill[0])
            assert inner.dtype is not None
            color = b.constant(np.array(fill).reshape(-1, 1, 1), inner.dtype.numpy())  # Pad has one number for all
            return b.op("Add", self._pad(b.op("Sub", inner, color), pads, 0.0), color)

        return self.in_chw(self.floating(x), change)

    def cropped(self, x: ir.Value, value: Any) -> ir.Value:
        """The middle, as torchvision's CenterCrop takes it. A smaller image gives what it has."""
        size = pair(value, "crop")

        def change(image: ir.Value) -> ir.Value:
            b = self.b
            start = crop_start(b, self._sides(image), size)
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


def fitted(b: Builder, sides: ir.Value, size: list[int]) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the sides of an image inside a box, its ratio kept; what is left of the box before it, and in all."""
    floats, box = b.cast(sides, ir.DataType.FLOAT), b.constant(size, np.float32)
    scale = b.reduce("ReduceMin", b.op("Div", box, floats), [0])
    near = b.op("Floor", b.op("Add", b.op("Mul", floats, scale), b.constant([0.5], np.float32)))
    whole = b.cast(b.op("Min", b.op("Max", near, b.constant([1.0], np.float32)), box), ir.DataType.INT64)
    rest = b.op("Sub", b.ints(size), whole)  # `Min`: not beyond the box by rounding
    return whole, b.op("Div", rest, b.ints([2])), rest


def shorter_side(b: Builder, sides: ir.Value, size: int) -> ir.Value:
    """Return the sides whose shorter is `size`, the longer ``size * longer // shorter``."""
    short = b.reduce("ReduceMin", sides, [0])
    return b.op("Div", b.op("Mul", sides, b.ints([size])), short)


def crop_start(b: Builder, sides: ir.Value, size: list[int]) -> ir.Value:
    """Return where the middle begins, as torchvision's CenterCrop takes it."""
    rest = b.cast(b.op("Sub", sides, b.ints(size)), ir.DataType.FLOAT)
    half = b.op("Round", b.op("Div", rest, b.constant([2.0], np.float32)))
    return b.cast(b.op("Max", half, b.constant([0.0], np.float32)), ir.DataType.INT64)


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
