"""Bring the results of two branches, or of two rounds of a loop, to the same tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchport.capture.control_flow.dynamic_lists import (
    Columns,
    OpenList,
    Ragged,
    Rows,
    as_number_tensor as as_number_tensor,
)
from torchport.errors import RewriteError
from torchport.torch_compat.higher_order import symbols_of
from torchport.torch_compat.shape_env import is_from_values, truth_number
from torchport.torch_compat.tracing import tree_flatten


class Unset:
    """Stands for a variable that has no value, or has one on one side of an `if` only. Any use says so."""

    def __init__(self, why: str = "") -> None:
        object.__setattr__(self, "_why", why or "a variable is used that has no value here")

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise RewriteError(object.__getattribute__(self, "_why"))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, Unset):
                value._refuse()
        return func(*args, **(kwargs or {}))

    __getattr__ = __call__ = __bool__ = __len__ = __iter__ = __getitem__ = __setitem__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __floordiv__ = __pow__ = __matmul__ = _refuse


UNSET = Unset()

Number = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def number_type(value: Any) -> torch.dtype:
    """The type a Python number has as a tensor."""
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    return torch.get_default_dtype()


def from_number_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    """What the user's code gets for a number that became a tensor: whole numbers may be sizes, so they are numbers."""
    return tensor.item() if dtype is torch.int64 else tensor


def same(left: Any, right: Any) -> bool:
    """Whether two values that are no tensors are one constant."""
    if left is right:
        return True
    if isinstance(left, (torch.Tensor, Unset, OpenList)) or isinstance(right, (torch.Tensor, Unset, OpenList)):
        return False
    if isinstance(left, (torch.SymInt, torch.SymFloat)) or isinstance(right, (torch.SymInt, torch.SymFloat)):
        if not isinstance(left, Number) or not isinstance(right, Number):
            return False
        return str(left) == str(right)
    return type(left) is type(right) and bool(left == right)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """How one value is carried.

    Attributes:
        kind: ``constant``, ``unset``, ``tensor``, ``number`` or ``rows``.
        value: the constant, or why there is no value.
        dtype: of the tensor.
        sizes: of the tensor, to fill in where there is no value.
        numbers: whether a list holds whole numbers.
    """

    kind: str
    value: Any = None
    dtype: torch.dtype = torch.float32
    sizes: tuple[Any, ...] = ()
    numbers: bool = False

    def to_tensor(self, value: Any) -> torch.Tensor:
        if isinstance(value, Unset):  # nothing reads it on this side, or PyTorch itself would fail
            return torch.zeros(self.sizes, dtype=self.dtype)
        if self.kind == "rows":
            if type(value) is list and not value:
                return torch.zeros(self.sizes, dtype=self.dtype)
            return value.tensor() if isinstance(value, Rows) else stacked(value)
        if isinstance(value, torch.Tensor):
            return value
        return as_number_tensor(value, self.dtype)

    def from_tensor(self, tensor: torch.Tensor) -> Any:
        if self.kind == "rows":
            return Rows(tensor, numbers=self.numbers)
        return from_number_tensor(tensor, self.dtype) if self.kind == "number" else tensor


def stacked(items: Sequence[Any]) -> torch.Tensor:
    if not items:
        raise RewriteError("a list is empty on one side: how its items look is unknown")
    return torch.stack([i if isinstance(i, torch.Tensor) else as_number_tensor(i, number_type(i)) for i in items])


def as_rows(items: Sequence[Any]) -> Rows:
    """A plain list of tensors or numbers as one of unknown length."""
    return Rows(stacked(items), numbers=is_whole(items[-1]))


def is_whole(item: Any) -> bool:
    """Whether an item of a list is a whole number, and no truth."""
    return isinstance(item, (int, torch.SymInt)) and not isinstance(item, bool)


def column(items: Any, place: int) -> Any:
    """What the tuples of a list have at one place, as a list."""
    return items.columns[place] if isinstance(items, Columns) else [item[place] for item in items]


def places_in(items: Any) -> int | None:
    """How many places the tuples of a list have; None if it holds something else."""
    if isinstance(items, Columns):
        return len(items.columns)
    return len(items[-1]) if type(items) is list and items and isinstance(items[-1], tuple) else None


def is_list_leaf(value: Any) -> bool:
    return isinstance(value, Rows)


def flatten(value: Any) -> tuple[list[Any], Any]:
    return tree_flatten(value, is_leaf=is_list_leaf)


class DifferentBranchesError(RewriteError):
    """The results of two branches cannot be merged; the code after the branches may go into both instead.

    Attributes:
        tensor_side: True if the first branch gives a tensor and the second None, False the other way round, else None.
    """

    def __init__(self, what: str, tensor_side: bool | None = None) -> None:
        super().__init__(what)
        self.tensor_side = tensor_side


def merged(left: Any, right: Any, name: Callable[[int], str], known: set[Any]) -> tuple[list[Leaf], Any]:
    """How to carry the results of two branches.

    Args:
        left: what one branch gave.
        right: what the other gave.
        name: what to call the n-th value in a refusal.
        known: the sizes there was a name for before the branches; others mean nothing outside of one.

    Returns:
        A plan for each value, and their structure.
    """
    left, right = _aligned(left, right)
    values, spec = flatten(left)
    others, other_spec = flatten(right)
    if spec != other_spec:
        what = f"the two branches give different structures: {_shown(left)} and {_shown(right)}"
        raise DifferentBranchesError(what, _tensor_side(left, right))
    plan = [_leaf(a, b, name(n), known) for n, (a, b) in enumerate(zip(values, others, strict=True))]
    return plan, spec


def fitted(value: Any, spec: Any) -> list[Any]:
    """The values of a structure; a missing one stands for all that would be in it."""
    if spec.is_leaf():
        return [value]
    if isinstance(value, Unset):
        return [value] * spec.num_leaves
    if spec.type is Columns:
        value = [column(value, place) for place in range(spec.num_children)]
    elif spec.type is Ragged and isinstance(value, list):
        value = _ragged_parts(value, spec.context)
    values = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list, tuple)) or len(values) != spec.num_children:
        return list(spec.flatten_up_to(value))
    return [leaf for child, part in zip(spec.children(), values, strict=True) for leaf in fitted(part, child)]


def _ragged_parts(items: list[Any], axis: int) -> list[Any]:
    """The tensors of a list of items that differ in size; of an empty one only the number of items is known."""
    if not isinstance(items, Ragged) and not len(items):
        return [UNSET, torch.zeros(0, dtype=torch.int64)]
    ragged = items if isinstance(items, Ragged) else Ragged.of(items, axis)
    return [ragged.data, ragged.sizes]


def _aligned(left: Any, right: Any) -> tuple[Any, Any]:
    """Lists of different lengths become `Rows`, on both sides."""
    if isinstance(left, Unset) or isinstance(right, Unset):
        return _spread(left, right), _spread(right, left)
    if isinstance(left, (Rows, Columns, Ragged)) or isinstance(right, (Rows, Columns, Ragged)):
        return _filled(left, right), _filled(right, left)
    if isinstance(left, OpenList) or isinstance(right, OpenList):
        return left, right
    if type(left) is type(right) is list and len(left) != len(right):
        return _filled(left, right), _filled(right, left)
    if type(left) is type(right) and isinstance(left, (tuple, list)) and len(left) == len(right):
        pairs = [_aligned(a, b) for a, b in zip(left, right, strict=True)]
        if hasattr(left, "_fields"):
            return type(left)(*(a for a, _ in pairs)), type(right)(*(b for _, b in pairs))
        return type(left)(a for a, _ in pairs), type(right)(b for _, b in pairs)
    if type(left) is type(right) is dict and left.keys() == right.keys():
        both = {k: _aligned(left[k], right[k]) for k in left}
        return {k: a for k, (a, _) in both.items()}, {k: b for k, (_, b) in both.items()}
    return left, right


def _spread(value: Any, like: Any) -> Any:
    """A missing value in the structure of one that is there."""
    if not isinstance(value, Unset) or isinstance(like, Unset):
        return value
    leaves, spec = flatten(like)
    return spec.unflatten([value] * len(leaves))


def _none_of(items: Any) -> Any:
    """An empty list of such items."""
    rows = items if isinstance(items, Rows) else as_rows(items)
    block = rows.tensor()
    return Rows(torch.zeros((0, *block.shape[1:]), dtype=block.dtype), numbers=rows.numbers)


def _filled(value: Any, other: Any) -> Any:
    """A plain list as one of unknown length; an empty one after what the other side has."""
    if type(value) is not list:
        return value
    places = places_in(value or other)
    if places is not None:
        return Columns([_filled(column(value, n), column(other, n)) for n in range(places)])
    axis = other.axis if isinstance(other, Ragged) else _ragged_axis([*value, *(other if type(other) is list else [])])
    if axis is not None:
        return Ragged.of(value, axis) if value else Ragged.none(other, axis)
    return as_rows(value) if value else _none_of(other)


def _ragged_axis(items: Sequence[Any]) -> int | None:
    """The one axis along which the items of a list have sizes that only values tell; None if there is no such one."""
    tensors = [i for i in items if isinstance(i, torch.Tensor)]
    if len(tensors) != len(items) or not items or len({t.dim() for t in tensors}) > 1:
        return None
    axes = {axis for t in tensors for axis, size in enumerate(t.shape) if is_from_values(size)}
    return axes.pop() if len(axes) == 1 else None


def _leaf(left: Any, right: Any, name: str, known: set[Any]) -> Leaf:
    if isinstance(left, Unset) or isinstance(right, Unset):
        value = right if isinstance(left, Unset) else left
        if isinstance(value, torch.Tensor):
            return Leaf("tensor", dtype=value.dtype, sizes=_outside(value.shape, known))
        if isinstance(value, Number):
            return Leaf("number", dtype=number_type(value))
        return Leaf("unset", Unset(f"{name} has a value on one side of the `if` only"))
    if same(left, right) and not isinstance(left, (torch.Tensor, Rows)):
        return Leaf("constant", left)
    if isinstance(left, Rows) and isinstance(right, Rows):
        sizes = (0, *_outside(left.tensor().shape[1:], known))
        return Leaf("rows", dtype=left.block.dtype, sizes=sizes, numbers=left.numbers and right.numbers)
    if isinstance(left, Number) and isinstance(right, Number):
        return Leaf("number", dtype=_common_number(left, right))
    if isinstance(left, (torch.Tensor, *Number)) and isinstance(right, (torch.Tensor, *Number)):
        return _tensor_leaf(left, right, name, known)
    what = f"{name} is {_shown(left)} in one branch and {_shown(right)} in the other"
    raise DifferentBranchesError(what, _tensor_side(left, right))


def _tensor_side(left: Any, right: Any) -> bool | None:
    """Say which of two values is a tensor, where the other one is None."""
    if left is None and isinstance(right, torch.Tensor):
        return False
    return True if right is None and isinstance(left, torch.Tensor) else None


def _outside(sizes: Sequence[Any], known: set[Any]) -> tuple[Any, ...]:
    """Sizes for a tensor that nothing reads: those that mean something outside of the branch, else none."""
    return tuple(size if symbols_of(size) <= known else 0 for size in sizes)


def _common_number(left: Any, right: Any) -> torch.dtype:
    types = {number_type(left), number_type(right)}
    return types.pop() if len(types) == 1 else torch.promote_types(*types)


def _tensor_leaf(left: Any, right: Any, name: str, known: set[Any]) -> Leaf:
    if not isinstance(left, torch.Tensor):
        left, right = right, left
    if not isinstance(right, torch.Tensor):
        if left.dim() or torch.promote_types(left.dtype, number_type(right)) != left.dtype:
            raise DifferentBranchesError(f"{name} is {_shown(left)} in one branch and the number {right} in the other")
        return Leaf("tensor", dtype=left.dtype)
    if left.dtype != right.dtype:
        raise DifferentBranchesError(f"{name} has type {_type(left)} in one branch and {_type(right)} in the other")
    if left.dim() != right.dim():
        raise DifferentBranchesError(f"{name} has rank {left.dim()} in one branch and {right.dim()} in the other")
    pairs = zip(_outside(left.shape, known), right.shape, strict=True)
    return Leaf("tensor", dtype=left.dtype, sizes=tuple(a if str(a) == str(b) else 0 for a, b in pairs))


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {_type(value)} tensor of shape {[*map(str, value.shape)]}"
    if isinstance(value, OpenList):
        return "a list of unknown length"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(str, value))}"
    return "a function" if callable(value) and not isinstance(value, type) else repr(value)


# The one or the other of two numbers made of sizes, by a condition on sizes, is a number made of sizes too:
#
#     if length <= pad:
#         extra = pad - length + 1


def either_number(test: Any, a: Any, b: Any) -> Any:
    """Return the formula that is `a` where a condition on sizes holds, else `b`."""
    return a if same(a, b) else b + truth_number(test) * (a - b)


# `slice(n // 2, -n // 2) if n else slice(None)`: two slices. A slice is no tensor, but its bounds are numbers.

_END = 2**62  # where a slice without an end stops, far from the largest int64: other bounds are subtracted from it


def has_slices(left: Any, right: Any) -> bool:
    """Check that two branches give the same structure, with slices at a place and nothing else that differs."""
    (values, spec), (others, other_spec) = flatten(left), flatten(right)
    pairs = [(a, b) for a, b in zip(values, others, strict=False) if a is not b]
    return spec == other_spec and bool(pairs) and all(isinstance(one, slice) for pair in pairs for one in pair)


def either_slice(test: Any, left: Any, right: Any) -> Any:
    """Merge the results of two branches that differ in slices only.

    Args:
        test: a condition on sizes, or a size, which holds if it is not zero.
        left: the result where the test holds.
        right: the result where it does not.
    """

    def merge(a: Any, b: Any) -> Any:
        if not isinstance(a, slice):
            return a
        if any(s.step is not None and s.step < 0 for s in (a, b)) or not same(a.step, b.step):
            raise RewriteError(f"a slice is {a} in one branch and {b} in the other")
        starts = [0 if s.start is None else s.start for s in (a, b)]
        stops = [_END if s.stop is None else s.stop for s in (a, b)]
        return slice(either_number(test, *starts), either_number(test, *stops), a.step)

    (values, spec), (others, _) = flatten(left), flatten(right)
    return spec.unflatten(list(map(merge, values, others)))


def copies(state: tuple[Any, ...]) -> list[Any]:
    """Containers copied, so that what a rehearsal puts into them is not seen outside."""
    return [_copied(value) for value in state]


def _copied(value: Any) -> Any:
    if isinstance(value, OpenList):
        return value.copy()
    if type(value) is list:
        return [_copied(v) for v in value]
    if type(value) is dict:
        return {k: _copied(v) for k, v in value.items()}
    return value
