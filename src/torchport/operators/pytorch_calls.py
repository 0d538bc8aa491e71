"""Nodes of domains no engine knows, and the PyTorch calls they stand for.

A node without a kernel can still be checked: PyTorch itself computes it. For an operator defined here the node's own
attributes say the call; for a node that a symbolic made, the call is remembered under a mark in the node's metadata,
which saving takes off.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from torchport.errors import EngineError
from torchport.results import MARK
from torchport.tensors import to_numpy, to_torch

if TYPE_CHECKING:
    from torchport.operators.definition import Operator

_PROCESS = uuid.uuid4().hex  # a mark that got into a file must not be taken for another call elsewhere
_numbers = itertools.count(1)
_remembered: dict[str, Call] = {}
_lacking: dict[str, tuple[str, ...]] = {}


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
            result = _called(self.function, [filled(a) for a in self.arguments])
        flat = result if isinstance(result, (list, tuple)) else [result]
        return [to_numpy(t.detach().contiguous()) for t in flat]


def _called(function: Callable[..., Any], arguments: list[Any]) -> Any:
    """With the arguments of an operator's schema that are given by name only given so."""
    schema = getattr(function, "_schema", None)
    by_name = [a.name for a in schema.arguments if a.kwarg_only] if schema is not None else []
    by_place = len(arguments) - len(by_name)
    return function(*arguments[:by_place], **dict(zip(by_name, arguments[by_place:], strict=True)))


def remember(node: ir.Node, call: Call) -> None:
    key = f"{_PROCESS}-{next(_numbers)}"
    _remembered[key] = call
    node.metadata_props[MARK] = key
    for value in node.outputs:
        value.type = None  # the symbolic's builder guessed; torch's exporter knows


def remember_lack(node: ir.Node, arguments: Sequence[str]) -> None:
    """Keep the tensors that a call needs and its node has not: without them PyTorch cannot run the node."""
    key = f"{_PROCESS}-{next(_numbers)}"
    _lacking[key] = tuple(arguments)
    node.metadata_props[MARK] = key


def lacking(node: ir.Node) -> tuple[str, ...]:
    """Return what `remember_lack` kept for the node."""
    return _lacking.get(node.metadata_props.get(MARK, ""), ())


def remembered(node: ir.Node) -> Call | None:
    """Return the PyTorch call that `remember` kept for the node, in this process."""
    return _remembered.get(node.metadata_props.get(MARK, ""))


def from_attributes(own: Operator, node: ir.Node) -> Call:
    """Return the call of an operator by its node: inputs in the order of the tensor arguments, the rest attributes."""
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
    return Call(own.name, own.overload, arguments)


def _from_attribute(attribute: ir.Attr | None, argument: Any, own: Operator) -> Any:
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
