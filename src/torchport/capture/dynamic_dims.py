"""Read dynamic dimensions from every dialect into one form.

The form is ``{input name: {axis: Dim}}``. The dialects, all of which may be mixed:

    {"x": {0: "batch"}}                          names (`dynamic_axes`)
    {"x": [0, 2]}                                axes only; named x_dim0, x_dim2
    {0: {0: "batch"}}                            the input by position
    {"batch": {"x": {0: Dim("n", min=2)}}}       torch.export's `dynamic_shapes`, nested like the inputs
    ({0: Dim.AUTO}, None)                        the same, by position
    "x:0=batch,2=height[32..512],3=8*width"      the command line's form, one string or several; multiples of 8
    {"past.*": {2: "past"}}, "past.*:2=past"     all inputs and outputs whose names match
    "auto"                                       inferred from several examples (see `infer`)
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from torchport.capture.structure import Branch, Call, Fixed, Node, Slot, signature_of, slots
from torchport.errors import DynamicError, did_you_mean
from torchport.facade import shown
from torchport.results import Dim

InputDims = dict[str, dict[int, Dim]]


@dataclasses.dataclass(frozen=True)
class DynamicSpec:
    """Which axes may vary. `outputs` holds names the user gave to axes of outputs."""

    inputs: InputDims = dataclasses.field(default_factory=dict)
    outputs: dict[str, dict[int, str]] = dataclasses.field(default_factory=dict)


def read(dynamic: Any, call: Call, *, input_names: Sequence[str], output_names: Sequence[str]) -> DynamicSpec:
    """Read any dialect and check it against the example inputs.

    Args:
        dynamic: any of the dialects.
        call: the model with its example inputs.
        input_names: what the inputs are called in the saved model (the user may have renamed them).
        output_names: what the outputs are called in the saved model.
    """
    reader = _Reader(call, list(input_names), list(output_names))
    if isinstance(dynamic, str) or (_is_sequence(dynamic) and dynamic and all(isinstance(d, str) for d in dynamic)):
        dynamic = parse_texts([dynamic] if isinstance(dynamic, str) else dynamic)
    if isinstance(dynamic, Mapping):
        reader.read_mapping(dynamic)
    elif _is_sequence(dynamic):
        reader.read_positions(dynamic)
    elif dynamic is not None:
        raise DynamicError(
            f"dynamic={shown(dynamic)} is of no known form",
            next_step='write dynamic={"x": {0: "batch"}}',
        )
    check_sizes(reader.inputs, dict(zip(call.names, call.tensors, strict=True)))
    return DynamicSpec({n: reader.inputs[n] for n in call.names if reader.inputs.get(n)}, reader.outputs)


class _Reader:
    """Walks a spec along the structure of the inputs."""

    def __init__(self, call: Call, input_names: list[str], output_names: list[str]) -> None:
        self.call = call
        self.aliases = dict(zip(input_names, call.names, strict=True))
        self.shown = dict(zip(call.names, input_names, strict=True))
        self.output_names = output_names
        self.inputs: InputDims = {}
        self.outputs: dict[str, dict[int, str]] = {}
        self.by_name = {s.name: s for node in call.arguments.values() for s in slots(node)}
        self.by_name |= {alias: self.by_name[name] for alias, name in self.aliases.items()}

    def read_mapping(self, spec: Mapping[Any, Any]) -> None:
        for key, value in spec.items():
            if isinstance(key, int):
                self._read_position(key, value)
            elif key in self.by_name:
                self.walk(self.by_name[key], value, key)
            elif key in self.call.arguments:
                self.walk(self.call.arguments[key], value, key)
            elif key in self.output_names:
                self._read_output(key, value)
            elif matching := self._matching(key):
                self.read_mapping(dict.fromkeys(matching, value))
            else:
                raise self._unknown(key)

    def _matching(self, key: Any) -> list[str]:
        """Return the inputs and outputs that a pattern with ``*`` or ``?`` stands for."""
        names = dict.fromkeys([*self.aliases, *self.call.names, *self.output_names])
        is_pattern = isinstance(key, str) and any(sign in key for sign in "*?[")
        found = [name for name in names if fnmatch.fnmatchcase(name, key)] if is_pattern else []
        shown = {self.aliases.get(name, name): name for name in found}  # an input once, not by both its names
        return list(shown.values())

    def read_positions(self, spec: Sequence[Any]) -> None:
        nodes = list(self.call.arguments.values())
        if len(spec) != len(nodes):
            raise DynamicError(
                f"dynamic has {len(spec)} entries, the model has {len(nodes)} inputs",
                where=f"inputs: {', '.join(self.call.arguments)}",
                next_step="give one entry for each input, None where nothing varies",
            )
        for (name, node), value in zip(self.call.arguments.items(), spec, strict=True):
            self.walk(node, value, name)

    def walk(self, node: Node, spec: Any, name: str) -> None:
        if spec is None or isinstance(node, Fixed):
            return
        if isinstance(node, Slot):
            self.inputs.setdefault(node.name, {}).update(self._leaf(node, spec))
            return
        self._walk_branch(node, spec, name)

    def _walk_branch(self, node: Branch, spec: Any, name: str) -> None:
        given = [key for key, child in node.children.items() if not isinstance(child, Fixed)]
        if _is_sequence(spec) and len(spec) in (len(node.children), len(given)):  # None may be left out
            keys = node.children if len(spec) == len(node.children) else given
            spec = dict(zip(keys, spec, strict=True))
        if not isinstance(spec, Mapping):
            count = f"has {len(node.children)} entries, its dynamic entry {len(spec)}" if _is_sequence(spec) else ""
            raise DynamicError(
                f"input '{name}' {count or 'is a container, its dynamic entry is not'}",
                where=f"dynamic[{name!r}] = {shown(spec)}",
                next_step=f"nest it like the input: keys {', '.join(map(str, node.children))}",
            )
        for key, value in spec.items():
            if key not in node.children:
                raise self._unknown(f"{name}.{key}")
            self.walk(node.children[key], value, f"{name}.{key}")

    def _leaf(self, slot: Slot, spec: Any) -> dict[int, Dim]:
        rank = self.call.tensors[slot.index].dim()
        if _is_sequence(spec) and all(isinstance(a, int) and not isinstance(a, bool) for a in spec):
            spec = dict.fromkeys(spec, True)
        elif _is_sequence(spec):
            if len(spec) != rank:
                raise DynamicError(
                    f"input '{slot.name}' has rank {rank}, its dynamic entry has {len(spec)} axes",
                    next_step="give one entry for each axis, None where it does not vary",
                )
            spec = dict(enumerate(spec))
        if not isinstance(spec, Mapping):
            raise DynamicError(
                f"the dynamic entry of input '{slot.name}' is of no known form: {shown(spec)}",
                next_step=f'write {{"{slot.name}": {{0: "batch"}}}}',
            )
        dims: dict[int, Dim] = {}
        for axis, value in spec.items():
            index = _axis(axis, rank, slot.name)
            dim = to_dim(value, f"{self.shown[slot.name]}_dim{index}")
            if dim is not None:
                dims[index] = dim
        return dims

    def _positions(self) -> list[tuple[str, Node]]:
        """The inputs as a caller counts them: those of *args one by one."""
        parameters = signature_of(self.call.target).parameters
        found: list[tuple[str, Node]] = []
        for name, node in self.call.arguments.items():
            variadic = name in parameters and parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            if variadic and isinstance(node, Branch):
                found += [(f"{name}.{key}", child) for key, child in node.children.items()]
            else:
                found.append((name, node))
        return found

    def _read_position(self, position: int, spec: Any) -> None:
        nodes = self._positions()
        if not -len(nodes) <= position < len(nodes):
            raise DynamicError(
                f"there is no input {position}: the model has {len(nodes)}",
                where=f"inputs: {', '.join(self.call.arguments)}",
                next_step="number the inputs from 0, or give their names",
            )
        name, node = nodes[position]
        self.walk(node, spec, name)

    def _read_output(self, name: str, spec: Any) -> None:
        axes = dict.fromkeys(spec, True) if _is_sequence(spec) else dict(spec or {})
        for axis, value in axes.items():
            dim = to_dim(value, f"{name}_dim{axis}")
            if dim is not None:
                self.outputs.setdefault(name, {})[int(axis)] = dim.name

    def _unknown(self, key: Any) -> DynamicError:
        known = [*self.aliases, *self.output_names]
        return DynamicError(
            f"there is no input or output '{key}'",
            where=f"inputs: {', '.join(self.aliases)}; outputs: {', '.join(self.output_names)}",
            next_step=did_you_mean(str(key), known, "use one of these names", most=1),
        )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _axis(axis: Any, rank: int, name: str) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise DynamicError(f"axis {axis!r} of input '{name}' is no number", next_step="count axes from 0")
    if not -rank <= axis < rank:
        raise DynamicError(
            f"axis {axis} of input '{name}' is out of range: it has rank {rank}",
            next_step=f"use an axis from 0 to {rank - 1}" if rank else "a 0-d tensor has no axes",
        )
    return axis % rank


def to_dim(value: Any, default_name: str) -> Dim | None:
    """One entry of any dialect as a `Dim`; None where it says the axis does not vary."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return None
    if value is True:
        return Dim(default_name)
    if isinstance(value, Dim):
        return value
    if isinstance(value, str):
        return _named(value)
    if isinstance(value, torch.export.Dim):
        return _from_torch_dim(value)
    if type(value) is type(torch.export.Dim.AUTO):
        return _from_torch_hint(value, default_name)
    raise DynamicError(
        f"{value!r} is no dimension",
        next_step='give a name ("batch"), a torch.export.Dim, Dim.AUTO or None',
    )


def _named(text: str) -> Dim:
    match = re.fullmatch(r"\s*(?:(\d+)\s*\*\s*)?([^\W\d][\w.-]*)\s*(?:\[\s*(\d*)\s*\.\.\s*(\d*)\s*\])?\s*", text)
    if match is None or (match[1] and not int(match[1])):
        raise DynamicError(
            f"{text!r} is no dimension name",
            next_step="write batch, batch[1..64] with bounds, or 8*height for multiples of 8",
        )
    scale, name, low, high = match.groups()
    own = f"{int(scale)}*{name}" if scale else name
    dim = Dim(own, int(low) if low else 0, int(high) if high else None, name, int(scale or 1))
    if dim.max is not None and dim.max < dim.min:
        raise DynamicError(
            f"dimension '{text}' has no size: its upper bound is below its lower",
            next_step="write the lower bound first: name[low..high]",
        )
    return dim


def _from_torch_dim(dim: Any) -> Dim:
    root = getattr(dim, "root", dim)
    low, high = int(root.min), int(root.max) if root.max < 2**62 else None
    if root is dim:
        return Dim(dim.__name__, min=low, max=high)
    offset = int(dim.fn(0))
    return Dim(dim.__name__, low, high, root.__name__, int(dim.fn(1)) - offset, offset)


def _from_torch_hint(hint: Any, default_name: str) -> Dim | None:
    if hint.type.name == "STATIC":
        return None
    high = int(hint.max) if hint.max is not None and hint.max < 2**62 else None
    return Dim(default_name, min=int(hint.min or 0), max=high)


_TEXT = re.compile(r"(?P<input>[^:=\s]+):(?P<axes>.+)")


def parse_texts(texts: Iterable[str]) -> dict[Any, dict[int, Any]]:
    """Read the command line's form: ``x:0=batch``, ``x:0,2``, ``x:0=batch,2=height[32..512]``."""
    spec: dict[Any, dict[int, Any]] = {}
    for text in texts:
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise _bad_text(text)
        name: Any = match["input"]
        name = int(name) if name.isdecimal() else name
        for part in match["axes"].split(","):
            axis, sign, dim = part.partition("=")
            if not re.fullmatch(r"\s*-?[0-9]+\s*", axis) or (sign and not dim.strip()):
                raise _bad_text(text)
            spec.setdefault(name, {})[int(axis)] = dim.strip() if sign else True
    return spec


def _bad_text(text: str) -> DynamicError:
    return DynamicError(
        f"'{text}' is no dynamic dimension",
        where="--dynamic",
        next_step="write INPUT:AXIS=NAME, e.g. x:0=batch or x:0=batch,2=height[32..512]",
    )


def check_sizes(dims: InputDims, tensors: Mapping[str, Any]) -> dict[str, int]:
    """Each root's size in the example; the same name with two sizes is an error."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, axes in dims.items():
        for axis, dim in axes.items():
            size = int(tensors[name].shape[axis])
            place = f"{name} axis {axis}"
            root = dim.root_size(size)
            if root is None:
                raise DynamicError(
                    f"{place} has size {size}, which no '{dim.root}' makes {dim.name}",
                    where=place,
                    next_step="change the example's size, or the expression",
                )
            known, first = sizes.setdefault(dim.root, (root, place))
            if known != root:
                raise DynamicError(
                    f"dimension '{dim.root}' has two sizes in the example: {known} and {root}",
                    where=f"{first} and {place}",
                    next_step="use two names, or an example in which they agree",
                )
            if not dim.allows(root):
                raise DynamicError(
                    f"dimension '{dim.root}' is {root} in the example, outside its own bounds",
                    where=f"{place}: {dim.min} to {dim.max if dim.max is not None else 'any size'}",
                    next_step="change the bounds, or the example's size",
                )
    return {root: size for root, (size, _) in sizes.items()}


def infer(calls: Sequence[Call]) -> InputDims:
    """Which axes vary between several examples. Axes that always vary together share a name."""
    first = calls[0]
    names: dict[tuple[int, ...], str] = {}
    dims: InputDims = {}
    for call in calls[1:]:
        if call.names != first.names:
            raise DynamicError(
                "the examples have different inputs",
                where=f"{', '.join(first.names)} and {', '.join(call.names)}",
                next_step="give every example the same arguments",
            )
    for index, name in enumerate(first.names):
        shapes = [tuple(call.tensors[index].shape) for call in calls]
        if len({len(shape) for shape in shapes}) > 1:
            raise DynamicError(
                f"input '{name}' has another rank in each example: {shapes}",
                next_step="give examples of one rank; export a model for each rank",
            )
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            if len(set(sizes)) > 1:
                dims.setdefault(name, {})[axis] = Dim(names.setdefault(sizes, f"{name}_dim{axis}"))
    return dims
