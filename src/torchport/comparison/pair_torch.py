"""Pair the tensors of an ONNX model with those a running PyTorch model computes.

PyTorch's operators and ONNX's do not come one for one, so numbers help: a tensor that agrees with one PyTorch computes
in the same module is that one. For what agrees with none, the partner is the next operator of its kind in its module.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from torchport.comparison.intermediates import Slices
from torchport.comparison.torch_trace import Event, watched
from torchport.irtools.metadata import call_of, origin_of
from torchport.numerics.check import Bucket, QuickCheck, Sampled, quick_check, tells_little
from torchport.numerics.tolerance import Tolerance
from torchport.tensors import Array, to_numpy

_KEPT, _KEPT_BYTES = 4, 16 << 20  # tensors that differ, worth keeping: the first of them is asked for again
Kind = tuple[tuple[int, ...], str]  # shape and dtype
Limits = Callable[[str], Tolerance]  # by dtype


_MOVES = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand"}
_EMPTY = Bucket()


@dataclasses.dataclass(frozen=True)
class Pair:
    """What a tensor was compared with, and how far apart they are.

    Attributes:
        partner: for the reader.
        key: the other side's name for it.
        certain: whether nothing else could be the partner.
        arrays: the reference's tensor and the candidate's, for the first few that differ.
    """

    partner: str
    check: QuickCheck
    key: Any
    certain: bool = True
    arrays: tuple[Array, Array] | None = dataclasses.field(default=None, compare=False, repr=False)


class Pairing:
    """The tensors of an ONNX model, to be held against runs of the PyTorch model.

    Args:
        slices: the tensors.
        ask: runs the PyTorch model once, on the same inputs.
        root: the PyTorch model.
        limits: the tolerance of a dtype.
    """

    def __init__(self, slices: Slices, ask: Callable[[], Any], root: torch.nn.Module | None, limits: Limits) -> None:
        self._slices, self._ask, self._root, self._limits = slices, ask, root, limits
        self._origins = {n: origin_of(_producer(v)) for n, v in slices.values.items()}
        self._kinds: dict[str, Kind] = {}
        self._events: list[Event] = []
        self._near: dict[str, Pair] = {}  # agree with a tensor PyTorch computes in the same module
        self._far: dict[str, Pair] = {}  # agree with one it computes elsewhere
        self._foreign: set[str] = set()  # of these, those that agree with another operator's tensor than their own
        self._kept = 0
        self._unlike = _Unlike(slices.budget)

    def pairs(self) -> dict[str, Pair]:
        """The partner of each tensor that has one."""
        for arrays in self._slices:
            self._agreeing(arrays)
        expected = self._expected()
        differing: dict[str, Pair] = {}
        for arrays in self._slices.only({name for name, _ in expected.values()}):
            differing |= self._differing(arrays, expected)
        # What agrees with something in another module is that, unless its own module has what it should be. A step
        # inside an operator is not: it may be what went into the operator, where a node forgot to change it.
        far = {n: p for n, p in self._far.items() if self._is_last(n) or not self._origins[n].operator}
        found = {**far, **self._known()}
        for name in self._moved({n for n, p in differing.items() if n in self._near and not p.check.ok}):
            found.pop(name, None)
        return {**found, **differing}

    def _moved(self, doubles: set[str]) -> set[str]:
        """What is a neighbor's tensor reshaped: it agrees with the neighbor's, which says nothing for it."""
        moved: set[str] = set()
        for name, value in self._slices.values.items() if doubles else ():
            node = _producer(value)
            sources = {str(v.name) for v in node.inputs if v is not None}
            if node.op_type in _MOVES and sources & (doubles | moved):
                moved.add(name)
        return moved

    def _known(self) -> dict[str, Pair]:
        """What agrees in its module, but for a step inside an operator that agrees with what another tensor is."""
        claimed: set[int] = set()
        found: dict[str, Pair] = {}
        for name in (n for n in self._kinds if n in self._near):
            pair = self._near[name]
            if pair.key not in claimed or self._is_last(name) or not self._origins[name].operator:
                found[name] = pair
            claimed.add(pair.key)
        return found

    def _agreeing(self, arrays: Mapping[str, Array]) -> None:
        near, far = self._near, self._far
        buckets: dict[Kind, Bucket] = {}
        for name, array in arrays.items():
            self._kinds[name] = array.shape, array.dtype.name
            if array.dtype.kind not in "OSUc":
                buckets.setdefault(self._kinds[name], Bucket()).add(name, array)
        events: list[Event] = []
        foreign = self._foreign

        def see(event: Event, tensor: torch.Tensor) -> None:
            events.append(event)
            bucket = buckets.get((event.shape, event.dtype), _EMPTY)
            names = [n for n in bucket.names if n not in near or (n in foreign and self._is_own(n, event))]
            if not names:
                return
            array = to_numpy(tensor.detach())
            elsewhere = not tells_little(array)
            limit = self._limits(event.dtype)
            possible = bucket.may_agree(Sampled(array), limit)
            alike = wanted = False
            for name in names:
                here = self._origins[name].module == event.module
                wanted |= here and corresponds(event.operator, self._origins[name].operator)
                if (here or (elsewhere and name not in far)) and name in possible:
                    seen = quick_check(array, arrays[name], limit)
                    if seen.ok:
                        (near if here else far)[name] = Pair(str(event), seen, event.order)
                        alike |= here
                        (foreign.discard if self._is_own(name, event) else foreign.add)(name)
            if wanted and not alike:
                self._unlike.keep(event, array)

        self._unlike.clear()
        with watched(self._root, see):
            self._ask()
        self._events = events

    def _expected(self) -> dict[int, tuple[str, bool]]:
        """For each tensor that agrees with nothing: the operator that should have made it, and whether it is alone.

        So for those that agree with what is not their own: a sum that adds nothing gives what went into it.
        """
        used = {pair.key for pair in self._near.values()}
        whole = {pair.key for name, pair in self._near.items() if self._is_last(name)}
        free = [e for e in self._events if e.order not in used]
        steps = [e for e in self._events if e.order in used - whole]  # what only a step inside its operator is
        found = self._doubles()
        settled = {name for name, _ in found.values()}
        mistaken = self._mistaken()
        last: dict[str, int] = {}
        for name in self._kinds:
            module = self._origins[name].module
            near = name in self._near
            named = bool(self._origins[name].operator)  # else any operator of the module may be it
            fits: list[Event] = []
            if not near or (name in mistaken and name not in settled):
                fits = self._fitting(name, free, last) or self._fitting(name, steps if named else [], last)
                fits = [e for e in fits if e.order not in found]
            if fits and self._is_last(name):
                found[fits[0].order] = (name, named and len(fits) == 1 and not near)
                last[module] = fits[0].order
            elif near:
                known = -1 if name in settled else self._near[name].key - (not self._is_last(name))
                last[module] = max(last.get(module, -1), known)
        return found

    def _mistaken(self) -> set[str]:
        """Tensors that agree with another operator's than their own, or with one that a tensor before is."""
        claimed: set[int] = set()
        found: set[str] = set()
        for name in (n for n in self._kinds if n in self._near):
            key = self._near[name].key
            if self._origins[name].operator and (name in self._foreign or key in claimed):
                found.add(name)
            claimed.add(key)
        return found

    def _doubles(self) -> dict[int, tuple[str, bool]]:
        """Of tensors that agree with one and the same of PyTorch's, those that should be another.

        A node that reads its neighbor's input gives its neighbor's output, which is right, but not here. Where a module
        runs as many operators of a kind as the ONNX model has nodes for them, they belong together in order.
        """
        groups: dict[tuple[str, str, Kind], list[str]] = {}
        for name, kind in self._kinds.items():
            origin = self._origins[name]
            if origin.operator and self._is_last(name):
                groups.setdefault((origin.module, base(origin.operator), kind), []).append(name)
        ran: dict[tuple[str, str, Kind], list[Event]] = {}
        for event in self._events:
            ran.setdefault((event.module, base(event.operator), (event.shape, event.dtype)), []).append(event)
        found: dict[int, tuple[str, bool]] = {}
        for group, names in groups.items():
            keys = [self._near[n].key for n in names if n in self._near]
            if len(set(keys)) == len(keys):
                continue
            same = ran.get(group, [])
            if len(same) == len(names):
                pairs = zip(names, same, strict=True)
                found |= {e.order: (n, False) for n, e in pairs if n in self._near and self._near[n].key != e.order}
        return found

    def _fitting(self, name: str, free: Iterable[Event], last: Mapping[str, int]) -> list[Event]:
        """Operators that may have made a tensor, of those that come after the last one known; likely ones only.

        Likely are those of its own line, and those that nodes like its own turned out to be: a linear layer is a
        product and a sum, and which of the two the node gives is seen where one agrees.
        """
        origin = self._origins[name]
        fits = [
            e
            for e in free
            if (e.shape, e.dtype) == self._kinds[name]
            and e.module == origin.module
            and e.order > last.get(origin.module, -1)
            and corresponds(e.operator, origin.operator)
        ]
        fits = [e for e in fits if e.source == origin.source] or fits
        learned = self._learned.get(self._sort(name), set())
        return [e for e in fits if e.operator in learned] or fits

    @functools.cached_property
    def _learned(self) -> dict[tuple[str, str], set[str]]:
        """What nodes of a sort turned out to be in PyTorch, where they agree."""
        operators = {e.order: e.operator for e in self._events}
        found: dict[tuple[str, str], set[str]] = {}
        for name, pair in self._near.items():
            found.setdefault(self._sort(name), set()).add(operators[pair.key])
        return found

    def _sort(self, name: str) -> tuple[str, str]:
        return self._origins[name].operator, _producer(self._slices.values[name]).op_type

    def _is_own(self, name: str, event: Event) -> bool:
        """Whether a tensor may be what this operator gave; nothing is against it where its origin is unknown."""
        origin = self._origins[name]
        return not origin.operator or (origin.module == event.module and corresponds(event.operator, origin.operator))

    def _is_last(self, name: str) -> bool:
        """Whether a tensor is what its torch operator gives, and not a step on the way there."""
        value = self._slices.values[name]
        call = call_of(_producer(value))
        if call and call in self._results:
            return name == call
        users = [u.node for u in value.uses()]
        return not users or any(_came_from(n) != _came_from(_producer(value)) for n in users)

    @functools.cached_property
    def _results(self) -> set[str]:
        """Calls of torch operators whose result is known by its name."""
        return {n for n, v in self._slices.values.items() if call_of(_producer(v)) == n}

    def _differing(self, arrays: Mapping[str, Array], expected: Mapping[int, tuple[str, bool]]) -> dict[str, Pair]:
        found: dict[str, Pair] = {}

        def hold(event: Event, array: Array) -> None:
            name, certain = expected[event.order]
            seen = quick_check(array, arrays[name], self._limits(event.dtype))
            both = None
            if not seen.ok and self._kept < _KEPT and array.nbytes <= _KEPT_BYTES:
                self._kept += 1
                both = np.array(array), arrays[name]
            found[name] = Pair(str(event), seen, event.order, certain, both)

        def see(event: Event, tensor: torch.Tensor) -> None:
            if event.order in wanted:
                hold(event, to_numpy(tensor.detach()))

        wanted = {order for order, (name, _) in expected.items() if name in arrays}
        if wanted <= self._unlike.arrays.keys():
            for event in (e for e in self._events if e.order in wanted):
                hold(event, self._unlike.arrays[event.order])
        elif arrays:
            with watched(self._root, see):
                self._ask()
        return found


class _Unlike:
    """What PyTorch computed and no tensor agrees with, kept for a second look if all of it fits into some bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.arrays: dict[int, Array] = {}

    def clear(self) -> None:
        """Forget all: the model runs again."""
        self.arrays = {}
        self._room = self._budget

    def keep(self, event: Event, array: Array) -> None:
        self._room -= array.nbytes
        if self._room >= 0:
            self.arrays[event.order] = np.array(array)
        else:
            self.arrays = {}


def _came_from(node: ir.Node) -> object:
    return call_of(node) or origin_of(node)


def _producer(value: ir.Value) -> ir.Node:
    producer = value.producer()
    assert producer is not None
    return producer


def partner_arrays(orders: Mapping[str, int], ask: Callable[[], Any], root: torch.nn.Module | None) -> dict[str, Array]:
    """What PyTorch gives at some of its operators, copied; by the names asked for."""
    names: dict[int, list[str]] = {}
    for name, order in orders.items():
        names.setdefault(order, []).append(name)
    found: dict[str, Array] = {}

    def see(event: Event, tensor: torch.Tensor) -> None:
        for name in names.get(event.order, ()):
            found[name] = np.array(to_numpy(tensor.detach()))

    with watched(root, see):
        ask()
    return found


# Which operators of a running PyTorch model an exported operator may have become.

_PRODUCT = {
    "addmm",
    "mm",
    "bmm",
    "baddbmm",
    "add",
    "view",
    "unsafe_view",
    "matmul",
    "linear",
    "mv",
    "addmv",
    "dot",
}
_FAMILIES = {
    "linear": _PRODUCT,
    "matmul": _PRODUCT,
    "addmm": _PRODUCT,
    "einsum": {*_PRODUCT, "sum", "permute", "mul", "squeeze"},
    "convolution": {"convolution", "mkldnn_convolution", "conv2d", "slow_conv2d_forward", "thnn_conv2d"},
    "conv": {"convolution", "mkldnn_convolution"},
    "batch_norm": {"batch_norm", "cudnn_batch_norm", "batch_norm_legit_no_training", "batch_norm_legit"},
    "relu6": {"hardtanh"},
    "rsub": {"sub"},
    "scaled_dot_product_attention": {"transpose", "bmm", "unsafe_view", "view", "clone"},
}


def base(operator: str) -> str:
    """``aten._native_batch_norm_legit_no_training.default`` as ``batch_norm_legit_no_training``."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.strip("_").removeprefix("native_").removesuffix("_")


def corresponds(torch_operator: str, origin: str) -> bool:
    """Whether a running operator's output may be what an ONNX node of that origin computes."""
    if not origin:
        return True
    one, other = base(torch_operator), base(origin)
    words = set(one.split("_")), set(other.split("_"))
    if words[0] <= words[1] or words[1] <= words[0]:
        return True
    return any(other.startswith(name) and one in family for name, family in _FAMILIES.items())
