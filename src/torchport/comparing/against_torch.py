"""Pair the tensors of an ONNX model with those a running PyTorch model computes.

PyTorch's operators and ONNX's do not come one for one, so numbers help: a tensor that agrees with one PyTorch computes
in the same module is that one. For what agrees with none, the partner is the next operator of its kind in its module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from torchport.capture.origins import origin_of
from torchport.comparing.glance import Glance, Sampled, glance, tells_little
from torchport.comparing.kinship import kin
from torchport.comparing.torch_events import Event, watched
from torchport.proving.tolerances import Tolerance
from torchport.tensors import to_numpy

Array = np.ndarray[Any, Any]
Limits = Callable[[str], Tolerance]  # by dtype


@dataclasses.dataclass(frozen=True)
class Pair:
    """What a tensor was compared with, and how far apart they are.

    Attributes:
        partner: for the reader.
        key: the other side's name for it.
        certain: whether nothing else could have been meant.
    """

    partner: str
    glance: Glance
    key: Any
    certain: bool = True


@dataclasses.dataclass
class Slice:
    """Some tensors of the ONNX model, to be held against a run of the PyTorch model.

    Args:
        arrays: the tensors.
        values: the graph's values of these names.
        ask: runs the PyTorch model once, on the same inputs.
        root: the PyTorch model.
        limits: the tolerance of a dtype.
    """

    arrays: Mapping[str, Array]
    values: Mapping[str, ir.Value]
    ask: Callable[[], Any]
    root: torch.nn.Module | None
    limits: Limits

    def pairs(self) -> dict[str, Pair]:
        """The partner of each tensor that has one."""
        near, far, events = self._agreeing()
        used = {pair.key for pair in near.values()}
        expected = self._expected(near, [e for e in events if e.order not in used])
        differing = self._differing(expected)
        # What agrees with something in another module is that, unless its own module has what it should be.
        return {**{n: p for n, p in far.items() if n not in differing}, **near, **differing}

    def _agreeing(self) -> tuple[dict[str, Pair], dict[str, Pair], list[Event]]:
        """Tensors that agree with one PyTorch computes in their module, with one elsewhere, and all it computes."""
        near: dict[str, Pair] = {}
        far: dict[str, Pair] = {}
        events: list[Event] = []
        buckets: dict[tuple[Any, ...], list[str]] = {}
        modules = {n: origin_of(_producer(self.values[n])).module for n in self.arrays}
        for name, array in self.arrays.items():
            buckets.setdefault((array.shape, array.dtype.name), []).append(name)
        samples = {n: Sampled(a) for n, a in self.arrays.items() if a.dtype.kind not in "OSUc"}

        def see(event: Event, tensor: torch.Tensor) -> None:
            events.append(event)
            names = [n for n in buckets.get((event.shape, event.dtype), ()) if n not in near and n in samples]
            if not names:
                return
            array = to_numpy(tensor.detach())
            elsewhere = not tells_little(array)
            limit = self.limits(event.dtype)
            for name in names:
                here = modules[name] == event.module
                if (here or (elsewhere and name not in far)) and samples[name].may_agree(array, limit):
                    seen = glance(array, self.arrays[name], limit)
                    if seen.ok:
                        (near if here else far)[name] = Pair(str(event), seen, event.order)

        with watched(self.root, see):
            self.ask()
        return near, far, events

    def _expected(self, good: Mapping[str, Pair], free: list[Event]) -> dict[int, tuple[str, bool]]:
        """For each tensor that agrees with nothing: the operator that should have made it, and whether it is alone."""
        last: dict[str, int] = {}
        found: dict[int, tuple[str, bool]] = {}
        for name, array in self.arrays.items():
            origin = origin_of(_producer(self.values[name]))
            if name in good:
                last[origin.module] = max(last.get(origin.module, -1), good[name].key)
                continue
            fits = [
                e
                for e in free
                if (e.shape, e.dtype, e.module) == (array.shape, array.dtype.name, origin.module)
                and e.order not in found
                and e.order > last.get(origin.module, -1)
                and kin(e.operator, origin.operator)
            ]
            lines = [e for e in fits if e.source == origin.source] or fits
            if lines and self._is_last(name):
                found[lines[0].order] = (name, len(lines) == 1)
                last[origin.module] = lines[0].order
        return found

    def _is_last(self, name: str) -> bool:
        """Whether a tensor is what its torch operator gives, and not a step on the way there."""
        value = self.values[name]
        origin = origin_of(_producer(value))
        users = [u.node for u in value.uses()]
        return not users or any(origin_of(n) != origin for n in users) or (value.is_graph_output() and not users)

    def _differing(self, expected: Mapping[int, tuple[str, bool]]) -> dict[str, Pair]:
        found: dict[str, Pair] = {}

        def see(event: Event, tensor: torch.Tensor) -> None:
            if event.order in expected:
                name, certain = expected[event.order]
                seen = glance(to_numpy(tensor.detach()), self.arrays[name], self.limits(event.dtype))
                found[name] = Pair(str(event), seen, event.order, certain)

        if expected:
            with watched(self.root, see):
                self.ask()
        return found


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
