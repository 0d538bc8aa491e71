"""The summary of a model for its page: facts with what each means, and tables that sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchport.inspection.description import Description, amount
from torchport.terminal import human, human_bytes, shape_text

Cell = str | dict[str, Any]
Fact = tuple[str, str, str]
_MOST_ROWS = 2000


def number(value: float, text: str = "") -> Cell:
    """Return a cell that sorts by a number and shows a text."""
    return {"text": text or f"{value:,}", "number": value}


def node(name: str, numbers: Mapping[str, int], text: str = "") -> Cell:
    """Return a cell that leads to a node of the graph."""
    return {"text": text or name, "node": numbers.get(name, -1)}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> dict[str, Any]:
    return {"title": title, "note": note, "columns": list(columns), "rows": [list(row) for row in rows[:_MOST_ROWS]]}


def verdict(description: Description) -> dict[str, str]:
    """Return what the proof in the metadata says, as whoever wrote the file put it there."""
    proof = description.proof
    if "unproven" in description.origin:
        return {"state": "bad", "text": f"saved unproven: {description.origin['unproven']}"}
    if proof is None:
        return {"state": "none", "text": "no proof is saved with the model; torchport verify makes one"}
    if proof.get("passed") is not True:
        return {"state": "bad", "text": "the proof saved with the model FAILED"}
    cases = proof.get("cases")
    passed = cases.get("pass", "?") if isinstance(cases, dict) else "?"
    engine = proof.get("engine", "?")
    worst = proof.get("max_rel")
    error = f", largest relative error {worst:.1e}" if isinstance(worst, float) else ""
    return {"state": "good", "text": f"as its metadata says: {passed} cases agreed with PyTorch in {engine}{error}"}


def facts(d: Description) -> list[Fact]:
    """Return what stands at the top of the page: a label, a value, and what it means."""
    tensors = [("input", i) for i in d.inputs] + [("output", o) for o in d.outputs]
    found: list[Fact] = [
        (side, f"{info.name}: {shape_text(info.dtype, info.shape)}", _MEANINGS[side]) for side, info in tensors
    ]
    found += [
        ("nodes", f"{d.nodes:,}", _MEANINGS["nodes"]),
        ("parameters", f"{human(d.parameters)} ({d.parameters:,})", _MEANINGS["parameters"]),
        ("weights", human_bytes(d.weight_bytes), _MEANINGS["weights"]),
        ("multiply-adds", _work(d), _MEANINGS["multiply-adds"]),
        ("peak memory", amount(d.cost.peak, of_bytes=True), _MEANINGS["peak memory"]),
        ("opset", ", ".join(f"{k} {v}" for k, v in d.opsets.items()), _MEANINGS["opset"]),
        ("IR version", str(d.ir_version), _MEANINGS["IR version"]),
        ("made by", d.producer, _MEANINGS["made by"]),
        ("graph", d.name, _MEANINGS["graph"]),
        ("model version", "" if d.model_version is None else str(d.model_version), _MEANINGS["model version"]),
        ("sizes that vary", ", ".join(d.symbols), _MEANINGS["sizes that vary"]),
        ("file", d.path, ""),
    ]
    found += [(key, _flat(value), "torchport wrote it when it exported the model.") for key, value in d.origin.items()]
    found += [(key, value, _MEANINGS["metadata"]) for key, value in d.metadata.items()]
    return [(label, value[:1000], meaning) for label, value, meaning in found if value]


def _work(d: Description) -> str:
    total = amount(d.cost.multiply_adds)
    if not d.cost.unknown:
        return total
    return f"at least {total}" if d.cost.multiply_adds else "unknown, as shapes are"


def _flat(value: Any) -> str:
    """Return an entry of the metadata in a line: ``torch 2.13.0, onnx 1.23.2``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_flat(one)}" for key, one in value.items())
    return ", ".join(map(_flat, value)) if isinstance(value, list) else str(value)


_MEANINGS = {
    "input": "A tensor that the caller gives: its name, the type of its numbers, and the size of each axis. A name in "
    "place of a number is a size that may vary; the same name means the same size everywhere.",
    "output": "A tensor that a run gives back, with its type and the size of each axis.",
    "nodes": "Calls of operators. Each reads tensors by name and makes new ones; together they are the graph, in an "
    "order in which each tensor is made before it is read. Those of branches, loop bodies and functions count too.",
    "parameters": "Numbers that were learned. Shapes, indices and single numbers are none.",
    "weights": "Tensors that are stored with the model (ONNX calls them initializers), in the file or in a data file.",
    "multiply-adds": "Of convolutions, matrix products, recurrent layers and attention in one run.",
    "peak memory": "Of activations that live at once in the order of the nodes. Weights are not in it, and an engine "
    "that works in place needs less.",
    "opset": "The version of each set of operators that the nodes are of. ai.onnx is ONNX's own. What an operator does "
    "may differ from one version to the next; an engine must know the version.",
    "IR version": "The version of the file format itself: which fields it has. It goes with the release of onnx.",
    "made by": "The program that wrote the file (producer_name and producer_version).",
    "graph": "The name of the main graph. It has no effect.",
    "model version": "A number for the owner of the model to count its versions. It has no effect.",
    "sizes that vary": "Names of dynamic dimensions: a run decides how large they are.",
    "metadata": "An entry of metadata_props: pairs of texts that anybody may put into a model. They have no effect.",
}


def tables(d: Description) -> list[dict[str, Any]]:
    """Return the operators, the largest weights and the modules."""
    return [_operators(d), _weights(d), *([_modules(d)] if d.modules else [])]


def _operators(d: Description) -> dict[str, Any]:
    costs = d.cost.by_operator
    rows = [[name, number(count), amount(costs[name]) if name in costs else ""] for name, count in d.operators.items()]
    return table("Operators", ("operator", "nodes", "multiply-adds"), rows)


def _weights(d: Description) -> dict[str, Any]:
    rows = [[w.name, shape_text(w.dtype, w.shape), number(w.bytes, human_bytes(w.bytes)), w.file] for w in d.weights]
    note = f"the largest {_MOST_ROWS} of {len(rows)}" if len(rows) > _MOST_ROWS else ""
    return table("Weights", ("name", "type", "size", "file"), rows, note)


def _modules(d: Description) -> dict[str, Any]:
    rows = [
        [m.path or "(the model)", number(m.nodes), number(m.parameters, human(m.parameters)), amount(m.multiply_adds)]
        for m in d.modules
    ]
    return table("Modules", ("module", "nodes", "parameters", "multiply-adds"), rows)
