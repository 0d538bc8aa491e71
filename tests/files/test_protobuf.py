"""What is found in a file by its lengths is what protobuf finds."""

from __future__ import annotations

import itertools
import random

import pytest
from google.protobuf.message import DecodeError
from made_models import FLOAT, good
from onnx import GraphProto, ModelProto, NodeProto, helper

from torchport.files.protobuf import SkimmedModel, UnclearError, number, read_varint, varint, weight_name

NODES = 400


def _name(source: random.Random, place: int) -> str:
    """Short and long ones, that begin or end alike, of letters that take more than one byte."""
    middle = source.choice(["", "é" * source.randint(1, 4), "x" * source.choice([100, 110, 120, 130, 300])])
    return source.choice([f"{place}{middle}", f"layer.{middle}{place}_output_0", f"{middle}{place}"])


def _model(seed: int) -> ModelProto:
    source = random.Random(seed)
    names = ["x", *(f"{_name(source, place)}" for place in range(NODES))]
    nodes = [
        helper.make_node("Relu", [before], [after], doc_string=source.choice(["", "\x12\x02x1", f"\x12{after}"]))
        for before, after in itertools.pairwise(names)
    ]
    infos = [helper.make_tensor_value_info(name, FLOAT, source.choice([None, ["n"], [1, 10]])) for name in names]
    weights = [helper.make_tensor(f"w{place}", FLOAT, [place], [1.0] * place) for place in range(3)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[-1:], weights, value_info=infos[1:-1])
    return helper.make_model(graph, producer_name=source.choice(["", "somebody"]))


@pytest.mark.parametrize("seed", range(5))
def test_every_node_is_found_by_what_it_makes(seed: int) -> None:
    model = _model(seed)
    nodes = SkimmedModel(model.SerializeToString())["node"]
    assert [bytes(content) for content in nodes] == [node.SerializeToString() for node in model.graph.node]
    search = nodes.search(number(NodeProto, "output"))
    for index, node in enumerate(model.graph.node):
        found = search.holding(node.output[0])
        assert [place for place in found if node.output[0] in model.graph.node[place].output] == [index]


def test_values_are_found_by_name_and_weights_say_theirs() -> None:
    model = _model(7)
    skimmed = SkimmedModel(model.SerializeToString())
    for search in (skimmed["value_info"].search(1), skimmed["value_info"].search(1, first=True)):
        for index, info in enumerate(model.graph.value_info):
            assert index in search.holding(info.name)
    assert [weight_name(tensor) for tensor in skimmed["initializer"]] == ["w0", "w1", "w2"]
    assert search.holding("nobody") == []


def test_a_value_with_nothing_but_a_short_name_is_found_at_the_end() -> None:
    model = good()
    model.graph.value_info.add(name="z")
    search = SkimmedModel(model.SerializeToString())["value_info"].search(1)
    assert search.holding("z") == [len(model.graph.value_info) - 1]


def test_a_name_that_is_not_at_the_beginning_is_found_too() -> None:
    model = good()
    graph = model.graph.SerializeToString() + b"\x6a\x05\x1a\x00\x0a\x01z"  # a value: its doc string, then its name
    model.ClearField("graph")
    skimmed = SkimmedModel(model.SerializeToString() + b"\x3a" + varint(len(graph)) + graph)
    values = list(skimmed["value_info"])
    assert skimmed["value_info"].search(1, first=True).holding("z") == [len(values) - 1]


def test_the_rest_of_the_graph_is_kept() -> None:
    model = _model(1)
    model.graph.doc_string = "a story"
    skimmed = SkimmedModel(model.SerializeToString())
    rest = GraphProto.FromString(b"".join(skimmed.others("node", "initializer", "input", "output", "value_info")))
    assert (rest.name, rest.doc_string, len(rest.node)) == ("g", "a story", 0)
    assert ModelProto.FromString(b"".join(skimmed.around)).ir_version == model.ir_version


def test_a_file_cut_short_is_unclear() -> None:
    content = good().SerializeToString()
    broken = 0
    for length in range(1, len(content)):
        try:
            ModelProto.FromString(content[:length]).graph.node[0]
        except (DecodeError, IndexError):
            broken += 1
            with pytest.raises((UnclearError, IndexError, ValueError)):
                SkimmedModel(content[:length])
    assert broken > len(content) // 2


def test_what_protobuf_would_merge_is_unclear() -> None:
    content = good().SerializeToString()
    with pytest.raises(UnclearError):  # two graphs, which are one for protobuf
        SkimmedModel(content + content)
    mixed = good()
    graph = (
        mixed.graph.SerializeToString() + GraphProto(node=[helper.make_node("Relu", ["d"], ["e"])]).SerializeToString()
    )
    mixed.ClearField("graph")
    with pytest.raises(UnclearError):  # nodes in two places
        SkimmedModel(mixed.SerializeToString() + b"\x3a" + varint(len(graph)) + graph)


def test_numbers_are_read_as_they_are_written() -> None:
    for given in (0, 1, 127, 128, 300, 2**31, 2**64 - 1):
        assert read_varint(b"x" + varint(given), 1) == (given, 1 + len(varint(given)))
    with pytest.raises(ValueError, match="64 bits"):
        read_varint(b"\xff" * 1000, 0)
