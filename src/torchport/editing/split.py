"""Split a model into consecutive parts that, one after the other, give the whole's answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from torchport.editing.extract import Place, cut, listed
from torchport.editing.selection import Tensor
from torchport.errors import InputError
from torchport.files.onnx_files import ModelLike, as_model
from torchport.irtools.names import Names, check_owned
from torchport.irtools.traversal import used_values


def split(model: ModelLike, at: Tensor | Sequence[Tensor] | int) -> list[ir.Model]:
    """Consecutive parts. Each takes by name what the model takes and earlier parts give.

    Args:
        model: a model or a file.
        at: tensors at which a part ends, or their names, in the order of the graph; or a number of parts of even cost
            (bytes of weights and of activations, where their sizes are known).

    Raises:
        InputError: a tensor is unknown, or there are fewer places than parts.

    Example:
        >>> first, second = tp.graph.split("model.onnx", at=["relu_4"])
    """
    whole = as_model(model)
    nodes = list(whole.graph)
    groups = _even(nodes, at) if isinstance(at, int) else _at(whole, nodes, listed(at))
    parts: list[ir.Model] = []
    known = {v: None for v in whole.graph.inputs if not v.is_initializer()}
    for place, group in enumerate(groups):
        inside = set(group)
        later = {v for g in groups[place + 1 :] for n in g for v in used_values(n)} | set(whole.graph.outputs)
        entering = {
            v: None for n in group for v in used_values(n) if v.producer() not in inside and not v.is_initializer()
        }
        given = [str(v.name) for n in group for v in n.outputs if v in later]
        if not given:
            raise InputError("a part would give nothing that is used", next_step="split at other tensors")
        parts.append(cut(whole, [str(v.name) for v in entering if v in known or v.producer() is not None], given))
        known.update({v: None for n in group for v in n.outputs})
    return parts


def _at(model: ir.Model, nodes: list[ir.Node], tensors: Sequence[Place]) -> list[list[ir.Node]]:
    """The nodes each tensor needs beyond those before it; what is left comes last."""
    names = Names(model)
    taken: set[ir.Node] = set()
    groups: list[list[ir.Node]] = []
    check_owned(model, *(one for one in tensors if not isinstance(one, str)))
    for tensor in (one if isinstance(one, str) else str(one.name) for one in tensors):
        needed = _before(names.value(tensor))
        group = [n for n in nodes if n in needed and n not in taken]
        if not group:
            raise InputError(
                f"nothing is left before '{tensor}'", next_step="name the tensors in the order of the graph, inputs not"
            )
        taken.update(group)
        groups.append(group)
    rest = [n for n in nodes if n not in taken]
    return [*groups, rest] if rest else groups


def _before(value: ir.Value) -> set[ir.Node]:
    found: set[ir.Node] = set()
    waiting = [value]
    while waiting:
        producer = waiting.pop().producer()
        if producer is not None and producer not in found:
            found.add(producer)
            waiting += used_values(producer)
    return found


def _even(nodes: list[ir.Node], parts: int) -> list[list[ir.Node]]:
    if parts < 1 or parts > len(nodes):
        raise InputError(f"{len(nodes)} nodes cannot be split into {parts} parts", next_step="give a smaller number")
    seen: set[ir.Value] = set()
    costs: list[int] = []
    for node in nodes:
        new = [v for v in used_values(node) if v.is_initializer() and v not in seen]
        seen.update(new)
        costs.append(1 + sum(_bytes(v) for v in (*new, *node.outputs)))
    total, groups, spent = sum(costs), [[]], 0  # type: tuple[int, list[list[ir.Node]], int]
    for place, (node, cost) in enumerate(zip(nodes, costs, strict=True)):
        left = len(nodes) - place
        full = spent + cost / 2 > total * len(groups) / parts and bool(groups[-1])
        if len(groups) < parts and (full or left <= parts - len(groups)) and groups[-1]:
            groups.append([])
        groups[-1].append(node)
        spent += cost
    return groups


def _bytes(value: ir.Value) -> int:
    if value.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return 0  # texts have no size before they are there
    if value.const_value is not None:
        return value.const_value.nbytes
    if value.dtype is None or value.shape is None:
        return 0
    return int(math.prod(d for d in value.shape if isinstance(d, int)) * value.dtype.itemsize)
