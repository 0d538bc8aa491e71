"""Every message of torch that torchport decides by is raised by the installed torch, on a small model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.utils._sympy.value_ranges import simple_sympify

import torchport as tp
from torchport.capture.routes import export
from torchport.torch_compat.error_texts import SCRIPT_OPERATOR, SCRIPT_SINCE, TEXTS, TRANSLATED, UNTRANSLATED, says

X = torch.arange(12.0).reshape(3, 4)
_library = torch.library.Library("torchport_texts", "DEF")
_library.define("shapeless(Tensor x) -> Tensor")
_library.impl("shapeless", lambda x: x * 2, "CPU")


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.layer = self.layer.to(torch.float32)
        return self.layer(x)


class Ungraded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(4)), nn.Linear(4, 4)

    @torch.no_grad()
    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.scaled(x)
        for row in x:
            if row.sum() > 0:
                x = x + self.layer(row)
        return self.scaled(x)


class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        answer, _ = self.attention(x, x, x)
        return answer.view(x.shape[0], -1)


class QuantizedAdd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.quint8)

    def forward(self, x: Tensor) -> Tensor:
        added = torch.ops.quantized.add(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), self.weight, 0.1, 0)
        return added.dequantize()


class Picked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer0, self.layer1 = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, f"layer{(x > 1).sum().item()}")(x)


def _ctc(x: Tensor) -> Tensor:
    targets, lengths = torch.tensor([[1, 2]]), torch.tensor([2])
    return nn.functional.ctc_loss(x.unsqueeze(1).log_softmax(-1), targets, torch.tensor([3]), lengths)


def _written(x: Tensor) -> Tensor:
    copy = x.clone()
    copy[:, (x > 1).sum().item()] = 0.0
    return copy


def _branch(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


class Head(nn.Module):
    def forward(self, x: Tensor, k: Tensor) -> Any:
        n = k.item()
        return x[:n] * 2, torch.arange(n), x[n:]


class Force(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(X.shape[1], 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(torch.tanh(self.layer(x)).sum(), x)[0]


# What raises each message, by torch.export alone.
BY_EXPORT: dict[str, Callable[..., Any]] = {
    "data-dependent": _branch,
    "weights not swapped": Cast,
    "gradient inside": Force,
    "gradients off": lambda x: torch.autograd.grad(x.sin().sum(), x)[0],
    "no shape function": lambda x: torch.ops.torchport_texts.shapeless(x),
    "quantized tensor": QuantizedAdd,
    "symbolic place": _written,
    "size in divmod": lambda x: x[: divmod(x.shape[0], 2)[0]],
    "size as array": lambda x: x[: int(torch.tensor(x.shape[0] // 2).numpy())],
    "size as key": lambda x: x * {x.shape[0]: 2}[x.shape[0]],
    "sparse": lambda x: torch.sparse.mm(torch.sparse_coo_tensor(torch.tensor([[0], [1]]), x[0, :1], (3, 3)), x),
    "equal": lambda x: x if torch.equal(x, x + 1) else -x,
    "allclose": lambda x: x if torch.allclose(x, x + 1) else -x,
    "ctc_loss": _ctc,
    "lstsq": lambda x: torch.linalg.lstsq(x @ x.T, x).solution,
    "unbacked symbols": lambda x: torch.combinations(x[:, 0], 2),
    "value of output": lambda x: x if torch.equal(x, x + 1) else -x,
    "value or size": _branch,
    "name of a number": Picked,
    "number out of a tensor": lambda x: x * math.trunc(x.sum()),
}


class _Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _exported(model: Callable[..., Any]) -> torch.export.ExportedProgram:
    model = model() if isinstance(model, type) else model
    module = model if isinstance(model, nn.Module) else _Called(model)
    with torch.no_grad():
        return torch.export.export(module.eval(), (X,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _raises(name: str, action: Callable[[], Any]) -> None:
    last = TEXTS[name].until
    if last and tuple(map(int, torch.__version__.split(".")[:2])) > tuple(map(int, last.split("."))):
        action()  # this release captures the model itself
        return
    with pytest.raises(Exception) as caught:
        action()
    read = [f"{type(error).__name__}: {str(error)[:200]}" for error in _chain(caught.value)]
    found = any(says(error, name) for error in _chain(caught.value))
    assert found, f"torch {torch.__version__} rewords '{name}' ({TEXTS[name].selects}); it says {read}"


@pytest.mark.parametrize("name", BY_EXPORT)
def test_torch_export_says(name: str) -> None:
    _raises(name, lambda: _exported(BY_EXPORT[name]))


def test_a_view_of_a_fake_tensor_says() -> None:
    model, x = Attended().eval(), torch.randn(2, 6, 4)
    _raises("view of fake tensor", lambda: torch.onnx.export(model, (x,), dynamo=True, verbose=False))


def test_a_view_in_a_kernel_says() -> None:
    _raises("view in kernel", lambda: X.t().view(-1))


def test_a_packed_object_says() -> None:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 3)).eval(), {nn.Linear})
    _raises("packed object", lambda: _exported(model))


def test_a_slice_that_became_known_says() -> None:
    shapes = ({0: torch.export.Dim.AUTO}, None)
    program = torch.export.export(Head(), (X, torch.tensor(2)), dynamic_shapes=shapes, strict=False)
    _raises("slice became known", lambda: torch.onnx.export(program, dynamo=True, verbose=False))


def test_a_graph_of_a_branch_that_is_lost_says(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Exception] = []
    monkeypatch.setattr(export, "for_failed_capture", lambda error, used: raised.append(error))
    torch.manual_seed(0)
    with pytest.raises(tp.errors.CaptureError):
        tp.export(Ungraded().eval(), (torch.randn(5, 4),), dynamic={"x": {0: "n"}}, route="rewrite")
    assert any(says(error, "graph of branch lost") for error in raised), raised


def test_a_translation_that_is_missing_says() -> None:
    program = _exported(lambda x: torch.ops.torchport_texts.named(x))
    with pytest.raises(Exception) as caught:
        torch.onnx.export(program, dynamo=True, verbose=False)
    text = " ".join(str(error) for error in _chain(caught.value))
    assert any(says(error, "no translation") for error in _chain(caught.value)), text
    assert set(UNTRANSLATED.findall(text)) == {"torchport_texts.named"}, text


_library.define("named(Tensor x) -> Tensor")
_library.impl("named", lambda x: x * 2, "CPU")
torch.library.register_fake("torchport_texts::named", torch.empty_like, lib=_library)


def test_a_translation_that_fails_says() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("a reason")

    program = _exported(lambda x: torch.ops.torchport_texts.named(x))
    table = {torch.ops.torchport_texts.named.default: fails}
    with pytest.raises(Exception) as caught:
        torch.onnx.export(program, dynamo=True, verbose=False, custom_translation_table=table)
    found = TRANSLATED.search(" ".join(str(error) for error in _chain(caught.value)))
    assert found is not None
    assert found[1] == "torchport_texts.named.default"


@pytest.mark.parametrize(
    ("function", "opset", "operator", "since"),
    [
        (lambda x: torch.trapz(x), 17, "aten::trapz", None),
        (lambda x: nn.functional.grid_sample(x[None, None], x[None, :, :2, None].expand(1, 3, 2, 2)), 13, "", "16"),
        (lambda x: torch.ops.torchport_texts.named(x), 17, "torchport_texts::named", None),
    ],
)
def test_the_torchscript_exporter_says(
    function: Callable[..., Any], opset: int, operator: str, since: str | None, tmp_path: Any
) -> None:
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError) as caught:
        torch.onnx.export(_Called(function), (X,), tmp_path / "x.onnx", dynamo=False, opset_version=opset)
    text = str(caught.value)
    named, added = SCRIPT_OPERATOR.search(text), SCRIPT_SINCE.search(text)
    assert named is not None, text
    assert operator in (named[1] or named[2])
    assert (added[1] if added else None) == since, text


def test_a_number_that_sympy_takes_for_none_says() -> None:
    _raises("not a number", lambda: simple_sympify(sympy.nan))


def test_every_text_is_raised_by_a_test() -> None:
    others = {"view of fake tensor", "view in kernel", "packed object", "slice became known", "graph of branch lost"}
    others |= {"not a number"}
    assert {*BY_EXPORT, *others, "no translation"} == set(TEXTS)
