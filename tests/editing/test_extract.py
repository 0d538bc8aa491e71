"""Parts of models give what the whole gives at their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import torchport as tp
from torchport.errors import InputError


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18, "own": 1]> {text}'))


CHAIN = """g (float[2,3] x, float[2,3] z) => (float[2,3] y)
{ a = Relu(x) b = Neg(a) c = Exp(b) d = Add(c, a) e = Mul(d, z) f = Sigmoid(e) y = Sub(f, b) }"""

BRANCHES = """g (float[2,3] x, bool p) => (float[2,3] y)
{
  a = Relu(x)
  b = Neg(x)
  c = If (p) <
    then_branch = g1 () => (float[2,3] t) { t = Add(a, b) },
    else_branch = g2 () => (float[2,3] u) { u = Abs(a) }
  >
  y = Exp(c)
}"""


def run(given: ir.Model, feeds: dict[str, Any]) -> dict[str, Any]:
    onnx.checker.check_model(ir.to_proto(given), full_check=True)
    wanted = {str(v.name) for v in given.graph.inputs}
    return tp.session(given).run({k: v for k, v in feeds.items() if k in wanted})


def values(given: ir.Model, feeds: dict[str, Any]) -> dict[str, Any]:
    """Every tensor of the whole."""
    return {**feeds, **tp.session(tp.graph.expose(given)).run(feeds)}


X = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
FEEDS = {"x": X, "z": X + 1}


@pytest.mark.parametrize(
    ("inputs", "outputs", "nodes"),
    [
        (["a"], ["d"], ["Neg", "Exp", "Add"]),
        (["d", "z"], ["f"], ["Mul", "Sigmoid"]),
        (["c", "a", "z"], ["y"], ["Neg", "Add", "Mul", "Sigmoid", "Sub"]),
        ([], ["c"], ["Relu", "Neg", "Exp"]),
        (["e", "b"], [], ["Sigmoid", "Sub"]),
        (["a"], ["d", "b"], ["Neg", "Exp", "Add"]),
    ],
)
def test_a_part_gives_what_the_whole_gives(inputs: list[str], outputs: list[str], nodes: list[str]) -> None:
    whole = model(CHAIN)
    there = values(whole, FEEDS)
    before = ir.to_proto(whole).graph.node[:]
    part = tp.graph.cut(whole, inputs, outputs)
    assert [n.op_type for n in part.graph] == nodes
    assert ir.to_proto(whole).graph.node[:] == before
    for name, given in run(part, there).items():
        assert np.array_equal(given, there[name])


@pytest.mark.parametrize(
    ("inputs", "outputs", "missing", "smallest"),
    [
        (["c"], ["d"], ["x"], "c,a"),
        (["c"], ["y"], ["x", "z"], "c,a,z"),
        (["d"], ["f"], ["z"], "d,z"),
        (["e"], ["y"], ["x"], "e,b"),
    ],
)
def test_inputs_that_do_not_cover_are_completed(
    inputs: list[str], outputs: list[str], missing: list[str], smallest: str
) -> None:
    whole = model(CHAIN)
    with pytest.raises(InputError, match="do not cover") as caught:
        tp.graph.cut(whole, inputs, outputs)
    text = str(caught.value)
    assert all(f"'{name}': {name} → " in text for name in missing)
    assert f"would do: {smallest} " in text
    part = tp.graph.cut(whole, inputs, outputs, complete=True)
    assert ",".join(str(v.name) for v in part.graph.inputs) == smallest
    there = values(whole, FEEDS)
    assert all(np.array_equal(given, there[name]) for name, given in run(part, there).items())


@pytest.mark.parametrize("p", [True, False])
def test_outer_values_of_branches_are_inputs_too(p: bool) -> None:
    whole = model(BRANCHES)
    feeds = {"x": X, "p": np.array(p)}
    there = values(whole, feeds)
    part = tp.graph.cut(whole, ["a", "b", "p"], ["y"])
    assert [n.op_type for n in part.graph] == ["If", "Exp"]
    assert np.array_equal(run(part, there)["y"], there["y"])
    with pytest.raises(InputError, match="would do: p,"):
        tp.graph.cut(whole, ["p"], ["y"])


def test_a_tensor_inside_a_branch_is_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match=r"'t' is inside the body of the If that makes 'c', which runs as a whole"):
        tp.graph.cut(model(BRANCHES), ["t"], ["y"])


def test_names_that_are_none_are_refused() -> None:
    whole = model(
        "g (float[2] first_input) => (float[2] answer) { hidden_state = Relu(first_input) answer = Neg(hidden_state) }"
    )
    with pytest.raises(InputError, match="did you mean hidden_state"):
        tp.graph.cut(whole, ["hidden_stat"], ["answer"])
    with pytest.raises(InputError, match="nothing is between"):
        tp.graph.cut(whole, ["first_input"], ["first_input"])
    with pytest.raises(InputError, match="does not say which modules"):
        tp.graph.cut(whole, module="encoder")


def test_functions_come_along() -> None:
    whole = model("g (float[2] x) => (float[2] y) { a = Neg(x) b = own.f(a) y = Exp(b) }")
    inner = onnx.parser.parse_function('<domain: "own", opset_import: ["": 18, "own": 1]> h (x) => (y) { y = Abs(x) }')
    outer = onnx.parser.parse_function(
        '<domain: "own", opset_import: ["": 18, "own": 1]> f (x) => (y) { y = own.h(x) }'
    )
    unused = onnx.parser.parse_function('<domain: "own", opset_import: ["": 18]> g (x) => (y) { y = Neg(x) }')
    for proto in (inner, outer, unused):
        function = ir.serde.deserialize_function(proto)
        whole.functions[function.identifier()] = function
    part = tp.graph.cut(whole, ["a"], ["y"])
    assert [i[1] for i in part.functions] == ["h", "f"]
    x = np.array([-1.0, 2.0], np.float32)
    assert np.allclose(tp.session(part)(x), np.exp(np.abs(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(3)])
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    torch.manual_seed(0)
    whole = Net().eval()
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    tp.export(whole, (torch.randn(2, 3, 8, 8),), dynamic={"x": {0: "batch"}}, output=path)
    return whole, path


def test_a_module_of_the_pytorch_model(net: tuple[Net, Path]) -> None:
    whole, path = net
    part = tp.graph.cut(path, module="blocks.1")
    x = torch.randn(3, 4, 8, 8)
    torch.testing.assert_close(tp.session(part)(x), whole.blocks[1](x), rtol=1e-4, atol=1e-5)
    assert part.graph.inputs[0].shape is not None
    assert str(part.graph.inputs[0].shape[0]) == "batch"
    with pytest.raises(InputError, match=r"did you mean blocks"):
        tp.graph.cut(path, module="blockz.1")


def test_weights_are_shared_not_copied(net: tuple[Net, Path]) -> None:
    whole = tp.graph.load(net[1])
    part = tp.graph.cut(whole, module="head")
    ours = {id(v.const_value) for v in whole.graph.initializers.values()}
    assert part.graph.initializers
    assert all(id(v.const_value) in ours for v in part.graph.initializers.values())


@pytest.mark.parametrize("at", [2, 3, 5])
def test_parts_of_even_cost_chained_give_the_whole(net: tuple[Net, Path], at: int) -> None:
    whole, path = net
    x = torch.randn(2, 3, 8, 8)
    parts = tp.graph.split(path, at)
    assert len(parts) == at
    torch.testing.assert_close(chained(parts, {"x": x.numpy()}), whole(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_parts_at_tensors_chained_give_the_whole() -> None:
    whole = model(CHAIN)
    parts = tp.graph.split(whole, ["b", "e"])
    assert [[n.op_type for n in p.graph] for p in parts] == [["Relu", "Neg"], ["Exp", "Add", "Mul"], ["Sigmoid", "Sub"]]
    assert np.array_equal(chained(parts, FEEDS), values(whole, FEEDS)["y"])
    with pytest.raises(InputError, match="in the order"):
        tp.graph.split(whole, ["e", "b"])
    with pytest.raises(InputError, match="cannot be split into 100 parts"):
        tp.graph.split(whole, 100)


def chained(parts: list[ir.Model], feeds: dict[str, Any]) -> Any:
    known = dict(feeds)
    for part in parts:
        known |= run(part, known)
    return known[str(parts[-1].graph.outputs[-1].name)]


def test_exposed_by_name_pattern_and_module(net: tuple[Net, Path]) -> None:
    whole = model(CHAIN)
    assert [v.name for v in tp.graph.expose(whole, ["b", "[cd]"]).graph.outputs] == ["y", "b", "c", "d"]
    assert len(whole.graph.outputs) == 1
    shown = tp.graph.expose(net[1], "blocks.*")
    x = torch.randn(2, 3, 8, 8)
    given = tp.session(shown).run({"x": x})
    first = net[0].blocks[0](net[0].stem(x))
    assert any(v.shape == first.shape and torch.allclose(v, first, atol=1e-5) for v in given.values())
    with pytest.raises(InputError, match="no tensor or module 'decoder'"):
        tp.graph.expose(net[1], "decoder")


def test_a_part_whose_ends_have_no_known_rank_is_saved_and_runs(tmp_path: Path) -> None:
    given = model(
        "g (float[n,4] x, int64[r] s) => (float[n] y) <int64[1] all = {-1}>"
        "{ a = Relu(x) v = Reshape(a, s) y = Reshape(v, all) }"
    )
    for part, feeds in [
        (tp.graph.cut(given, outputs=["v"]), {"x": np.ones((2, 4), np.float32), "s": np.array([2, 2, 2])}),
        (tp.graph.cut(given, inputs=["v"]), {"v": np.ones((2, 2, 2), np.float32)}),
    ]:
        tp.graph.save(part, tmp_path / "part.onnx")
        assert tp.session(tmp_path / "part.onnx").run(feeds)
