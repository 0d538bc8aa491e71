"""Shapes of a graph that make ONNX Runtime crash, turned into equal ones that do not.

Transpose → Cast → MatMul, where more than the last two axes are turned: its MatmulTransposeFusion leaves a graph that
a later step reads past the end of (seen in 1.31.1; a segmentation fault when the session is made). Casting first
and turning then is the same.
"""

from __future__ import annotations

import onnx_ir as ir


def avoid(model: ir.Model) -> None:
    """Turn Transpose → Cast → MatMul into Cast → Transpose → MatMul, everywhere in the model."""
    for node in list(model.graph.all_nodes()):
        for value in node.inputs if node.op_type == "MatMul" else ():
            cast = value.producer() if value is not None else None
            turn = _behind(cast) if cast is not None else None
            if cast is not None and turn is not None:
                _swap(turn, cast)


def _behind(cast: ir.Node) -> ir.Node | None:
    """The transposition that feeds a cast."""
    given = cast.inputs[0] if cast.op_type == "Cast" else None
    turn = given.producer() if given is not None else None
    return turn if turn is not None and turn.op_type == "Transpose" else None


def _swap(turn: ir.Node, cast: ir.Node) -> None:
    """Others may use what `turn` gives, so it stays if they do."""
    given, result = turn.inputs[0], cast.outputs[0]
    graph = cast.graph
    assert given is not None
    assert graph is not None
    first = ir.node("Cast", [given], dict(cast.attributes))
    second = ir.node("Transpose", [first.outputs[0]], dict(turn.attributes))
    first.outputs[0].name = f"{result.name}.unturned"
    first.outputs[0].type, first.outputs[0].shape = result.type, given.shape
    second.outputs[0].type, second.outputs[0].shape = result.type, result.shape
    for old, new in ((cast, first), (turn, second)):
        new.metadata_props.update(old.metadata_props)
    graph.insert_before(cast, [first, second])
    result.replace_all_uses_with(second.outputs[0], replace_graph_outputs=True)
    second.outputs[0].name, result.name = result.name, f"{result.name}.unused"
    for old in (cast, turn):
        if not old.outputs[0].uses() and not old.outputs[0].is_graph_output():
            assert old.graph is not None
            old.graph.remove(old, safe=True)
