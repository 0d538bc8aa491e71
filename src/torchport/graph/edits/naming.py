"""Give tensors, nodes and dimensions other names."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.choosing import PROOF, every_node
from torchport.graph.shapes import values_of
from torchport.graph.values import subgraphs
from torchport.graph.weights import bodies

ANNOTATION = "quant_parameter_tensor_names"  # where onnx-ir keeps the tensors a quantization annotation names
_IDENTIFIER = re.compile(r"[^\W\d][\w.]*")
_CALLED = re.compile(r"\s*\(")


def rename(model: ir.Model, names: Mapping[str, str], *, kind: str | None = None) -> int:
    """Rename tensors, nodes and dimensions, wherever they occur: in branches, bodies and functions too.

    All renames of one call happen at once, so two names can be swapped.

    Args:
        model: changed in place.
        names: new names by old ones. With ``*`` in both, all names that match: ``{"encoder.*": "enc.*"}``.
        kind: ``tensor`` (inputs, outputs and weights are tensors), ``node`` or ``dim``; None for what the old name is.

    Returns:
        How many tensors and nodes were renamed, and how many tensors have a dimension that was.

    Raises:
        InputError: an old name is unknown or of several kinds, or a new one is taken or no name.

    Example:
        >>> tp.graph.rename(model, {"x": "image", "batch": "n"})
        >>> tp.graph.rename(model, {"encoder.*": "enc.*"}, kind="tensor")
    """
    plans = _plans(model, names, kind)
    for one, plan in plans.items():
        _CHECKS[one](model, plan)
    return sum(_CHANGES[one](model, plan) for one, plan in plans.items())


def unknown(name: str, what: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not there, with those close to it."""
    close = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return InputError(
        f"there is no {what} '{name}' in the model",
        next_step=f"did you mean {', '.join(close)}?" if close else "`torchport inspect` lists what there is",
    )


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


def each_value(model: ir.Model) -> Iterator[ir.Value]:
    """Every value of a model once: of its graph, of branches and bodies inside it, and of its functions."""
    for body in bodies(model):
        for graph in (body, *body.subgraphs()):
            yield from dict.fromkeys(values_of(graph))


# --- which names are meant --------------------------------------------------------------------------------------------

_Plan = dict[str, str]


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
    return {v.name for v in each_value(model) if v.name}


def _node_names(model: ir.Model) -> set[str]:
    return {n.name for n in every_node(model) if n.name}


def dim_names(model: ir.Model) -> set[str]:
    """Names of dimensions, also those that occur in expressions only."""
    return {name for v in each_value(model) if v.shape is not None for name in dims_in(v.shape)}


def dims_in(shape: ir.Shape) -> set[str]:
    """The names of dimensions in a shape."""
    texts = {d.value for d in shape if isinstance(d, ir.SymbolicDim) and d.value}
    return {name for text in texts for name in ([text] if _IDENTIFIER.fullmatch(text) else _symbols(text))}


def _symbols(text: str) -> list[str]:
    """The names in an expression; a text that is no expression is a name itself."""
    found = [m.group() for m in _IDENTIFIER.finditer(text) if not _CALLED.match(text, m.end())]
    is_expression = re.fullmatch(r"[\w.\s()+\-*/%,]+", text) is not None
    return found if found and is_expression else [text]


# --- whether they may be had ------------------------------------------------------------------------------------------


def _check_tensors(model: ir.Model, plan: _Plan) -> None:
    for body in bodies(model):
        _check_scope(body, plan, {})


def _check_scope(graph: ir.Graph, plan: _Plan, outer: Mapping[str, str]) -> None:
    """No two values of a graph, or of one and a graph around it, come to have one name."""
    seen = dict(outer)
    for value in dict.fromkeys(values_of(graph)):
        if not value.name:
            continue
        name = plan.get(value.name, value.name)
        first = seen.setdefault(name, value.name)
        if first != value.name:  # if equal, an inner name hides an outer one already, and goes on doing so
            raise _taken(value.name if value.name in plan else first, name, "tensor")
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
        _check_distinct(plan, {n.name for n in body.all_nodes() if n.name}, "node")


def _check_distinct(plan: _Plan, names: set[str], what: str) -> None:
    seen = {name: name for name in names if name not in plan}
    for old, new in plan.items():
        if old in names and seen.setdefault(new, old) != old:
            raise _taken(old, new, what)


def _check_dims(model: ir.Model, plan: _Plan) -> None:
    for old, new in plan.items():
        if not _IDENTIFIER.fullmatch(new):
            raise InputError(
                f"'{new}' cannot be the name of dimension '{old}'",
                next_step="take letters, digits and _, as others read signs in it as an expression",
            )
    _check_distinct(plan, dim_names(model), "dimension")


# --- the renaming -----------------------------------------------------------------------------------------------------


def _rename_tensors(model: ir.Model, plan: _Plan) -> int:
    values = list(each_value(model))
    found = [v for v in values if v.name in plan and plan[v.name] != v.name]
    ir.convenience.rename_values(found, [plan[str(v.name)] for v in found])
    for value in values:
        annotation = value.meta.get(ANNOTATION)
        if annotation:
            value.meta[ANNOTATION] = {key: plan.get(name, name) for key, name in annotation.items()}
    return len(found)


def _rename_nodes(model: ir.Model, plan: _Plan) -> int:
    found = [n for n in every_node(model) if n.name in plan and plan[n.name] != n.name]
    for node in found:
        node.name = plan[str(node.name)]
    return len(found)


def _rename_dims(model: ir.Model, plan: _Plan) -> int:
    def renamed(text: str) -> str:
        return dim_with(text, plan)

    _rename_in_proof(model, plan)
    return sum(change_dims(value, renamed) for value in each_value(model))


def dim_with(text: str, names: Mapping[str, str]) -> str:
    """A dimension's name or expression with other names in it."""
    if text in names:
        return names[text]

    def one(match: re.Match[str]) -> str:
        return match.group() if _CALLED.match(text, match.end()) else names.get(match.group(), match.group())

    return _IDENTIFIER.sub(one, text)


def change_dims(value: ir.Value, change: Callable[[str], str | int]) -> bool:
    """Exchange the symbolic dimensions of a value; whether any is another now. Its shape may be shared: it gets one."""
    if value.shape is None:
        return False
    dims = [d if isinstance(d, int) or d.value is None else change(d.value) for d in value.shape]
    same = all(a == b for a, b in zip(dims, value.shape, strict=True))
    if not same:
        value.shape = ir.Shape(dims, denotations=[value.shape.get_denotation(n) for n in range(len(dims))])
    return not same


def _rename_in_proof(model: ir.Model, plan: _Plan) -> None:
    """The proof in the metadata says which sizes were tried, by dimension."""
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
