"""Put other nodes in the place of some: an operator, nodes in ONNX text or Python, or a whole model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.editing.fragment import Fragment, adopted, is_model, is_text, of_model, operator, parse
from torchport.editing.selection import Nodes, find
from torchport.editing.splice import Graft, Grafting, is_used
from torchport.editing.transaction import in_place, unproves
from torchport.errors import InputError
from torchport.files.onnx_files import ModelLike
from torchport.irtools import schemas
from torchport.irtools.inference import infer_missing
from torchport.irtools.names import where
from torchport.irtools.traversal import Match, current, opset_of

By = ModelLike | Callable[..., Any]


@in_place
@unproves
def replace(
    model: ir.Model,
    what: Nodes | Callable[..., Any],
    by: By,
    *,
    attributes: Mapping[str, Any] | None = None,
    inputs: Sequence[Any] | None = None,
) -> int:
    """Replace nodes, in the graph, its branches and its functions.

    The outputs keep their names and types; nodes keep where they came from. A place whose inner values are used
    elsewhere is passed over, and if all are like that, it is an error.

    Args:
        model: changed in place, or not at all.
        what: a node or its name, an operator, a pattern of names (``block*``), or a list of these; or nodes in ONNX
            text, whose names are variables: ``(x, y) => (z) { t = Mul(x, y)  z = Relu(t) }``; or a function in the
            style of onnxscript's rewriter.
        by: an operator (``Gelu``, ``com.example::Foo``); nodes in text, with the same variables, or those of the node
            in order; a function, given a builder and what the pattern found, or the node's inputs and the attributes
            it names; a model or an ``.onnx`` file.
        attributes: of the operator, added to those of the old node that it also has; None takes one off.
        inputs: of the operator, in place of all: variables of the pattern, ``#1`` for the node's second input, names of
            tensors, numbers and lists.

    Returns:
        How many places were replaced.

    Raises:
        InputError: nothing is found, what is put in does not fit, or its outputs have other types or shapes.
        OpsetError: a model that is put in cannot be expressed in this one's opset.

    Example:
        >>> tp.graph.replace(model, "Relu", "LeakyRelu", attributes={"alpha": 0.1})
        >>> tp.graph.replace(model, "(x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }", "com.example::Swish")
    """
    infer_missing(model)
    found = find(model, what)
    graft = Grafting(model)
    moved: dict[ir.Value, ir.Value] = {}
    maker = _Maker(graft, by, dict(attributes or {}), inputs)
    count = 0
    for match in found:
        now = current(match, moved)
        new = maker.make(now)
        if new is not None:
            moved.update(graft.put(now, new))
            count += 1
    graft.finish()
    if not count:
        raise InputError(
            "the function replaced none of the places it was given", next_step="let it return the new outputs"
        )
    return count


class _Maker:
    """Makes, for each place, what is to be put there."""

    def __init__(self, graft: Grafting, by: By, attributes: dict[str, Any], inputs: Sequence[Any] | None) -> None:
        self._graft = graft
        self._by = by
        self._attributes = attributes
        self._inputs = inputs
        self._fragment: Fragment | None = None
        if is_text(by):
            self._fragment = parse(str(by))
        elif is_model(by):
            self._fragment = adopted(graft.model, of_model(by))  # type: ignore[arg-type]
        if (attributes or inputs is not None) and (self._fragment is not None or callable(by)):
            raise InputError("attributes and inputs are for an operator's name", next_step="write them into the nodes")

    def make(self, match: Match) -> Graft | None:
        if callable(self._by):
            return self._by_function(match)
        if self._fragment is None:
            return self._operator(match)
        values = _arguments(self._fragment, match)
        return self._graft.copy(self._fragment, values, match.attributes, _base(match), match.scope)

    def _by_function(self, match: Match) -> Graft | None:
        from onnxscript import TapeBuilder

        tape = TapeBuilder()
        assert callable(self._by)
        given = match.bound if match.bound is not None else match.inputs
        own = match.bound is None and all(name.startswith("#") for name in given)
        wanted = {k: a for k, a in match.attributes.items() if own and k in inspect.signature(self._by).parameters}
        made = self._by(tape, *given.values(), **wanted) if own else self._by(tape, **given)
        if made is None or made is False:
            return None
        outputs = list(made) if isinstance(made, (list, tuple)) else [made]
        return self._graft.named(Graft(list(tape.nodes), outputs, list(tape.initializers)), _base(match), match.scope)

    def _operator(self, match: Match) -> Graft:
        name = str(self._by)
        schema = schemas.schema_of(name, opset_of(match.scope))
        values = self._values(match, schema)
        kept = {
            k: a for k, a in match.attributes.items() if a is not None and (schema is None or k in schema.attributes)
        }
        given = {**kept, **schemas.attributes_of(self._attributes, schema)}
        outputs = list(match.outputs)
        while len(outputs) > 1 and not is_used(outputs[-1]):
            outputs.pop()
        whole = {k: a for k, a in given.items() if a is not None}
        refs = {str(a.ref_attr_name): a for a in whole.values() if a.is_ref()}
        fragment = operator(name, len(values), max(len(outputs), schema.min_output if schema else 1), whole)
        return self._graft.copy(fragment, values, refs, _base(match), match.scope)

    def _values(self, match: Match, schema: Any) -> list[ir.Value | None]:
        if self._inputs is None:
            return list(match.inputs.values())
        return self._graft.values(self._inputs, match.inputs, match.nodes[0], match.scope, schema)


def _arguments(fragment: Fragment, match: Match) -> list[ir.Value | None]:
    """What the fragment's inputs are: by name where it has the pattern's variables, else in order."""
    names = [str(v.name) for v in fragment.graph.inputs]
    if all(name in match.inputs for name in names):
        return [match.inputs[name] for name in names]
    ordered = list(match.inputs.values())
    while len(ordered) > len(names) and ordered[-1] is None:
        ordered.pop()
    if len(ordered) == len(names) and (fragment.named or any(n.startswith("#") for n in match.inputs)):
        return ordered
    unknown = [name for name in names if name not in match.inputs]
    there = (
        f"there are {', '.join(match.inputs)}"
        if not any(n.startswith("#") for n in match.inputs)
        else (f"{where(match.nodes[0])} has {len(ordered)} inputs, {fragment.title} takes {len(names)}")
    )
    raise InputError(f"{fragment.title} takes '{unknown[0]}', which is not in what it replaces", next_step=there)


def _base(match: Match) -> str:
    node = match.nodes[-1]
    return str(node.name or next((v.name for v in match.outputs if v.name), node.op_type))
