"""What a model says about itself and its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from torchport.editing.metadata import rename_metadata, set_metadata, strip_metadata
from torchport.errors import InputError
from torchport.inspection.lint.linter import lint

PLACES = 16  # the model, 3 graphs, 7 nodes, a function, 2 inputs, a weight and the tensor of a Constant


def told() -> ir.Model:
    """A model that has something to say everywhere."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17, "my": 1]> g (bool c, float[3] x) => (float[3] y)'
        "<float[3] w = {1,2,3}> { k = Constant<value = float[3] {1,2,3}>() s = Add(w, k) f = my.F(s)"
        "y = If(c) <then_branch = t () => (float[3] a) { a = Neg(f) },"
        "           else_branch = e () => (float[3] b) { b = Add(x, f) }> }"
        '<domain: "my", opset_import: ["": 17]> F (p) => (q) { q = Relu(p) }'
    )
    graphs = [proto.graph, *(a.g for n in proto.graph.node for a in n.attribute if a.HasField("g"))]
    nodes = [n for g in graphs for n in g.node] + list(proto.functions[0].node)
    constant = proto.graph.node[0].attribute[0].t
    holders = [proto, *graphs, *nodes, proto.functions[0], *proto.graph.input, *proto.graph.initializer, constant]
    for holder in holders:
        holder.doc_string = "secret"
        holder.metadata_props.add(key="secret.place", value="here")
    return ir.from_proto(proto)


def text(given: ir.Model) -> bytes:
    assert [f for f in lint(given) if f.severity == "error"] == []
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def refused(given: ir.Model, words: str, edit: Callable[..., int], *args: Any) -> InputError:
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    with pytest.raises(InputError, match=words) as caught:
        edit(given, *args)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before
    return caught.value


def test_entries_are_set_and_taken_away() -> None:
    given = told()
    assert set_metadata(given, {"author": "us", "year": 2026, "secret.place": None}) == 3
    assert dict(given.metadata_props) == {"author": "us", "year": "2026"}
    assert b"author" in text(given)


def test_entries_that_cannot_be_are_refused() -> None:
    given = told()
    given.metadata_props["author"] = "us"
    error = refused(given, "no metadata entry 'auhtor'", set_metadata, {"year": "1", "auhtor": None})
    assert "did you mean author" in str(error)
    refused(given, "cannot be a key", set_metadata, {"": "x"})
    refused(given, "cannot be \\['x'\\]", set_metadata, {"a": ["x"]})


def test_keys_are_renamed_wherever_they_are() -> None:
    given = told()
    assert rename_metadata(given, {"secret.place": "origin"}) == PLACES
    assert b"secret.place" not in text(given)
    assert text(given).count(b"origin") == PLACES


def test_keys_are_swapped_at_once_and_never_lost() -> None:
    given = told()
    given.metadata_props.update({"a": "1", "b": "2"})
    assert rename_metadata(given, {"a": "b", "b": "a"}) == 2
    assert (given.metadata_props["a"], given.metadata_props["b"]) == ("2", "1")
    refused(given, "'a' cannot be renamed to 'b'", rename_metadata, {"a": "b"})
    refused(given, "no metadata entry 'c'", rename_metadata, {"c": "d"})
    refused(given, "cannot be a key", rename_metadata, {"a": ""})


def test_all_of_it_goes_with_doc_strings() -> None:
    given = told()
    given.metadata_props["torchport.proof"] = "{}"
    assert strip_metadata(given) == PLACES + PLACES + 1
    assert b"secret" not in text(given)
    assert not given.metadata_props
    assert strip_metadata(given) == 0
    assert np.array_equal(given.graph.initializers["w"].const_value.numpy(), [1, 2, 3])  # type: ignore[union-attr]


def test_a_pattern_leaves_the_rest() -> None:
    given = told()
    given.metadata_props["author"] = "us"
    assert strip_metadata(given, "secret.*") == PLACES
    assert dict(given.metadata_props) == {"author": "us"}
    assert text(given).count(b"secret") == PLACES  # doc strings
    refused(given, "no metadata entry like 'secret.\\*'", strip_metadata, "secret.*")
