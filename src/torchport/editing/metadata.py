"""What a model says about itself and its parts: set it, rename its keys, take it away."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import onnx_ir as ir

from torchport.editing.transaction import in_place
from torchport.errors import InputError
from torchport.irtools.names import unknown
from torchport.irtools.traversal import all_nodes, all_values, graphs

Properties = MutableMapping[str, str]


@in_place
def set_metadata(model: ir.Model, entries: Mapping[str, str | float | None]) -> int:
    """Set entries of the model's metadata, or take them away.

    Args:
        model: changed in place.
        entries: texts by key; a number is written as text, None takes the entry away.

    Returns:
        How many entries were set or taken away.

    Raises:
        InputError: a key or text is none, or there is no entry to take away.

    Example:
        >>> tp.graph.set_metadata(model, {"author": "vision team", "draft": None})
    """
    for key, value in entries.items():
        _check_entry(model, key, value)
    for key, value in entries.items():
        if value is None:
            del model.metadata_props[key]
        else:
            model.metadata_props[key] = str(value)
    return len(entries)


def _check_entry(model: ir.Model, key: object, value: object) -> None:
    _check_key(key)
    if value is None and key not in model.metadata_props:
        raise unknown(str(key), "metadata entry", model.metadata_props)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
        raise InputError(f"the metadata '{key}' cannot be {value!r}", next_step="give it as text, in quotes")


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise InputError(f"{key!r} cannot be a key of metadata", next_step="give a text that is not empty")


@in_place
def rename_metadata(model: ir.Model, names: Mapping[str, str]) -> int:
    """Rename keys of metadata: of the model, and of graphs, nodes and values that have them. All at once.

    Args:
        model: changed in place.
        names: new keys by old ones.

    Returns:
        How many entries have another key.

    Raises:
        InputError: a key is nowhere, or the new one is taken where it is.

    Example:
        >>> tp.graph.rename_metadata(model, {"torchport.source": "source"})
    """
    holders = [p for p in _properties(model) if not names.keys().isdisjoint(p)]
    every = {key for p in _properties(model) for key in p}
    for old, new in names.items():
        _check_key(new)
        if old not in every:
            raise unknown(old, "metadata entry", every)
    for properties in holders:
        _check_distinct(properties, names)
    count = sum(old in p and old != new for p in holders for old, new in names.items())
    for properties in holders:
        entries = {names.get(key, key): text for key, text in properties.items()}
        properties.clear()
        properties.update(entries)
    return count


def _check_distinct(properties: Properties, names: Mapping[str, str]) -> None:
    taken: dict[str, str] = {}
    for key in properties:
        new = names.get(key, key)
        if taken.setdefault(new, key) != key:
            old = key if key in names else taken[new]
            raise InputError(
                f"the metadata '{old}' cannot be renamed to '{new}', which is there already",
                next_step="take another name, or take that entry away first",
            )


@in_place
def strip_metadata(model: ir.Model, pattern: str = "*") -> int:
    """Take metadata away from the model and from its graphs, functions, nodes, values and weights.

    Args:
        model: changed in place.
        pattern: of keys, such as ``torchport.*``; ``*`` takes all of it away, and all doc strings too.

    Returns:
        How many entries and doc strings were taken away.

    Raises:
        InputError: no key is like the pattern; ``*`` may find nothing.

    Example:
        >>> tp.graph.strip_metadata(model, "pkg.torch.*")
    """
    count = _strip_docs(model) if pattern == "*" else 0
    found = [(p, key) for p in _properties(model) for key in p if fnmatch.fnmatchcase(key, pattern)]
    if not found and pattern != "*":
        raise unknown(pattern, "metadata entry like", {key for p in _properties(model) for key in p})
    for properties, key in found:
        del properties[key]
    return count + len(found)


def _properties(model: ir.Model) -> list[Properties]:
    """All metadata there is, each once."""
    return list({id(p): p for p in (h.metadata_props for h in _holders(model))}.values())


def _holders(model: ir.Model) -> Iterator[Any]:
    """What can say something of itself; a function says it with its graph."""
    _make_tensors_writable(model)
    yield model
    yield from graphs(model)
    yield from all_nodes(model)
    yield from all_values(model)
    yield from (v.const_value for v in all_values(model) if v.const_value is not None)
    yield from (a.as_tensor() for _, a in _tensor_attributes(model))


def _strip_docs(model: ir.Model) -> int:
    attributes = [a for node in all_nodes(model) for a in node.attributes.values()]
    found = [h for h in (*_holders(model), *attributes) if h.doc_string]
    for holder in found:
        holder.doc_string = ""
    return len(found)


def _tensor_attributes(model: ir.Model) -> list[tuple[ir.Node, ir.Attr]]:
    every = [(node, a) for node in all_nodes(model) for a in node.attributes.values()]
    return [(node, a) for node, a in every if a.type == ir.AttributeType.TENSOR and not a.is_ref()]


def _make_tensors_writable(model: ir.Model) -> None:
    """A tensor read from a file keeps what the file said of it; those with something to say are made anew."""
    for value in all_values(model):
        if value.const_value is not None and _is_fixed(value.const_value):
            value.const_value = _anew(value.const_value)
    for node, attribute in _tensor_attributes(model):
        if _is_fixed(attribute.as_tensor()):
            tensor = _anew(attribute.as_tensor())
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, tensor, attribute.doc_string)


def _is_fixed(tensor: ir.TensorProtocol) -> bool:
    return isinstance(tensor, ir.serde.TensorProtoTensor) and bool(tensor.metadata_props or tensor.doc_string)


def _anew(tensor: Any) -> ir.TensorProtocol:
    story = {"name": tensor.name, "doc_string": tensor.doc_string, "metadata_props": dict(tensor.metadata_props)}
    shape = ir.Shape(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(list(tensor.string_data()), shape=shape, **story)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=shape, **story)
