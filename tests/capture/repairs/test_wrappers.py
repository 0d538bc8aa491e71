"""What users wrap models in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from agreement import check
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrizations, parametrize

import torchport as tp

BATCH = {"x": {0: "batch"}}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A world of one."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/world", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def x(batch: int) -> tuple[Tensor]:
    return (torch.randn(batch, 8),)


class Head(nn.Module):
    """A part, and a layer after it."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def test_parallel_and_compiled_parts_are_seen_through(tmp_path: Path, process_group: None) -> None:
    distributed_part = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    compiled = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend="eager")
    in_place = nn.Linear(8, 4)
    in_place.compile(backend="eager")
    model = Head(distributed_part, nn.DataParallel(nn.Linear(8, 8)), compiled, in_place)
    whole = nn.parallel.DistributedDataParallel(torch.compile(model, backend="eager"))
    exported, ops = check(tmp_path, whole, x(3), [x(1), x(7)], dynamic=BATCH)
    assert exported.route == "export"
    assert ops == {"Gemm": 4, "Relu": 1}
    assert isinstance(model.parts[0], nn.parallel.DistributedDataParallel)  # as it was


def _hooked(model: nn.Module) -> nn.Module:
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.register_forward_hook(lambda module, args, out: out * 3 + 1)
    return model


class _Doubling(nn.DataParallel):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs) * 2


def _with_forward(model: nn.Module) -> nn.Module:
    inner = model.forward
    model.forward = lambda *args: inner(*args) * 2  # type: ignore[method-assign]
    return model


_WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "hooks on DataParallel": lambda m: _hooked(nn.DataParallel(m)),
    "hooks on DataParallel on a part": lambda m: nn.Sequential(_hooked(nn.DataParallel(m)), nn.Tanh()),
    "hooks on what is compiled": lambda m: _hooked(torch.compile(m)),  # type: ignore[arg-type]
    "hooks on both": lambda m: _hooked(torch.compile(_hooked(nn.DataParallel(m)))),  # type: ignore[arg-type]
    "a subclass": _Doubling,
    "a forward of its own": lambda m: _with_forward(nn.DataParallel(m)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.*")  # which torch.compile imports
@pytest.mark.parametrize("name", _WRAPPED)
def test_what_was_put_on_a_wrapper_is_exported(name: str, tmp_path: Path) -> None:
    check(tmp_path, _WRAPPED[name](nn.Linear(8, 4)).eval(), x(3), [x(1), x(5)], dynamic={0: {0: "batch"}})


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


class Exponential(nn.Module):
    """Skew-symmetric, then orthogonal: an operator that ONNX has no word for."""

    def forward(self, weight: Tensor) -> Tensor:
        upper = weight.triu(1)
        return torch.matrix_exp(upper - upper.T)


def test_parametrized_weights(tmp_path: Path) -> None:
    layers = [nn.Linear(8, 8) for _ in range(6)]
    nn.utils.parametrizations.weight_norm(layers[0])
    parametrizations.spectral_norm(layers[1])
    parametrizations.orthogonal(layers[2], orthogonal_map="cayley")
    parametrize.register_parametrization(layers[3], "weight", Symmetric())
    parametrize.register_parametrization(layers[4], "weight", Exponential())
    parametrizations.orthogonal(layers[5])
    exported, ops = check(tmp_path, Head(*layers).eval(), x(3), [x(1), x(7)], dynamic=BATCH)
    assert ops == {"Gemm": 6}
    assert "weights made of weights computed beforehand" in exported.attempts[-1].repairs


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))) * scale


def test_hooks_see_and_change_what_was_given_by_name(tmp_path: Path) -> None:
    model = Scaled()
    model.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.last.register_forward_hook(lambda module, args, output: output + args[0].mean(-1, keepdim=True))
    model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"scale": kwargs["scale"] + 1}), with_kwargs=True
    )
    model.register_forward_hook(
        lambda module, args, kwargs, output: {"y": output * kwargs["scale"], "scale": kwargs["scale"]}, with_kwargs=True
    )
    exported, _ = check(
        tmp_path,
        model,
        x(3),
        [],
        kwargs={"scale": torch.randn(3, 1)},
        dynamic={"x": {0: "batch"}, "scale": {0: "batch"}},
    )
    assert [o.name for o in exported.outputs] == ["y", "scale_out"]


class LowRank(nn.Module):
    """A layer with a small change beside it."""

    def __init__(self, base: nn.Linear, *, merged: bool) -> None:
        super().__init__()
        self.base, self.merged = base, merged
        self.a = nn.Parameter(torch.randn(2, base.in_features))
        self.b = nn.Parameter(torch.randn(base.out_features, 2))
        if merged:
            base.weight.data += self.b @ self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) if self.merged else self.base(x) + x @ self.a.T @ self.b.T


class Counting(nn.Module):
    """Buffers written to in forward: each call of the exported model is the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return (x - self.mean) * self.calls


class Averaging(nn.Module):
    """Gives the buffers it writes to, whole and in part."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.mean: Tensor
        self.calls: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean, self.calls, self.mean, self.mean[:3]


def test_buffers_that_are_written_to_and_given(tmp_path: Path) -> None:
    net = Averaging().eval()
    exported = tp.export(net, x(3), dynamic=BATCH, output=tmp_path / "net.onnx")
    assert not net.calls
    assert not net.mean.any()
    for args in (x(1), x(5)):
        got = tp.session(tmp_path / "net.onnx")(*args)
        want = Averaging()(*args)
        assert len(exported.outputs) == len(want)
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_layers_with_a_change_beside_them_and_buffers_that_are_written_to(tmp_path: Path) -> None:
    model = Head(LowRank(nn.Linear(8, 8), merged=False), LowRank(nn.Linear(8, 8), merged=True), Counting())
    exported, _ = check(tmp_path, model, x(3), [], dynamic=BATCH)
    assert exported.route == "export"
    assert model.parts[2].calls == 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.logits = nn.Embedding(500, 64), nn.Linear(64, 500, bias=False)
        self.logits.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(torch.tanh(self.words(ids)))


def test_a_tied_weight_is_saved_once(tmp_path: Path) -> None:
    def ids(batch: int, steps: int) -> tuple[Tensor]:
        return (torch.randint(0, 500, (batch, steps)),)

    axes = {"ids": {0: "batch", 1: "steps"}}
    check(tmp_path, Tied(), ids(2, 4), [ids(1, 9), ids(3, 2)], dynamic=axes)
    weights = onnx.load(tmp_path / "model.onnx").graph.initializer
    assert sum(len(w.raw_data) for w in weights) < 1.1 * 500 * 64 * 4
