"""Take nested arguments apart into named tensors, and put them together again.

ONNX knows a flat list of named tensors; PyTorch models take and give dicts, lists, dataclasses and scalars. Every
route sees the model through a `Call`: a function of a flat tuple of tensors that gives a flat tuple of tensors.
That is the reason why names, dynamic dimensions and proofs work the same on every route.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchport.errors import InputError, did_you_mean
from torchport.torch_compat.error_texts import says
from torchport.torch_compat.tracing import control_flow_by


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of one tensor."""

    index: int
    name: str


@dataclasses.dataclass(frozen=True)
class Branch:
    """A container: its children by key, and how to make it again from new children."""

    children: dict[Any, Node]
    build: Callable[[list[Any]], Any]


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A value that is no tensor and so becomes part of the graph."""

    name: str
    value: Any


Node = Slot | Branch | Fixed


def take_apart(value: Any, name: str, tensors: list[torch.Tensor]) -> Node:
    """Describe `value`, moving its tensors to the end of `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Slot(len(tensors) - 1, name)
    items = _items(value)
    if items is None:
        return Fixed(name, value)
    children = {key: take_apart(child, join(name, key), tensors) for key, child in items}
    return Branch(children, _builder(value, list(children)))


def put_together(node: Node, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of `take_apart`, with other tensors."""
    if isinstance(node, Slot):
        return tensors[node.index]
    if isinstance(node, Fixed):
        return _fresh(node.value)
    return node.build([put_together(child, tensors) for child in node.children.values()])


def join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def fixed_values(node: Node) -> Iterator[Fixed]:
    """The values below `node` that are no tensors, None left out."""
    if isinstance(node, Fixed) and node.value is not None:
        yield node
    if isinstance(node, Branch):
        for child in node.children.values():
            yield from fixed_values(child)


def _items(value: Any) -> list[tuple[Any, Any]] | None:
    """The children of a container by key, None for anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return _attributes(value, frozenset())


_LEAVES = (type, torch.nn.Module, torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)  # a size knows the capture


def _attributes(value: Any, above: frozenset[int]) -> list[tuple[Any, Any]] | None:
    """The attributes of an object, a key-value cache say, under which there are tensors; None if there are none."""
    if isinstance(value, _LEAVES) or callable(value) or not hasattr(value, "__dict__"):
        return None
    above |= {id(value)}  # an object may know the one that holds it
    return [(key, child) for key, child in vars(value).items() if _holds_tensors(child, above)] or None


def _holds_tensors(value: Any, above: frozenset[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if id(value) in above:
        return False
    if isinstance(value, Mapping):
        return any(_holds_tensors(child, above) for child in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensors(child, above) for child in value)
    return _attributes(value, above) is not None


def _fresh(value: Any) -> Any:
    """What a model may fill, an empty cache say, as it was given: the lists of an object are its own in each call."""
    if isinstance(value, (type, torch.nn.Module)) or callable(value) or not hasattr(value, "__dict__"):
        return value
    fresh = copy.copy(value)
    for key, child in vars(value).items():
        if type(child) in (list, dict):
            object.__setattr__(fresh, key, child.copy())
    return fresh


def _builder(value: Any, keys: list[Any]) -> Callable[[list[Any]], Any]:
    if isinstance(value, Mapping):
        return lambda new: _refill(value, keys, new)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return lambda new: type(value)(*new)
    if isinstance(value, (list, tuple)):
        return lambda new: type(value)(new)
    return lambda new: _replace_fields(value, keys, new)


def _refill(mapping: Any, keys: list[Any], new: list[Any]) -> Any:
    filled = copy.copy(mapping)
    for key, child in zip(keys, new, strict=True):
        filled[key] = child
    return filled


def _replace_fields(record: Any, keys: list[str], new: list[Any]) -> Any:
    replaced = copy.copy(record)
    for key, child in zip(keys, new, strict=True):
        object.__setattr__(replaced, key, child)  # frozen dataclasses too
    return replaced


class Call:
    """A model with one set of arguments, seen as a function of flat tensors.

    Attributes:
        target: the module or function behind it.
        names: the inputs' names, in the order of the signature.
        tensors: the example inputs.
        arguments: the structure of each argument by parameter name.
    """

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target = target
        self._takes_gradients = False
        self._signature = signature_of(target)
        self.tensors: list[torch.Tensor] = []
        bound = _bind(self._signature, target, args, kwargs)
        self._by_name = frozenset(kwargs) & frozenset(self._signature.parameters)
        self.arguments: dict[str, Node] = {
            name: take_apart(value, "" if self._spreads(name) else name, self.tensors)
            for name, value in bound.arguments.items()
        }
        self.names = [slot.name for node in self.arguments.values() for slot in slots(node)]
        twice = {n for n in self.names if self.names.count(n) > 1}
        if twice:
            raise InputError(
                f"two inputs are both called '{min(twice)}'", next_step="rename a key, or a parameter of forward"
            )

    @property
    def fixed(self) -> list[Fixed]:
        """Arguments that are no tensors: they become part of the graph."""
        return [f for node in self.arguments.values() for f in fixed_values(node)]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The model's own answer, in its own structure."""
        bound = inspect.BoundArguments(self._signature, {})
        for name, node in self.arguments.items():
            bound.arguments[name] = put_together(node, tensors)
        # What was given by name is given by name again: hooks see the difference.
        named = {name: bound.arguments.pop(name) for name in self._by_name}
        with control_flow_by(_control_flow):
            return self._answer(bound, named)

    def _answer(self, bound: inspect.BoundArguments, named: dict[str, Any]) -> Any:
        """Call the model, with gradients switched on if it takes some of its own: forces of an energy, say."""
        if not self._takes_gradients:
            try:
                return self.target(*bound.args, **bound.kwargs, **named)
            except RuntimeError as error:
                if torch.is_grad_enabled() or not says(error, "gradients off"):
                    raise
                self._takes_gradients = True
        with torch.enable_grad():
            return self.target(*bound.args, **bound.kwargs, **named)

    def on(self, target: Any) -> Call:
        """The same arguments given to another form of the model."""
        other = copy.copy(self)
        other.target = target
        return other

    def _spreads(self, parameter: str) -> bool:
        return self._signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD


def _control_flow() -> dict[str, Callable[..., Any]]:
    """Return what is called in the place of torch.cond and its like; imported for models that have them."""
    from torchport.capture.control_flow import flow

    return flow.TORCH_OPERATORS


def slots(node: Node) -> Iterator[Slot]:
    if isinstance(node, Slot):
        yield node
    if isinstance(node, Branch):
        for child in node.children.values():
            yield from slots(child)


def signature_of(target: Any) -> inspect.Signature:
    """The signature a caller sees: of `forward` for modules, from the schema for TorchScript."""
    forward = target.forward if isinstance(target, torch.nn.Module) else target
    schema = getattr(forward, "schema", None)
    if schema is None:
        try:
            return inspect.signature(forward)
        except ValueError as error:
            raise InputError(
                f"{forward!r} has no signature to name inputs after",
                next_step="wrap it in a function: def model(x): return ...",
            ) from error
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.name,
                inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else empty,
            )
            # a module's first argument is itself, whatever it is called
            for argument in schema.arguments[1 if isinstance(target, torch.nn.Module) else 0 :]
        ]
    )


def _bind(
    signature: inspect.Signature, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        name = type(target).__name__ if isinstance(target, torch.nn.Module) else getattr(target, "__name__", "it")
        unknown = [k for k in kwargs if k not in signature.parameters]
        known = signature.parameters if unknown else ()
        otherwise = "give one input for each parameter without a default"
        raise InputError(
            f"the inputs do not fit the model: {error}"
            + (f"; there is no parameter '{unknown[0]}'" if unknown else ""),
            where=f"{name}{signature}",
            next_step=did_you_mean("".join(unknown[:1]), known, otherwise, most=1, cutoff=0.3),
        ) from error


def output_tensors(answer: Any) -> tuple[list[str], list[torch.Tensor]]:
    """The answer as named tensors: scalars become 0-d tensors, None and other values are left out.

    A lone tensor is called ``output``, a tuple's ``output_0``, ``output_1``; in dicts, dataclasses and named tuples
    the keys are the names.
    """
    names: list[str] = []
    tensors: list[torch.Tensor] = []
    for name, leaf in _leaves(answer, ""):
        tensor = as_tensor(leaf)
        if tensor is not None:
            names.append(name or "output")
            tensors.append(tensor)
    if isinstance(answer, (list, tuple)) and not hasattr(answer, "_fields"):
        names = ["output" if len(names) == 1 else f"output_{name}" for name in names]
    return names, tensors


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    items = _items(value)
    if items is None:
        yield name, value
        return
    for key, child in items:
        yield from _leaves(child, join(name, key))


def as_tensor(leaf: Any) -> torch.Tensor | None:
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, (bool, torch.SymBool)):
        return torch.full((), leaf, dtype=torch.bool)  # type: ignore[arg-type]
    if isinstance(leaf, (int, torch.SymInt)):
        return torch.full((), leaf, dtype=torch.int64)  # type: ignore[arg-type]
    if isinstance(leaf, (float, torch.SymFloat)):
        return torch.full((), leaf, dtype=torch.float32)  # type: ignore[arg-type]
    return None


class FlatModule(torch.nn.Module):
    """A `Call` as a module: what the routes hand to torch.

    A module behind it is registered as ``model``; `interface.strip_prefix` takes that prefix off again.
    """

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        if isinstance(call.target, torch.nn.Module):
            self.model = call.target
        self.training = getattr(call.target, "training", False)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, outputs = output_tensors(self.call(*tensors))
        return tuple(outputs)
