"""A value at two sizes of one dimension, and what is known of it at both."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TypeProto

from torchport.irtools.dims import evaluated
from torchport.irtools.evaluation import FEW
from torchport.tensors import Array

# What is known of each value at two sizes of one dimension: the size a model was made for, and another.
#
# Both sizes are numbers, so onnx's inference and its reference operators answer exactly: no algebra with names, which
# they lose at the first convolution or reshape. A value whose shape differs between the two holds the dimension.

Dims = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Fact:
    """One value at both sizes.

    Attributes:
        old: its type at the size the model was made for.
        new: its type at the other size.
        old_data: its numbers, where known and few.
        new_data: the same at the other size.
        sure: whether the numbers are those of the model, not of a size that was made up for another dimension.
        inner: for each axis, how many elements of it lie inside (after) the dimension, where it is folded with others.
    """

    old: TypeProto
    new: TypeProto
    old_data: Array | None = None
    new_data: Array | None = None
    sure: bool = True
    inner: tuple[int, ...] = ()

    @functools.cached_property
    def changed(self) -> bool:
        """Whether anything known of the value depends on the dimension."""
        if self.old is not self.new and self.old != self.new:
            return True
        if self.old_data is None or self.new_data is None:
            return (self.old_data is None) != (self.new_data is None)
        return self.old_data is not self.new_data and not np.array_equal(self.old_data, self.new_data)

    @property
    def constant(self) -> Array | None:
        """Its numbers where they are the same whatever the sizes are."""
        return self.old_data if self.sure and not self.changed else None

    @functools.cached_property
    def was(self) -> Dims | None:
        return dims_of(self.old)

    @functools.cached_property
    def now(self) -> Dims | None:
        return dims_of(self.new)

    @functools.cached_property
    def held(self) -> list[int]:
        """The axes that hold the dimension."""
        was, now = self.was, self.now
        if was is None or now is None or len(was) != len(now):
            return []
        return [axis for axis, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]

    def inner_of(self, axis: int) -> int:
        return self.inner[axis] if axis < len(self.inner) else 1


def dims_of(kind: TypeProto) -> Dims | None:
    """The shape of a tensor type; None where unknown or no tensor."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim)


def tensor_type(element: int, dims: Sequence[int | None] | None) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(element, None if dims is None else list(dims))


def settled_type(value: ir.Value, sizes: Mapping[str, int]) -> TypeProto:
    """The stated type of a value, numbers in the place of named dimensions."""
    kind = TypeProto()
    if value.type is None:
        return kind
    kind.CopyFrom(ir.serde.serialize_value(value).type)
    if kind.HasField("tensor_type"):
        for dim in kind.tensor_type.shape.dim:
            if dim.dim_param:
                size = evaluated(dim.dim_param, sizes)
                dim.Clear()
                if isinstance(size, int):
                    dim.dim_value = size
    return kind


def constant_fact(tensor: ir.TensorProtocol) -> Fact:
    """What is known of a weight: its data only if it is small."""
    kind = tensor_type(int(tensor.dtype), [int(d) for d in tensor.shape.numpy()])
    keep = tensor.size <= FEW and tensor.dtype != ir.DataType.STRING
    data = tensor.numpy() if keep else None
    return Fact(kind, kind, data, data)


def all_sure(given: list[Fact | None]) -> bool:
    """Whether the numbers of all are those of the model."""
    return all(f is None or f.sure for f in given)


def is_static(kind: TypeProto) -> bool:
    """Whether a type states every size."""
    dims = dims_of(kind)
    return dims is not None and None not in dims


def filled(kind: TypeProto, stated: TypeProto | None) -> TypeProto:
    """The type that was found, or the stated one where no shape was."""
    return stated if stated is not None and dims_of(kind) is None and stated.WhichOneof("value") else kind


def folded_as(old: TypeProto, new: TypeProto, given: list[Fact | None]) -> tuple[int, ...]:
    """An axis that is as an axis of an input was, at both sizes, is folded as that was."""
    was, now = dims_of(old), dims_of(new)
    if was is None or now is None or len(was) != len(now):
        return ()
    folded = {
        (f.was[axis], f.now[axis]): f.inner_of(axis)
        for f in given
        if f is not None and f.was and f.now
        for axis in f.held
    }
    return tuple(folded.get(pair, 1) for pair in zip(was, now, strict=True))


def likened(kind: TypeProto, given: list[Fact | None]) -> TypeProto | None:
    """The new type of what an unknown operator gives: shapes alike stay alike, and the first axis is the batch."""
    dims, held = dims_of(kind), [f for f in given if f is not None and f.held]
    alike = [f.now for f in held if f.was == dims]
    first = [f.now for f in held if f.held == [0] and dims and f.was and f.was[0] == dims[0]]
    if alike and dims is not None:
        return tensor_type(kind.tensor_type.elem_type, alike[0])
    if first and dims and first[0]:
        return tensor_type(kind.tensor_type.elem_type, [first[0][0], *dims[1:]])
    return None


def old_side(given: Sequence[Fact | None]) -> tuple[list[TypeProto | None], list[Array | None]]:
    """The types and the known numbers of some values at the old size."""
    return [None if f is None else f.old for f in given], [None if f is None else f.old_data for f in given]


def new_side(given: Sequence[Fact | None]) -> tuple[list[TypeProto | None], list[Array | None]]:
    """The same at the new size."""
    return [None if f is None else f.new for f in given], [None if f is None else f.new_data for f in given]


# What a walk through a graph begins with: the sizes to walk at, and how to read what can be read in several ways.


@dataclasses.dataclass
class Picks:
    """Which of several ways to read a node is taken, in the order they are met: the likeliest, until that fails."""

    taken: list[int] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)

    def pick(self, options: int) -> int:
        self.counts.append(options)
        if len(self.counts) > len(self.taken):
            self.taken.append(0)
        return self.taken[len(self.counts) - 1]

    def next(self) -> Picks | None:
        """The ways to try after these failed, the last one changed first."""
        for at in reversed(range(len(self.counts))):
            if self.taken[at] + 1 < self.counts[at]:
                return Picks([*self.taken[:at], self.taken[at] + 1])
        return None


@dataclasses.dataclass(frozen=True)
class Probe:
    """The sizes to walk with: of the dimension before and now, and of every other one, which stay."""

    places: tuple[tuple[str, int], ...]
    name: str
    was: int
    now: int
    others: Mapping[str, int]

    @property
    def old(self) -> dict[str, int]:
        return {**self.others, self.name: self.was}

    @property
    def new(self) -> dict[str, int]:
        return {**self.others, self.name: self.now}
