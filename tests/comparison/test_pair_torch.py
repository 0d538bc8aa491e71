"""The tensors of an ONNX model beside those of the running PyTorch model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import torchport as tp
from torchport.comparison import regions
from torchport.comparison.result import Comparison
from torchport.comparison.torch_trace import Event, watched
from torchport.conversion import export as exporting
from torchport.errors import TorchportError
from torchport.process import silence


class Attention(nn.Module):
    """Three views of one shape, a padding mask, a norm; one layer called twice; an operation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.twice = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y, _ = self.mix(x, x, x, key_padding_mask=mask)
        y = self.norm(x + y)
        y = torch.tanh(self.twice(y)).add_(y)
        return self.twice(y)


class Chained(nn.Module):
    """What goes into attention has the shape of what was there before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mix = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x)))
        return self.mix(y, y, y)[0]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        z = torch.cond(y.sum() > 0, lambda t: self.b(t) * 2, lambda t: self.b(t) - 1, (y,))
        return self.c(z)


class Scattered(nn.Module):
    """A tensor that PyTorch writes in place, and so never shows whole, goes into a module."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 0.5
        y[:, 0] = 0.3
        return self.last(y)


Made = tuple[nn.Module, dict[str, torch.Tensor], ir.Model]


def _made(net: type[nn.Module], inputs: dict[str, torch.Tensor]) -> Made:
    torch.manual_seed(1)
    model = net().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # biases of zero hide what happens to them
    return model, inputs, tp.export(model, kwargs=inputs).model


@pytest.fixture(scope="module")
def attention() -> Made:
    torch.manual_seed(0)
    mask = torch.tensor([[False, False, False, True], [False, False, False, False]])
    return _made(Attention, {"x": torch.randn(2, 4, 8), "mask": mask})


@pytest.fixture(scope="module")
def chained() -> Made:
    torch.manual_seed(0)
    return _made(Chained, {"x": torch.randn(2, 4, 8)})


@pytest.fixture(scope="module")
def branches() -> Made:
    torch.manual_seed(0)
    return _made(Branches, {"x": torch.randn(3, 4)})


@pytest.fixture(scope="module")
def scattered() -> Made:
    torch.manual_seed(0)
    return _made(Scattered, {"x": torch.randn(3, 4)})


def _compared(made: Made, model: ir.Model | None = None, **options: Any) -> Comparison:
    found = tp.compare(made[0], made[2] if model is None else model, made[1], layers=True, **options)
    assert isinstance(found, Comparison)
    return found


def _node(model: ir.Model, fits: Callable[[ir.Node], bool]) -> ir.Node:
    return next(n for n in model.graph if fits(n))


def _scaled(model: ir.Model, node: ir.Node, place: int) -> None:
    """This node's weight half as large again, the others that share it keep theirs."""
    old = node.inputs[place]
    assert old is not None
    assert old.const_value is not None
    tensor = ir.tensor(old.const_value.numpy() * 1.5, name=f"{old.name}_wrong")
    new = ir.Value(name=f"{old.name}_wrong", type=old.type, shape=old.shape, const_value=tensor)
    model.graph.initializers.add(new)
    node.replace_input_with(place, new)


@pytest.mark.parametrize("name", ["attention", "branches", "scattered"])
def test_an_untouched_model_diverges_nowhere(name: str, request: pytest.FixtureRequest) -> None:
    found = _compared(request.getfixturevalue(name), isolate=True)
    assert found.agrees
    assert found.first_divergence is None
    assert {x.state for x in found.layers} <= {"agrees", "no partner"}
    assert max(x.isolated.relative for x in found.layers if x.isolated) < 1e-5


def test_most_tensors_have_a_partner_of_their_own_module(attention: Made) -> None:
    layers = _compared(attention).layers
    paired = [x for x in layers if x.partner]
    assert len(paired) >= 0.8 * len(layers)
    assert {x.origin.module for x in paired} >= {"mix", "norm", "twice"}


@pytest.mark.parametrize("call", [0, 1])
def test_a_wrong_weight_of_a_module_called_twice_is_found_in_the_right_call(attention: Made, call: int) -> None:
    model = attention[2].clone()
    nodes = [n for n in model.graph if n.metadata_props.get("torchport.module") == "twice" and n.op_type == "MatMul"]
    node = nodes[call]
    _scaled(model, node, 1)
    first = _compared(attention, model).first_divergence
    assert first is not None
    assert first.suspects == (node.name,)
    assert first.origin.module == "twice"
    assert "test_pair_torch.py" in first.origin.source


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules that are exported again."""
    found: list[nn.Module] = []
    export = exporting.export
    monkeypatch.setattr(regions, "export", lambda m, *a, **k: (found.append(m.module), export(m, *a, **k))[1])
    return found


def _in_attention(model: ir.Model) -> ir.Node:
    return _node(model, lambda n: n.op_type == "MatMul" and n.metadata_props["torchport.module"] == "mix")


def test_only_the_module_around_an_error_is_exported_again_though_it_gets_one_tensor_three_times(
    attention: Made, again: list[nn.Module]
) -> None:
    model = attention[2].clone()
    node = _in_attention(model)
    _scaled(model, node, 1)
    first = _compared(attention, model).first_divergence
    assert first is not None
    assert first.suspects == (node.name,)
    assert again == [attention[0].mix]


@pytest.mark.parametrize("taken", ["x", "tanh"])
def test_only_the_module_of_a_node_that_reads_what_is_right_elsewhere_is_exported_again(
    chained: Made, again: list[nn.Module], taken: str
) -> None:
    model = chained[2].clone()
    node = _in_attention(model)
    computed = _node(model, lambda n: n.op_type == "Tanh").outputs[0]
    node.replace_input_with(0, model.graph.inputs[0] if taken == "x" else computed)
    first = _compared(chained, model).first_divergence
    assert first is not None
    assert first.suspects == (node.name,)
    assert again == [chained[0].mix]


def test_why_it_could_not_be_told_which_node_it_is(attention: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    model = attention[2].clone()
    node = _in_attention(model)
    _scaled(model, node, 1)
    found = _compared(attention, model, budget=600)
    assert found.first_divergence is not None
    assert node.name in found.first_divergence.suspects
    assert len(found.first_divergence.suspects) > 1
    assert "the module 'mix' is too large to be exported within the memory given" in " ".join(str(found).split())

    def refuse(*args: Any, **options: Any) -> None:
        raise TorchportError("it fights back")

    monkeypatch.setattr(regions, "export", refuse)
    found = _compared(attention, model)
    assert "the model cannot be exported alone: it fights back" in " ".join(str(found).split())


def test_a_node_that_reads_its_neighbors_input_is_found_though_what_it_gives_is_elsewhere_right(
    attention: Made,
) -> None:
    model = attention[2].clone()
    views = [n for n in model.graph if n.op_type == "Reshape" and "mix" in n.metadata_props["torchport.module"]]
    shapes = {n.name: n.outputs[0].shape for n in views}
    node, other = next((a, b) for a in views for b in views if a is not b and shapes[a.name] == shapes[b.name])
    node.replace_input_with(0, other.inputs[0])
    model.graph.sort()
    first = _compared(attention, model).first_divergence
    assert first is not None
    assert first.suspects == (node.name,)


class Plain(nn.Module):
    """Operators written out: what each gives is told by its call, for module and line are the same for many."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))
        self.size = nn.Parameter(torch.rand(8) + 0.5)
        self.heads = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.softplus(torch.tanh(x @ self.weight + self.bias))
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.size
        y = torch.stack([torch.tanh(nn.functional.relu6(head(y))) for head in self.heads], 1)
        return torch.cat(y.chunk(2, -1)[::-1], -1)


@pytest.fixture(scope="module")
def plain() -> Made:
    torch.manual_seed(0)
    return _made(Plain, {"x": torch.randn(4, 2, 8)})


def _named(model: ir.Model, result: str) -> ir.Node:
    return _node(model, lambda n: n.outputs[0].name == result)


def _constant(model: ir.Model, node: ir.Node, place: int, number: float) -> None:
    tensor = ir.tensor(np.float32(number), name="constant")
    value = ir.Value(name="constant", type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    model.graph.initializers.add(value)
    node.replace_input_with(place, value)


def _faults() -> dict[str, Callable[[ir.Model], ir.Node]]:
    def lost_bias(model: ir.Model) -> ir.Node:
        node = _named(model, "add")
        _constant(model, node, 1, 0.0)
        return node

    def lost_size(model: ir.Model) -> ir.Node:
        node = _named(model, "mul_1")
        _constant(model, node, 1, 1.0)
        return node

    def other_branch(model: ir.Model) -> ir.Node:
        node = _named(model, "softplus")
        node.replace_input_with(2, node.inputs[1])
        return node

    def inner_tensor(model: ir.Model) -> ir.Node:
        node = _named(model, "linear_2")
        inner = next(v for v in _named(model, "linear_1").inputs if v is not None and v.producer() is not None)
        node.replace_input_with([v is not None and v.producer() is not None for v in node.inputs].index(True), inner)
        return node

    def low_ceiling(model: ir.Model) -> ir.Node:
        node = _named(model, "relu6_1")
        _constant(model, node, 2, 0.05)
        return node

    return {f.__name__: f for f in (lost_bias, lost_size, other_branch, inner_tensor, low_ceiling)}


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("fault", _faults())
def test_one_fault_is_born_in_one_node_though_what_it_gives_may_be_right_elsewhere(
    plain: Made, fault: str, isolate: bool
) -> None:
    model = plain[2].clone()
    node = _faults()[fault](model)
    found = _compared(plain, model, isolate=isolate)
    assert found.first_divergence is not None
    assert found.first_divergence.suspects == (node.name,)
    assert [layer.node for layer in found.layers if layer.state == "introduced"] == [node.name]


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_the_line_of_a_function_that_forward_calls_is_named() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(_doubled(x))

    made = _made(Net, {"x": torch.randn(2, 3)})
    model = made[2].clone()
    _constant(model, _node(model, lambda n: n.op_type == "Mul"), 1, 3.0)
    first = _compared(made, model).first_divergence
    assert first is not None
    line = inspect.getsourcelines(_doubled)[1] + 1
    assert f"beside aten.mul.Tensor in the model, tests/comparison/test_pair_torch.py:{line}" in " ".join(
        str(first).split()
    )


def test_nodes_that_the_optimizer_made_say_where_they_come_from(plain: Made) -> None:
    split = _node(plain[2], lambda n: n.op_type == "Split").metadata_props
    assert split["torchport.operator"] == "aten.split.Tensor"
    assert "test_pair_torch.py" in split["torchport.source"]


@pytest.mark.parametrize("mask", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_wrong_weight_in_front_of_a_mask_is_found(mask: float) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            return self.last(torch.softmax(self.score(x) + hidden * mask, -1))

    hidden = (torch.arange(6) % 3 == 0).float().expand(4, 6).contiguous()
    made = _made(Masked, {"x": torch.randn(4, 8, generator=torch.manual_seed(3)), "hidden": hidden})
    model = made[2].clone()
    node = _node(model, lambda n: n.op_type == "Gemm")
    _scaled(model, node, 1)
    first = _compared(made, model).first_divergence
    assert first is not None
    assert first.suspects == (node.name,)


def test_an_error_in_front_of_a_module_is_not_blamed_on_the_module(scattered: Made) -> None:
    model = scattered[2].clone()
    node = _node(model, lambda n: n.op_type.startswith("Scatter"))
    updates = [i for i, v in enumerate(node.inputs) if v is not None and v.is_initializer() and v.dtype is not None]
    _scaled(model, node, next(i for i in updates if node.inputs[i].dtype.is_floating_point()))  # type: ignore[union-attr]
    first = _compared(scattered, model).first_divergence
    assert first is not None
    assert node.name in first.suspects
    assert first.node == node.name


@pytest.mark.parametrize("budget", [600])
def test_a_small_budget_finds_the_same(attention: Made, budget: int) -> None:
    model = attention[2].clone()
    _scaled(model, _node(model, lambda n: n.op_type == "LayerNormalization"), 1)
    small, large = (_compared(attention, model, isolate=True, budget=b) for b in (budget, 1 << 30))
    assert small.first_divergence == large.first_divergence
    assert small.layers == large.layers
    assert sum(x.state == "propagated" for x in large.layers) >= 4


def test_a_wrong_layer_beside_a_branch_is_found_again_and_again(branches: Made) -> None:
    model = branches[2].clone()
    node = list(model.graph)[-1]
    _scaled(model, node, 1)
    for _ in range(2):  # what PyTorch compiles while it is watched must not be there the second time
        first = _compared(branches, model).first_divergence
        assert first is not None
        assert first.suspects == (node.name,)


def test_torch_cond_is_seen_as_one_operator(branches: Made) -> None:
    seen: list[Event] = []
    with torch.no_grad(), watched(branches[0], lambda event, tensor: seen.append(event)):
        branches[0](**branches[1])
    assert [e.operator for e in seen].count("cond") == 1
    assert {"a", "c"} <= {e.module for e in seen}


def test_a_file_of_torchs_own_exporter_with_weights_beside_it_is_compared(tmp_path: Path, attention: Made) -> None:
    model, inputs, exported = attention
    path = tmp_path / "beside.onnx"
    ir.save(exported, path, external_data="beside.data", size_threshold_bytes=64)
    found = tp.compare(model, path, inputs, layers=True)
    assert isinstance(found, Comparison)
    assert found.agrees
    assert found.outputs[0].max_abs < 1e-5


def test_a_step_inside_attention_of_torchs_own_exporter_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with silence():
        torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    model = tp.graph.load(tmp_path / "net.onnx")
    *_, node = (n for n in model.graph if n.op_type == "Mul")  # of the keys, which two nodes before it turned
    _scaled(model, node, 1)
    found = tp.compare(net, model, (x,), layers=True)
    assert isinstance(found, Comparison)
    assert found.first_divergence is not None
    assert found.first_divergence.suspects == (node.name,)


def test_the_model_is_left_as_it_was(attention: Made) -> None:
    model = attention[0]
    model.train()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    _compared(attention)
    assert model.training
    assert all(np.array_equal(before[n].numpy(), p.detach().numpy()) for n, p in model.named_parameters())
    model.eval()
