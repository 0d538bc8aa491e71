"""Nodes of domains no engine knows, and the PyTorch calls they stand for.

A node without a kernel can still be checked: PyTorch itself computes it. For an operator defined here the node's own
attributes say the call; for a node that a symbolic made, the call is remembered under a mark in the node's metadata,
which saving takes off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from torchport.errors import EngineError
from torchport.operators import defining
from torchport.tensors import to_numpy, to_torch

MARK = "torchport.python_call"

# what ONNX and its engines bring; every other domain is somebody's own
KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"}
    | {"com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc"}
)

_numbers = itertools.count(1)
_remembered: dict[str, Call] = {}


@dataclasses.dataclass(frozen=True)
class Place:
    """Stands for the n-th input of a node among the arguments of a call."""

    index: int


@dataclasses.dataclass(frozen=True)
class Call:
    """A PyTorch call: a function and its arguments, some of them the node's inputs."""

    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any]

    def run(self, *inputs: np.ndarray[Any, Any] | None) -> list[np.ndarray[Any, Any]]:
        """The node's outputs, computed by PyTorch."""

        def filled(argument: Any) -> Any:
            if isinstance(argument, Place):
                given = inputs[argument.index] if argument.index < len(inputs) else None
                return None if given is None else to_torch(np.asarray(given))
            if isinstance(argument, (list, tuple)):
                return [filled(a) for a in argument]
            return argument

        with torch.no_grad():
            result = self.function(*map(filled, self.arguments))
        flat = result if isinstance(result, (list, tuple)) else [result]
        return [to_numpy(t.detach().contiguous()) for t in flat]


def remember(node: ir.Node, call: Call) -> None:
    key = str(next(_numbers))
    _remembered[key] = call
    node.metadata_props[MARK] = key


@contextlib.contextmanager
def unmarked(model: ir.Model) -> Iterator[None]:
    """The model without marks, for saving: in another process they mean nothing."""
    marked = [n for n in ir.traversal.RecursiveGraphIterator(model.graph) if MARK in n.metadata_props]
    taken = [n.metadata_props.pop(MARK) for n in marked]
    try:
        yield
    finally:
        for node, mark in zip(marked, taken, strict=True):
            node.metadata_props[MARK] = mark


def is_custom(node: ir.Node) -> bool:
    return node.domain not in KNOWN_DOMAINS


def of(node: ir.Node) -> Call | None:
    """The PyTorch call a node stands for, where that is known here."""
    marked = _remembered.get(node.metadata_props.get(MARK, ""))
    if marked is not None:
        return marked
    own = defining.by_node(node.domain, node.op_type)
    return _from_attributes(own, node) if own is not None else None


def _from_attributes(own: defining.Operator, node: ir.Node) -> Call:
    """Inputs in the order of the tensor arguments, everything else from attributes."""
    arguments: list[Any] = []
    place = 0
    for argument in own.arguments:
        kind = str(argument.type)
        if kind == "List[Tensor]":  # the rest of the inputs
            arguments.append([Place(n) for n in range(place, len(node.inputs))])
            place = len(node.inputs)
        elif "Tensor" in kind:
            arguments.append(Place(place))
            place += 1
        else:
            arguments.append(_from_attribute(node.attributes.get(argument.name), argument, own))
    names = [a.name for a in own.arguments]
    by_name = sum(not a.kwarg_only for a in own.arguments)

    def call(*given: Any) -> Any:
        return own(*given[:by_name], **dict(zip(names[by_name:], given[by_name:], strict=True)))

    return Call(own.name, call, arguments)


def _from_attribute(attribute: ir.Attr | None, argument: Any, own: defining.Operator) -> Any:
    kind = str(argument.type)
    if attribute is None:
        if kind.startswith("Optional"):  # a call's None is written as no attribute, whatever the default is
            return None
        if argument.has_default_value():
            return argument.default_value
        raise EngineError(f"a node of {own.name} has no attribute '{argument.name}'")
    value: Any = attribute.value
    if attribute.type is ir.AttributeType.TENSOR:
        return [t.decode() if isinstance(t, bytes) else str(t) for t in value.numpy().reshape(-1).tolist()]
    if "bool" in kind:
        return [bool(v) for v in value] if isinstance(value, (list, tuple)) else bool(value)
    return list(value) if isinstance(value, tuple) else value
