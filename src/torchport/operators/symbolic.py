"""`symbolic(g, ...)`, as users have it from the TorchScript exporter, on every route.

    @tp.symbolic("aten::asinh", since=9)
    def asinh(g, x):
        return g.op("Asinh", x)

On the routes script and trace, torch calls the function with its own `g`. On the modern ones it gets a `Graph` from
here, which records ONNX nodes where torch's translation functions do. Functions given to
`torch.onnx.register_custom_op_symbolic` count as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import torch

from torchport.errors import CaptureError, OptionError, did_you_mean
from torchport.irtools import types
from torchport.operators import pytorch_calls, registration
from torchport.torch_compat import registries

Symbolic = Callable[..., Any]

_NAME = re.compile(r"\w+::\w+(\.\w+)?")
_ATTRIBUTE = re.compile(r"(.+)_([ifstg])")
_registered: dict[str, dict[int, Symbolic]] = {}


def symbolic(name: str, *, since: int = 7) -> Callable[[Symbolic], Symbolic]:
    """Map a torch operator by a function that builds ONNX nodes. For every route, until the process ends.

    Args:
        name: the operator, ``aten::asinh`` or ``mylib::my_add``.
        since: the lowest opset the function is for; of several the highest that fits is taken.

    Example:
        >>> @tp.symbolic("mylib::my_add")
        ... def my_add(g, a, b):
        ...     return g.op("Add", g.op("Mul", a, g.op("Constant", value_t=torch.tensor(3.0))), b)
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise OptionError(f"'{name}' names no operator", next_step='write it as "domain::name": "aten::asinh"')
    if not isinstance(since, int) or since < 1:
        raise OptionError(f"since is an opset, not {since!r}", next_step="write since=9")
    registration.check_name(name)

    def register(function: Symbolic) -> Symbolic:
        if not callable(function):
            raise OptionError(f"a symbolic is a function of g and the operator's arguments, not {function!r}")
        _registered.setdefault(name.partition(".")[0], {})[since] = function
        return function

    return register


def forget(name: str) -> None:
    """Take back what was registered for an operator."""
    _registered.pop(name, None)


def registered(name: str) -> dict[int, Symbolic]:
    """What the user gave for an operator, here or to torch, by opset."""
    return {**registries.custom_symbolics().get(name, {}), **_registered.get(name, {})}


def functions(opset: int) -> dict[str, Symbolic]:
    """For each operator the function for an opset: ours, and what the user gave to torch."""
    known = {**registries.custom_symbolics(), **_registered}
    fitting = {name: [n for n in versions if n <= opset] for name, versions in known.items()}
    return {name: known[name][max(opsets)] for name, opsets in fitting.items() if opsets}


def translations(opset: int, ours: Container[Any] = ()) -> dict[Any, Callable[..., Any]]:
    """The same for the modern routes, by overload.

    Args:
        opset: of the export.
        ours: operators with a translation of ours. It comes before a symbolic that the operator's own package gave to
            torch, as torchvision does when it is imported: no user asked for that one.
    """
    return {
        overload: translation(overload, function)
        for name, function in functions(opset).items()
        for overload in registries.overloads(name).values()
        if overload not in ours or not _is_packages_own(name, function)
    }


def _is_packages_own(name: str, function: Symbolic) -> bool:
    return getattr(function, "__module__", "").partition(".")[0] == name.partition("::")[0]


def translation(operator: Any, function: Symbolic) -> Callable[..., Any]:
    """A symbolic as torch's modern exporter takes translations.

    It is called with values and plain numbers in the order of the operator's schema, defaults filled in, as TorchScript
    calls it.
    """
    return by_arguments(operator, lambda given: built(function, given, Source(str(operator), operator)))


def by_arguments(operator: Any, function: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """A translation from a function of all arguments in the order of the schema."""
    names = [a.name for a in registries.schema(operator).arguments]
    defaults = {a.name: a.default_value for a in registries.schema(operator).arguments if a.has_default_value()}

    def translate(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        return function([given.get(n) for n in names])

    return with_parameters(translate, names, defaults)


def with_parameters(
    function: Callable[..., Any], names: list[str], defaults: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """A translation that takes anything, said to take these: torch's exporter reads its signature.

    Behind an argument with a default each has one: `out=` of an overload that writes to a tensor has none of its own.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters: list[inspect.Parameter] = []
    missing: Any = inspect.Parameter.empty
    for name in names:
        missing = None if name in (defaults or {}) else missing
        parameters.append(inspect.Parameter(name, kind, default=(defaults or {}).get(name, missing)))
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


@dataclasses.dataclass(frozen=True)
class Source:
    """The PyTorch call a symbolic is for."""

    name: str
    function: Callable[..., Any]


def built(function: Symbolic, arguments: list[Any], source: Source | None = None) -> Any:
    """Call a symbolic and give the graph's values back.

    A node of the user's own domain that it made remembers the PyTorch call, so that it can be checked without a kernel.
    """
    before = len(_recorder().nodes)
    result = function(Graph(), *map(_wrapped, arguments))
    values = [_value(r) for r in result] if isinstance(result, (list, tuple)) else [_value(result)]
    if source is not None:
        _remember(_recorder().nodes[before:], values, arguments, source)
    return tuple(values) if isinstance(result, (list, tuple)) else values[0]


def _remember(nodes: list[ir.Node], results: list[Any], arguments: list[Any], source: Source) -> None:
    """Only where one node is the whole of the call: its outputs are the results, its inputs have all the tensors."""
    own = [n for n in nodes if types.is_custom(n)]
    if len(own) != 1 or list(own[0].outputs) != results:
        return
    places = {id(v): n for n, v in enumerate(own[0].inputs) if v is not None}
    lacking = [n for n, a in enumerate(arguments) if any(id(v) not in places for v in _leaves(a))]
    if lacking:
        pytorch_calls.remember_lack(own[0], _argument_names(source.function, lacking))
        return
    filled = [_placed(a, places) for a in arguments]
    pytorch_calls.remember(own[0], pytorch_calls.Call(source.name, source.function, filled))


def _leaves(argument: Any) -> list[ir.Value]:
    return [v for v in (argument if isinstance(argument, (list, tuple)) else [argument]) if isinstance(v, ir.Value)]


def _argument_names(function: Any, places: list[int]) -> list[str]:
    """The names of an operator's arguments; of another function their numbers."""
    named = registries.schema(function).arguments if registries.is_overload(function) else ()
    return [named[n].name if n < len(named) else f"number {n + 1}" for n in places]


def _placed(argument: Any, places: dict[int, int]) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_placed(a, places) for a in argument]
    return pytorch_calls.Place(places[id(argument)]) if isinstance(argument, ir.Value) else argument


class Value:
    """A value of the graph, with as much of torch._C.Value as symbolics use."""

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    def type(self) -> Type:
        return Type(self.value)

    def setType(self, given: Any) -> Value:  # noqa: N802 - torch's name
        if isinstance(given, Type):
            self.value.type, self.value.shape = given.value.type, given.value.shape
        return self

    def node(self) -> Any:
        return self.value.producer()

    def __repr__(self) -> str:
        return f"Value({self.value.name})"


class Type:
    """The type of a value: `sizes()`, `dim()`, `scalarType()`, `dtype()`, and copies with other sizes."""

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    def sizes(self) -> list[int | None] | None:
        shape = self.value.shape
        return None if shape is None else [d if isinstance(d, int) else None for d in shape]

    def varyingSizes(self) -> list[int | None] | None:  # noqa: N802 - torch's name
        return self.sizes()

    def dim(self) -> int | None:
        shape = self.value.shape
        return None if shape is None else len(shape)

    def dtype(self) -> torch.dtype | None:
        kind = self.value.dtype
        return getattr(torch, kind.numpy().name) if kind is not None else None

    def scalarType(self) -> str | None:  # noqa: N802 - torch's name
        names = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.int64: "Long"}
        names |= {torch.int32: "Int", torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char"}
        dtype = self.dtype()
        return names.get(dtype) if dtype is not None else None

    def isSubtypeOf(self, other: Any) -> bool:  # noqa: N802 - torch's name
        """Every value of the graph is a tensor, and none a list or a number of TorchScript."""
        return other.kind() == "TensorType"

    def with_sizes(self, sizes: list[int | None]) -> Type:
        new = ir.Value(name=self.value.name, type=self.value.type, shape=ir.Shape(sizes))
        return Type(new)

    def with_dtype(self, dtype: torch.dtype) -> Type:
        kind = ir.DataType.from_numpy(torch.empty(0, dtype=dtype).numpy().dtype)
        return Type(ir.Value(name=self.value.name, type=ir.TensorType(kind), shape=self.value.shape))


class Graph:
    """The `g` of a symbolic."""

    @property
    def opset(self) -> int:
        return _recorder().opset.version

    def op(self, name: str, *inputs: Any, outputs: int = 1, overload: str = "", **attributes: Any) -> Any:
        """Add a node: ``g.op("Domain::Name", x, axis_i=1, mode_s="linear", value_t=tensor)``.

        Args:
            name: the ONNX operator; of another domain as ``domain::Name``.
            inputs: values; numbers, lists and tensors become constants; None stands for an input left out.
            outputs: how many it has. With more than one a tuple is given back.
            overload: which of several local functions of this name it calls.
            attributes: by name and suffix: `_i` and `_f` for numbers or lists, `_s` for texts, `_t` for tensors.
        """
        domain, _, kind = name.rpartition("::")
        given = {n: v for key, value in attributes.items() if value is not None for n, v in [_attribute(key, value)]}
        values: list[Any] = [_value(i) for i in inputs]
        if domain in ("", "aten", "onnx"):
            domain = ""
            values, given = _current_form(kind, self.opset, values, given)
            _check_form(kind, self.opset, given)
            values = _of_one_type(kind, self.opset, values)
        while values and values[-1] is None:
            values.pop()
        attrs = [ir.convenience.convert_attribute(n, v) for n, v in given.items()]
        node = ir.Node(domain, kind, inputs=values, attributes=attrs, num_outputs=outputs, overload=overload)
        for value in node.outputs:
            _infer(value, values)
        if kind == "Constant" and isinstance(given.get("value"), ir.TensorProtocol):
            node.outputs[0].dtype, node.outputs[0].shape = given["value"].dtype, ir.Shape(given["value"].shape)
        _recorder().nodes.append(node)
        results = tuple(Value(v) for v in node.outputs)
        return results[0] if outputs == 1 else results

    def constant(self, value: Any) -> Any:
        return Value(_constant(value))


@contextlib.contextmanager
def recording() -> Iterator[Any]:
    """Nodes go into a recorder of their own, for the body of a local function."""
    from onnxscript import evaluator

    outer = _recorder()
    recorder = type(outer)(outer.opset, {})
    with evaluator.default_as(recorder):
        yield recorder


def _recorder() -> Any:
    """Where torch's exporter records the nodes of a translation: onnxscript's evaluator of the moment."""
    from onnxscript import evaluator

    recorder = evaluator.default()
    if not hasattr(recorder, "nodes"):
        raise CaptureError("a symbolic was called outside of an export", next_step="call it from tp.export only")
    return recorder


def _wrapped(argument: Any) -> Any:
    if isinstance(argument, ir.Value):
        return Value(argument)
    if isinstance(argument, (list, tuple)):
        return type(argument)(map(_wrapped, argument))
    return argument


def _value(given: Any) -> ir.Value | None:
    if given is None or isinstance(given, ir.Value):
        return given
    if isinstance(given, Value):
        return given.value
    return _constant(given)


def _constant(given: Any) -> ir.Value:
    if isinstance(given, (list, tuple)) and any(isinstance(i, (Value, ir.Value)) for i in given):
        parts = [Graph().op("Unsqueeze", i, axes_i=[0]) for i in given]
        joined: ir.Value = Graph().op("Concat", *parts, axis_i=0).value
        return joined
    array = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    if array.dtype == np.float64 and not isinstance(given, (torch.Tensor, np.ndarray)):
        array = array.astype(np.float32)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])
    node.outputs[0].dtype = ir.DataType.from_numpy(array.dtype)
    node.outputs[0].shape = ir.Shape(array.shape)
    _recorder().nodes.append(node)
    return node.outputs[0]


def _attribute(key: str, value: Any) -> tuple[str, Any]:
    found = _ATTRIBUTE.fullmatch(key)
    if found is None:
        raise OptionError(
            f"attribute '{key}' of g.op has no suffix that says its kind",
            next_step="write axis_i for whole numbers, alpha_f for floats, mode_s for texts, value_t for tensors",
        )
    name, kind = found.groups()
    if isinstance(value, (ir.Attr, ir.TensorProtocol)):
        return name, value
    if kind == "t":
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
        return name, ir.tensor(tensor.detach().cpu().numpy())
    convert: Callable[[Any], Any] = {"i": int, "f": float, "s": str}.get(kind, lambda graph: graph)
    return name, [convert(v) for v in value] if isinstance(value, (list, tuple)) else convert(value)


def _current_form(
    kind: str, opset: int, values: list[Any], attributes: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """What was an attribute when the symbolic was written, and is an input now: Squeeze's axes, Clip's min."""
    try:
        schema = onnx.defs.get_schema(kind, opset, "")
    except onnx.defs.SchemaError:
        return values, attributes
    inputs = [p.name for p in schema.inputs]
    for name in [n for n in attributes if n not in schema.attributes and n in inputs]:
        place = inputs.index(name)
        values = [*values, *[None] * (place + 1 - len(values))]
        values[place] = _constant(np.asarray(attributes.pop(name)))
    return values, attributes


def _check_form(kind: str, opset: int, attributes: dict[str, Any]) -> None:
    """Refuse an operator or an attribute that ONNX has not, at the symbolic's own line.

    Raises:
        OptionError: there is none of this name.
    """
    if not onnx.defs.has(kind):
        known = {s.name for s in onnx.defs.get_all_schemas()}
        raise OptionError(
            f"ONNX has no operator '{kind}' that g.op could add",
            next_step=did_you_mean(kind, known, 'an operator of your own is written g.op("mydomain::Name", ...)'),
        )
    try:
        schema = onnx.defs.get_schema(kind, opset, "")
    except onnx.defs.SchemaError:
        return  # of a later opset, which the conversion says
    unknown = [name for name in attributes if name not in schema.attributes]
    if unknown:
        own = ", ".join(schema.attributes) or "none"
        raise OptionError(
            f"{kind} of opset {opset} has no attribute '{unknown[0]}', which g.op gives it",
            next_step=did_you_mean(unknown[0], schema.attributes, more=f"its attributes: {own}")
            or f"its attributes: {own}",
        )


def _of_one_type(kind: str, opset: int, values: list[Any]) -> list[Any]:
    """Inputs that ONNX wants of one type made so, as TorchScript's exporter does: constants follow tensors."""
    try:
        schema = onnx.defs.get_schema(kind, opset, "")
    except onnx.defs.SchemaError:
        return values
    last = len(schema.inputs) - 1
    kinds = [schema.inputs[min(place, last)].type_str for place in range(len(values))] if last >= 0 else []
    for variable in {k for k in kinds if not k.startswith("tensor(")}:
        places = [n for n, k in enumerate(kinds) if k == variable and values[n] is not None]
        known = [values[n] for n in places if values[n].dtype is not None]
        if len({v.dtype for v in known}) < 2:
            continue
        tensors = [v for v in known if not _is_constant(v)] or known
        target = functools.reduce(torch.promote_types, (_torch_dtype(v.dtype) for v in tensors))
        for n in places:
            if _torch_dtype(values[n].dtype) != target:
                values[n] = _cast(values[n], target)
    return values


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "Constant"


def _torch_dtype(dtype: ir.DataType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.numpy().name)
    return found


def _cast(value: ir.Value, dtype: torch.dtype) -> ir.Value:
    node = value.producer()
    if node is not None and _is_constant(value) and "value" in node.attributes:
        return _constant(torch.from_numpy(node.attributes["value"].as_tensor().numpy()).to(dtype))
    number = int(ir.DataType.from_numpy(torch.empty(0, dtype=dtype).numpy().dtype))
    made: ir.Value = Graph().op("Cast", value, to_i=number).value
    made.dtype = ir.DataType(number)
    return made


def _infer(value: ir.Value, inputs: list[Any]) -> None:
    """A first guess, which shape inference betters: the type of the first input."""
    first = next((i for i in inputs if i is not None and i.dtype is not None), None)
    if first is not None:
        value.dtype = first.dtype
