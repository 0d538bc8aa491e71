"""Give tensors, nodes and dimensions other names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from torchport.editing.transaction import in_place
from torchport.errors import InputError
from torchport.irtools.dims import IDENTIFIER, Dims, change_dims, dim_names, roots_in
from torchport.irtools.metadata import ANNOTATION, DIMS, PROOF
from torchport.irtools.names import check_owned, unknown
from torchport.irtools.traversal import all_nodes, all_values, bodies, own_values, subgraphs


@in_place
def rename(model: ir.Model, names: Mapping[str | ir.Node | ir.Value, str], *, kind: str | None = None) -> int:
    """Rename tensors, nodes and dimensions, wherever they occur: in branches, bodies and functions too.

    All renames of one call happen at once, so two names can be swapped.

    Args:
        model: changed in place.
        names: new names by old ones. With ``*`` in both, all names that match: ``{"encoder.*": "enc.*"}``. A node or
            value in place of an old name is renamed by itself.
        kind: ``tensor`` (inputs, outputs and weights are tensors), ``node`` or ``dim``; None for what the old name is.

    Returns:
        How many tensors and nodes were renamed, and how many tensors have a dimension that was.

    Raises:
        InputError: an old name is unknown or of several kinds, or a new one is taken or no name.

    Example:
        >>> tp.graph.rename(model, {"x": "image", "batch": "n"})
        >>> tp.graph.rename(model, {"encoder.*": "enc.*"}, kind="tensor")
    """
    own = {old: new for old, new in names.items() if not isinstance(old, str)}
    check_owned(model, *own)
    plans = _plans(model, {old: new for old, new in names.items() if isinstance(old, str)}, kind)
    for old, new in own.items():
        _check_is_name(old.name, new)
        plans.setdefault("node" if isinstance(old, ir.Node) else "tensor", {})[old] = new
    for one, plan in plans.items():
        _CHECKS[one](model, plan)
    return sum(_CHANGES[one](model, plan) for one, plan in plans.items())


def expanded(old: str, new: str, known: Iterable[str]) -> dict[str, str]:
    """The names that a pattern with ``*`` means, each with its new name; a plain name means itself."""
    names = set(known)
    if "*" not in old or old in names:
        return {old: new} if old in names else {}
    if old.count("*") != new.count("*"):
        raise InputError(
            f"the pattern '{old}' has {old.count('*')} '*', the new name '{new}' has {new.count('*')}",
            next_step="give both as many: each '*' of the new name is what that of the old one stood for",
        )
    pattern = re.compile("(.*)".join(re.escape(part) for part in old.split("*")))
    found = {name: match.groups() for name in names if (match := pattern.fullmatch(name))}
    return {name: _filled(new, parts) for name, parts in found.items()}


def _filled(new: str, parts: tuple[str, ...]) -> str:
    pieces = new.split("*")
    return pieces[0] + "".join(part + piece for part, piece in zip(parts, pieces[1:], strict=True))


# --- which names are meant --------------------------------------------------------------------------------------------

_Plan = dict[Any, str]  # new names by old ones, or by the node or value


def _new_name(plan: _Plan, one: ir.Node | ir.Value) -> str:
    old = one.name or ""
    return plan.get(one, plan.get(old, old))


def _plans(model: ir.Model, names: Mapping[str, str], kind: str | None) -> dict[str, _Plan]:
    """The renames of each kind, patterns written out."""
    if kind is not None and kind not in _NAMES:
        raise InputError(f"there is no kind '{kind}' of names", next_step=f"it is one of {', '.join(_NAMES)}")
    known = {one: _NAMES[one](model) for one in ([kind] if kind else _NAMES)}
    plans: dict[str, _Plan] = {}
    for old, new in names.items():
        _check_is_name(old, new)
        found = {one: {old: new} for one in known if old in known[one]}
        found = found or {one: plan for one in known if (plan := expanded(old, new, known[one]))}
        if not found:
            raise unknown(old, kind or "tensor, node or dimension", set().union(*known.values()))
        if len(found) > 1:
            raise InputError(
                f"'{old}' is the name of a {' and of a '.join(found)}",
                next_step=f"say which is meant: kind='{next(iter(found))}', or --rename-{next(iter(found))}",
            )
        for one, plan in found.items():
            _join(plans.setdefault(one, {}), plan)
    return plans


def _check_is_name(old: object, new: object) -> None:
    if not isinstance(new, str) or not new.strip():
        raise InputError(f"{new!r} is no new name for '{old}'", next_step="give a text that is not empty")


def _join(plan: _Plan, more: _Plan) -> None:
    for old, new in more.items():
        if plan.setdefault(old, new) != new:
            raise InputError(f"'{old}' would be renamed to '{plan[old]}' and to '{new}'", next_step="give one new name")


def _tensor_names(model: ir.Model) -> set[str]:
    return {v.name for v in all_values(model) if v.name}


def _node_names(model: ir.Model) -> set[str]:
    return {n.name for n in all_nodes(model) if n.name}


# --- whether they may be had ------------------------------------------------------------------------------------------


def _check_tensors(model: ir.Model, plan: _Plan) -> None:
    for body in bodies(model):
        _check_scope(body, plan, {})


def _check_scope(graph: ir.Graph, plan: _Plan, outer: Mapping[str, str]) -> None:
    """No two values of a graph, or of one and a graph around it, come to have one name."""
    seen = dict(outer)
    for value in dict.fromkeys(own_values(graph)):
        if not value.name:
            continue
        name = _new_name(plan, value)
        first = seen.setdefault(name, value.name)
        if first != value.name:  # if equal, an inner name hides an outer one already, and goes on doing so
            raise _taken(value.name if name != value.name else first, name, "tensor")
    for node in graph:
        for inner in subgraphs(node):
            _check_scope(inner, plan, seen)


def _taken(old: str, new: str, what: str) -> InputError:
    return InputError(
        f"'{old}' cannot be renamed to '{new}': another {what} has that name",
        next_step="take another name, or rename that one in the same call",
    )


def _check_nodes(model: ir.Model, plan: _Plan) -> None:
    for body in bodies(model):
        names = [(n.name or "", _new_name(plan, n)) for n in body.all_nodes()]
        kept = {new for old, new in names if old == new}
        changed = [(old, new) for old, new in names if old != new]
        for old, new in changed:
            if new in kept or any(new == other and old != name for name, other in changed):
                raise _taken(old, new, "node")


def _check_distinct(plan: _Plan, names: set[str], what: str) -> None:
    seen = {name: name for name in names if name not in plan}
    for old, new in plan.items():
        if old in names and seen.setdefault(new, old) != old:
            raise _taken(old, new, what)


def _check_dims(model: ir.Model, plan: _Plan) -> None:
    for old, new in plan.items():
        if not IDENTIFIER.fullmatch(new):
            raise InputError(
                f"'{new}' cannot be the name of dimension '{old}'",
                next_step="take letters, digits and _, as others read signs in it as an expression",
            )
    _check_distinct(plan, dim_names(model), "dimension")


# --- the renaming -----------------------------------------------------------------------------------------------------


def _rename_tensors(model: ir.Model, plan: _Plan) -> int:
    values = list(all_values(model))
    new = {v: _new_name(plan, v) for v in values}
    found = [v for v in values if v.name and new[v] != v.name]
    by_name = {v.name: new[v] for v in found}
    ir.convenience.rename_values(found, [new[v] for v in found])
    for value in values:
        annotation = value.meta.get(ANNOTATION)
        if annotation:
            value.meta[ANNOTATION] = {key: by_name.get(name, name) for key, name in annotation.items()}
    return len(found)


def _rename_nodes(model: ir.Model, plan: _Plan) -> int:
    found = [(n, name) for n in all_nodes(model) if (name := _new_name(plan, n)) != (n.name or "")]
    for node, name in found:
        node.name = name
    return len(found)


def _rename_dims(model: ir.Model, plan: _Plan) -> int:
    dims = Dims.of(model)

    def renamed(text: str) -> str:
        return dims.renamed(text, plan)

    _rename_in_metadata(model, plan)
    return sum(change_dims(value, renamed) for value in all_values(model))


def _rename_in_metadata(model: ir.Model, plan: _Plan) -> None:
    """The metadata has names in expressions; and the proof in it has the sizes that were tried, by dimension."""
    if roots := roots_in(model):
        model.metadata_props[DIMS] = json.dumps([plan.get(name, name) for name in roots])
    try:
        proof = json.loads(model.metadata_props.get(PROOF, "{}"))
    except ValueError:
        return  # somebody else's text
    if isinstance(proof, dict) and isinstance(proof.get("sizes"), dict):
        proof["sizes"] = {plan.get(name, name): sizes for name, sizes in proof["sizes"].items()}
        model.metadata_props[PROOF] = json.dumps(proof, sort_keys=True)


_NAMES: dict[str, Callable[[ir.Model], set[str]]] = {"tensor": _tensor_names, "node": _node_names, "dim": dim_names}
_CHECKS = {"tensor": _check_tensors, "node": _check_nodes, "dim": _check_dims}
_CHANGES = {"tensor": _rename_tensors, "node": _rename_nodes, "dim": _rename_dims}
