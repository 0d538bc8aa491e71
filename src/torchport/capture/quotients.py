"""Capture sizes that a model takes at multiples of a number only by their quotients.

A network that halves a picture five times takes heights that are multiples of 32. Torch knows nothing of that: whether
`(h + 1) // 2 * 2` is `h` it decides by the example and notes a guard, size after size, and formulas grow. With `32 * k`
for `h` all of that is plain arithmetic. So the axis is given to torch in two, of `k` and of 32, and the model gets it
joined. The ONNX model has the axis as it was: what reads the size `k` divides the input's size by 32.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchport.capture.dynamic_dims import InputDims
from torchport.capture.structure import Call
from torchport.irtools.names import FreshNames
from torchport.irtools.traversal import all_values
from torchport.results import Dim


@dataclasses.dataclass(frozen=True)
class Quotient(Dim):
    """How often a number goes into a dimension: what torch sees of it.

    Attributes:
        factor: the number.
    """

    factor: int = 1

    def size(self, root_size: int) -> int:
        return root_size // self.factor

    def root_size(self, size: int) -> int | None:
        return size * self.factor

    def allows(self, root_size: int) -> bool:
        return root_size % self.factor == 0 and super().allows(root_size)


@dataclasses.dataclass(frozen=True)
class Split:
    """An axis of an input that torch gets in two.

    Attributes:
        axis: of the input.
        number: the size of the second part; that of the first varies.
        dim: the dimension of the axis.
        step: the number that the dimension's root is a multiple of.
    """

    axis: int
    number: int
    dim: Dim
    step: int


Splits = Mapping[str, Sequence[Split]]  # by input, its axes in order


def splits_of(dims: InputDims, steps: Mapping[str, int]) -> Splits:
    """Return the axes to give to torch in two.

    Args:
        dims: the axes that vary.
        steps: by root dimension the number that PyTorch takes multiples of.
    """
    shifted = {dim.root for axes in dims.values() for dim in axes.values() if dim.offset}
    found = {
        name: [
            Split(axis, dim.scale * steps.get(dim.root, 1), dim, steps.get(dim.root, 1))
            for axis, dim in sorted(axes.items())
            if dim.root not in shifted and dim.scale * steps.get(dim.root, 1) > 1
        ]
        for name, axes in dims.items()
    }
    return {name: splits for name, splits in found.items() if splits}


def fits(names: Sequence[str], tensors: Sequence[torch.Tensor], splits: Splits) -> bool:
    """Check that tensors can be captured with: sizes are multiples, and more than one time the number, as torch freezes
    a size of 1."""
    by_name = dict(zip(names, tensors, strict=True))
    sizes = [(by_name[name].shape[split.axis], split.number) for name, own in splits.items() for split in own]
    return all(size % number == 0 and size > number for size, number in sizes)


def split_tensors(names: Sequence[str], tensors: Sequence[torch.Tensor], splits: Splits) -> tuple[torch.Tensor, ...]:
    """Return the tensors with axes in two."""
    found: list[torch.Tensor] = []
    for name, tensor in zip(names, tensors, strict=True):
        for split in reversed(splits.get(name, ())):
            tensor = tensor.unflatten(split.axis, (-1, split.number))
        found.append(tensor)
    return tuple(found)


def _place(axis: int, splits: Sequence[Split]) -> int:
    """Where an axis is, or begins, when those before it are in two."""
    return axis + sum(split.axis < axis for split in splits)


def whole_axis(axis: int, splits: Sequence[Split]) -> int:
    """Return the axis of the input that an axis of the tensor that torch gets belongs to."""
    return axis - sum(_place(split.axis, splits) < axis for split in splits)


def split_dims(axes: Mapping[int, Dim], splits: Sequence[Split]) -> dict[int, Dim]:
    """Return the dimensions by the axes of what torch gets."""
    by_axis = {split.axis: split for split in splits}
    found: dict[int, Dim] = {}
    for axis, dim in axes.items():
        split = by_axis.get(axis)
        if split is not None:
            dim = Quotient(dim.root, dim.min, dim.max, dim.root, factor=split.step)
        found[_place(axis, splits)] = dim
    return found


class Joining(Call):
    """A call that takes tensors with axes in two.

    Args:
        call: takes whole tensors.
        splits: the axes.
    """

    def __init__(self, call: Call, splits: Splits) -> None:
        vars(self).update(vars(call))
        self._whole, self._splits = call, splits
        self.tensors = list(split_tensors(call.names, call.tensors, splits))

    def __call__(self, *tensors: torch.Tensor) -> Any:
        joined = [_joined_axes(t, self._splits.get(name, ())) for name, t in zip(self.names, tensors, strict=True)]
        return self._whole(*joined)


def _joined_axes(tensor: torch.Tensor, splits: Sequence[Split]) -> torch.Tensor:
    """The whole tensor, by one reshape: the graph is then free of it."""
    sizes = list(tensor.shape)
    for split in splits:  # in order, so that those behind are in place
        sizes[split.axis : split.axis + 2] = [sizes[split.axis] * split.number]
    return tensor.reshape(sizes) if splits else tensor


# The captured model, with whole axes.


def join_inputs(model: ir.Model, names: Sequence[str], splits: Splits) -> None:
    """Give the inputs of a captured model their whole axes.

    Args:
        model: as captured.
        names: of the inputs, in order.
        splits: the axes that torch got in two.
    """
    if not splits:
        return
    symbols: dict[str, Split] = {}
    inputs = list(model.graph.inputs)
    for position, name in enumerate(names):
        if name in splits:
            inputs[position], own = _joined(model, inputs[position], splits[name])
            symbols |= own
    while model.graph.inputs:
        model.graph.inputs.pop()  # an item that is replaced would go on to count as an input (onnx-ir 1.1)
    model.graph.inputs.extend(inputs)
    for value in all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_in_whole(dim, symbols) for dim in value.shape])


def _joined(model: ir.Model, taken: ir.Value, splits: Sequence[Split]) -> tuple[ir.Value, dict[str, Split]]:
    """Replace an input by one with whole axes; return that one, and the symbols of its quotients."""
    shape, fresh = list(taken.shape or ()), FreshNames(model.graph).fresh
    symbols: dict[str, Split] = {}
    whole: list[Any] = []
    parts: dict[int, tuple[int, Split | None]] = {}  # by axis of what torch got: the input's axis, with its split
    for axis in range(len(shape) - len(splits)):
        split = next((s for s in splits if s.axis == axis), None)
        place = _place(axis, splits)
        parts[place] = (axis, split)
        symbol = _text(shape[place])
        if split is None:
            whole.append(shape[place])
            continue
        whole.append(f"{split.number}*{symbol}" if symbol.isidentifier() else None)
        symbols |= {symbol: split} if symbol.isidentifier() else {}
    given = ir.Value(name=taken.name, type=taken.type, shape=ir.Shape(whole))
    taken.name = fresh(f"{taken.name}_parts")
    sizes, replaced = _Sizes(model, given, parts, len(shape), fresh), []
    for node, index in list(taken.uses()):
        if node.op_type == "Shape" and node.domain == "":
            node.outputs[0].replace_all_uses_with(sizes.of(node), replace_graph_outputs=True)
            replaced.append(node)
        elif node.op_type == "Reshape" and index == 0 and _texts(node.outputs[0].shape) == _texts(given.shape):
            node.outputs[0].replace_all_uses_with(given, replace_graph_outputs=True)
            replaced.append(node)
        else:
            node.replace_input_with(index, sizes.parts())
    for node in replaced:
        assert node.graph is not None
        node.graph.remove(node, safe=True)
    return given, symbols


class _Sizes:
    """The sizes of what torch got, computed from those of the input."""

    def __init__(
        self, model: ir.Model, given: ir.Value, parts: Mapping[int, tuple[int, Split | None]], rank: int, fresh: Any
    ) -> None:
        self._graph, self._given, self._parts, self._rank, self._fresh = model.graph, given, parts, rank, fresh
        self._made: dict[tuple[int, int], ir.Value] = {}
        self._first = next(iter(model.graph), None)
        self._shaped: ir.Value | None = None

    def of(self, node: ir.Node) -> ir.Value:
        """Return the sizes that a Shape of it gives."""
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", self._rank)
        start, end = (n + self._rank if n < 0 else min(n, self._rank) for n in (start, end))
        return self._between(start, end)

    def parts(self) -> ir.Value:
        """Return the input with its axes in two."""
        if self._shaped is None:
            self._shaped = self._add("Reshape", [self._given, self._between(0, self._rank)], "parts")
        return self._shaped

    def _between(self, start: int, end: int) -> ir.Value:
        key = (start, end)
        if key not in self._made:
            rows = [self._row(axis) for axis in range(start, end)]
            self._made[key] = rows[0] if len(rows) == 1 else self._add("Concat", rows, "sizes", axis=0)
        return self._made[key]

    def _row(self, axis: int) -> ir.Value:
        if axis not in self._parts:  # the second part of an axis
            split = self._parts[axis - 1][1]
            assert split is not None
            return self._constant(split.number)
        whole, split = self._parts[axis]
        size = self._add("Shape", [self._given], "size", start=whole, end=whole + 1)
        return size if split is None else self._add("Div", [size, self._constant(split.number)], "quotient")

    def _constant(self, number: int) -> ir.Value:
        return self._add("Constant", [], "number", value=ir.tensor([number], dtype=ir.DataType.INT64))

    def _add(self, operator: str, inputs: Sequence[ir.Value], name: str, **attributes: Any) -> ir.Value:
        node = ir.node(operator, list(inputs), attributes)
        node.outputs[0].name = self._fresh(f"{self._given.name}_{name}")
        node.name = f"node_{node.outputs[0].name}"
        if self._first is None:
            self._graph.append(node)
        else:
            self._graph.insert_before(self._first, node)
        return node.outputs[0]


def _text(dim: Any) -> str:
    return dim.value or "" if isinstance(dim, ir.SymbolicDim) else ""


def _texts(shape: ir.Shape | None) -> list[str]:
    return [str(dim.value if isinstance(dim, ir.SymbolicDim) else dim).replace(" ", "") for dim in shape or ()]


_TIMES = re.compile(r"(\d+)\*(\w+)")


def _in_whole(dim: Any, symbols: Mapping[str, Split]) -> Any:
    """A size in terms of the dimension instead of its quotient: with `s` for height / 32, `64*s` is `2*height`.

    The dimension's root has the quotient's symbol with `_root` behind it, until it gets its name.
    """
    text = _text(dim)
    if not text or not any(re.search(rf"\b{symbol}\b", text) for symbol in symbols):
        return dim
    times = _TIMES.fullmatch(text.replace(" ", ""))
    symbol, count = (times[2], int(times[1])) if times else (text, 1)
    split = symbols.get(symbol)
    if split is not None:
        root = root_symbol(symbol, split)
        if count % split.step == 0:
            return f"{count // split.step}*{root}" if count > split.step else root
        return f"({count}*{root}//{split.step})" if count > 1 else f"({root}//{split.step})"
    return re.sub(
        r"[A-Za-z_]\w*",
        lambda m: f"({root_symbol(m[0], symbols[m[0]])}//{symbols[m[0]].step})" if m[0] in symbols else m[0],
        text,
    )


def root_symbol(symbol: str, split: Split) -> str:
    """Return the symbol of the root of a dimension whose quotient has this one."""
    return symbol if split.step == 1 else f"{symbol}_root"
