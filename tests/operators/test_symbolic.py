# mypy: disable-error-code="no-untyped-def"
"""Symbolics as users have them work on every route."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.onnx.symbolic_helper import parse_args

import torchport as tp
from torchport.errors import EngineError, OptionError
from torchport.operators import composition
from torchport.operators.symbolic import forget

library = torch.library.Library("torchport_tests", "DEF")
library.define("scaled_sum(Tensor a, Tensor b, float alpha=3.0, int[] axes=[0], str? mode=None) -> Tensor")


@torch.library.impl(library, "scaled_sum", "CompositeExplicitAutograd")
def _scaled_sum(a, b, alpha=3.0, axes=(0,), mode=None):
    return a * alpha + b.sum(axes, keepdim=True)


torch.library.register_fake("torchport_tests::scaled_sum", lambda a, b, *_: torch.empty_like(a), lib=library)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for name in ("aten::asinh", "aten::gelu", "aten::hardswish", "torchport_tests::scaled_sum"):
        forget(name)


class Asinh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.asinh(x) * 2


class ScaledSum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchport_tests.scaled_sum(x, x.cos(), 2.0, [1])


class Activation(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def exported(model: nn.Module, route: str, **options: Any) -> tp.Exported:
    return tp.export(model, (torch.randn(3, 4),), dynamic={"x": {0: "n"}}, route=route, **options)


def operators(given: tp.Exported) -> list[str]:
    return [f"{n.domain}::{n.op_type}".removeprefix("::") for n in given.model.graph if n.op_type != "Constant"]


ROUTES = ["export", "script", "trace"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("opset", [9, 18])
def test_a_symbolic_is_taken_on_every_route(route: str, opset: int) -> None:
    @tp.symbolic("aten::asinh", since=9)
    def asinh(g, x):
        return g.op("Asinh", g.op("Identity", x))

    given = exported(Asinh(), route, opset=opset)
    assert given.opset == opset
    assert "Asinh" in operators(given)
    assert given.proof.passed


@pytest.mark.parametrize("route", ROUTES)
def test_a_symbolic_comes_before_torchs_own_of_a_later_opset(route: str) -> None:
    @tp.symbolic("aten::hardswish", since=9)
    def hardswish(g, x):
        three, six = (g.op("Constant", value_t=torch.tensor(n)) for n in (3.0, 6.0))
        gate = g.op("Clip", g.op("Add", x, three), g.op("Constant", value_t=torch.tensor(0.0)), six)
        return g.op("Div", g.op("Mul", x, gate), six)

    given = exported(Activation(nn.functional.hardswish), route, opset=18)
    assert "Div" in operators(given)
    assert "HardSwish" not in operators(given)


@pytest.mark.parametrize("route", ROUTES)
def test_a_symbolic_of_an_operator_with_an_overload_that_writes_to_a_tensor(route: str) -> None:
    @tp.symbolic("aten::gelu", since=9)
    def gelu(g, x, approximate):
        half, one, root = (g.op("Constant", value_t=torch.tensor(n)) for n in (0.5, 1.0, 2.0**0.5))
        return g.op("Mul", g.op("Mul", half, x), g.op("Add", one, g.op("Erf", g.op("Div", x, root))))

    given = exported(Activation(nn.functional.gelu), route, opset=20)
    assert "Erf" in operators(given)
    assert "Gelu" not in operators(given)


@pytest.mark.parametrize("route", ROUTES)
def test_an_operator_of_a_library_with_attributes_and_the_form_of_old_opsets(route: str) -> None:
    @tp.symbolic("torchport_tests::scaled_sum", since=9)
    @parse_args("v", "v", "f", "is", "none")
    def scaled_sum(g, a, b, alpha, axes, mode):
        scaled = g.op("Mul", a, g.op("Constant", value_t=torch.tensor(alpha)))
        if g.opset >= 13:
            total = g.op("ReduceSum", b, g.op("Constant", value_t=torch.tensor(axes)), keepdims_i=1)
        else:
            total = g.op("ReduceSum", b, axes_i=axes, keepdims_i=1)
        return g.op("Add", scaled, total)

    assert exported(ScaledSum(), route).proof.passed


def test_what_was_an_attribute_is_an_input_now() -> None:
    @tp.symbolic("torchport_tests::scaled_sum")
    def scaled_sum(g, a, b, alpha, axes, mode):
        return g.op("Add", g.op("Mul", a, alpha), g.op("ReduceSum", b, axes_i=axes))

    assert exported(ScaledSum(), "export").proof.passed


def test_the_newest_symbolic_that_fits_the_opset_is_taken() -> None:
    called: list[int] = []
    for since in (7, 11, 25):

        @tp.symbolic("aten::asinh", since=since)
        def asinh(g, x, since=since):
            called.append(since)
            return g.op("Asinh", x)

    exported(Asinh(), "export", opset=20)
    assert set(called) == {11}


def test_what_was_registered_with_torch_counts_too() -> None:
    torch.onnx.register_custom_op_symbolic("torchport_tests::scaled_sum", _by_nodes, 9)  # type: ignore[attr-defined]
    try:
        for route in ROUTES:
            assert exported(ScaledSum(), route).proof.passed
    finally:
        torch.onnx.unregister_custom_op_symbolic("torchport_tests::scaled_sum", 9)  # type: ignore[attr-defined]


@parse_args("v", "v", "f", "is", "none")
def _by_nodes(g, a, b, alpha, axes, mode):
    total = g.op("ReduceSum", b, g.op("Constant", value_t=torch.tensor(axes)), keepdims_i=1)
    return g.op("Add", g.op("Mul", a, g.op("Constant", value_t=torch.tensor(alpha))), total)


def test_a_wrong_symbolic_does_not_leave_the_house() -> None:
    @tp.symbolic("aten::asinh")
    def asinh(g, x):
        return g.op("Sinh", x)

    with pytest.raises(tp.ProofError):
        exported(Asinh(), "export")


@pytest.mark.parametrize(
    ("name", "since", "words"),
    [("asinh", 9, "names no operator"), ("aten::asinh", "9", "since is an opset"), ("", 9, "names no operator")],
)
def test_bad_registrations_are_refused(name: str, since: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tp.symbolic(name, since=since)


def test_an_attribute_without_suffix_is_refused_in_words() -> None:
    @tp.symbolic("aten::asinh")
    def asinh(g, x):
        return g.op("Elu", x, alpha=2.0)

    with pytest.raises(tp.TorchportError, match="no suffix that says its kind"):
        exported(Asinh(), "export")


def test_a_plain_pytorch_function_may_stand_for_an_operator() -> None:
    @tp.composition("torchport_tests::scaled_sum")
    def scaled_sum(a, b, alpha=3.0, axes=(0,), mode=None):
        return a * alpha + b.sum(axes, keepdim=True)

    try:
        assert operators(exported(ScaledSum(), "export")) == ["Cos", "Mul", "ReduceSum", "Add"]
    finally:
        composition.forget("torchport_tests::scaled_sum")
    with pytest.raises(tp.CaptureError, match="scaled_sum"):
        exported(ScaledSum(), "export")
    with pytest.raises(OptionError, match="names no operator"):
        tp.composition("scaled_sum")


# --- autograd functions -----------------------------------------------------------------------------------------------


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, alpha=3.0):
        return a * alpha + b

    @staticmethod
    def symbolic(g, a, b, alpha=3.0):
        return g.op("Sum", g.op("Mul", a, g.op("Constant", value_t=torch.tensor(alpha))), b)


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin(), x.abs().sum(0)

    @staticmethod
    def symbolic(g, x):
        axes = g.op("Constant", value_t=torch.tensor([0]))
        return g.op("Sin", x), g.op("ReduceSum", g.op("Abs", x), axes, keepdims_i=0)


class Native(torch.autograd.Function):
    """A forward that needs the numbers, as one in C++ does."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def symbolic(g, x):
        return g.op("Mul", x, g.op("Constant", value_t=torch.tensor(2.0)))


class Foo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 5

    @staticmethod
    def symbolic(g, x):
        return g.op("devtech::FooOp", x, alpha_f=0.5, mode_s="near", sizes_i=[1, 2])


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 5


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = Pair.apply(Through.apply(x))
        return Weighted.apply(first, second, 2.0) + Native.apply(x)


def test_an_autograd_functions_symbolic_is_honored_on_the_modern_route() -> None:
    given = exported(Model(), "export")
    assert operators(given).count("Sum") == 1
    assert "ReduceSum" in operators(given)
    assert "autograd functions translated by their symbolic" in given.attempts[-1].repairs
    x = torch.randn(7, 4)
    torch.testing.assert_close(tp.session(given.model)(x), Model()(x))
    assert Weighted.forward(None, 1.0, 2.0) == 5.0


weighted = Weighted.apply


class Aliased(nn.Module):
    """The notes' form: ``my_add = MyAddFunction.apply`` in a module, and on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.weighted = Weighted.apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return weighted(x, x.sin()) * self.weighted(x, x, 2.0)


def test_the_symbolic_of_a_function_that_was_bound_to_a_name_before_is_honored() -> None:
    given = exported(Aliased(), "export")
    assert operators(given).count("Sum") == 2
    x = torch.randn(7, 4)
    torch.testing.assert_close(tp.session(given.model)(x), Aliased()(x))


def test_a_wrong_symbolic_of_a_function_that_was_bound_to_a_name_before_is_refused() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return 3 * a + b

        @staticmethod
        def symbolic(g, a, b):
            return g.op("Add", a, b)

    call = Wrong.apply
    with pytest.raises(tp.ProofError):
        tp.export(lambda x: call(x, x), (torch.randn(3, 4),), route="export")


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Foo.apply(x) + 1


@pytest.mark.parametrize("route", ["export", "trace"])
def test_a_node_of_a_domain_of_ones_own_is_kept(route: str) -> None:
    given = exported(Custom(), route, allow_unproven=True)
    (node,) = [n for n in given.model.graph if n.op_type == "FooOp"]
    assert node.domain == "devtech"
    assert node.attributes["alpha"].as_float() == 0.5
    assert node.attributes["mode"].as_string() == "near"
    assert list(node.attributes["sizes"].as_ints()) == [1, 2]
    assert given.proven == (route == "export")  # PyTorch runs it; what TorchScript's exporter made says not what it was
    if given.proven:
        assert "devtech::FooOp has no kernel: PyTorch ran it for the proof" in [f.message for f in given.findings]
    else:
        with pytest.raises(EngineError, match="nothing here runs the operator devtech::FooOp") as caught:
            exported(Custom(), route)
        for advice in ("--library libfooop.so", "torchport ops build", "--allow-unproven"):
            assert advice in str(caught.value.next_step)


def test_without_onnxruntime_extensions_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(EngineError, match="which runs it in Python, does not load") as caught:
        exported(Custom(), "export")
    assert "pip install onnxruntime-extensions" in str(caught.value.next_step)
    assert exported(Custom(), "export", target="reference").proven


def test_constants_take_the_type_of_the_tensors_they_meet() -> None:
    """The notes' my_add: whole numbers times floats, as TorchScript's exporter allows."""

    class MyAdd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return 3 * a + 2 * b

        @staticmethod
        def symbolic(g, a, b):
            three = g.op("Constant", value_t=torch.tensor([3]))
            return g.op("Add", g.op("Mul", a, three), g.op("Mul", b, 2))

    class Net(nn.Module):
        def forward(self, a, b):
            return MyAdd.apply(a, b)

    for dtype in (torch.float32, torch.float64):
        inputs = (torch.rand(2, 3, dtype=dtype), torch.rand(2, 3, dtype=dtype))
        given = tp.export(Net(), inputs, route="export")
        assert given.outputs[0].dtype == str(dtype).removeprefix("torch.")


class Resized(torch.autograd.Function):
    """The notes' interpolate: the forward reads the scales, the symbolic hands them to Resize."""

    @staticmethod
    def forward(ctx, input, scales):
        scales = scales.tolist()[-2:]
        return nn.functional.interpolate(input, scale_factor=scales, mode="bicubic", align_corners=False)

    @staticmethod
    def symbolic(g, input, scales):
        nothing = g.op("Constant", value_t=torch.tensor([], dtype=torch.float32))
        return g.op(
            "Resize",
            input,
            nothing,
            scales,
            coordinate_transformation_mode_s="pytorch_half_pixel",
            cubic_coeff_a_f=-0.75,
            mode_s="cubic",
            nearest_mode_s="floor",
        )


class Upsampler(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.start, self.end, self.times = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1), times

    def forward(self, x, scales):
        x = torch.relu(self.start(x))
        for _ in range(self.times):
            x = Resized.apply(x, scales)
        return self.end(x)


@pytest.mark.parametrize("times", [1, 2])
def test_a_function_that_reads_values_gives_sizes_that_depend_on_them(times: int) -> None:
    model = Upsampler(times).eval()
    example = (torch.rand(1, 3, 8, 8), torch.tensor([1.0, 1.0, 2.0, 2.0]))
    given = tp.export(model, example, dynamic={"x": {2: "h", 3: "w"}}, route="export", allow_unproven=True)
    session = tp.session(given.model)
    for scales in ([1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [1.0, 1.0, 2.0, 3.0]):
        x = torch.rand(1, 3, 5, 11)
        with torch.no_grad():
            torch.testing.assert_close(
                session(x, torch.tensor(scales)), model(x, torch.tensor(scales)), rtol=1e-4, atol=1e-5
            )


class TwoScales(Resized):
    @staticmethod
    def symbolic(g, input, scales):
        return Resized.symbolic(g, input, g.op("Concat", torch.ones(2), scales, axis_i=0))


class Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights):
        return x * float(weights[0]) + weights[1].item() * torch.from_numpy(weights.numpy().sum(keepdims=True))

    @staticmethod
    def symbolic(g, x, weights):
        first, second = (g.op("Gather", weights, g.op("Constant", value_t=torch.tensor([n]))) for n in (0, 1))
        total = g.op("ReduceSum", weights, keepdims_i=1)
        return g.op("Add", g.op("Mul", x, first), g.op("Mul", second, total))


class Above(torch.autograd.Function):
    """Two outputs that have as many rows as numbers are above a threshold."""

    @staticmethod
    def forward(ctx, x, threshold):
        rows = (x[:, 0] > threshold.item()).numpy()
        return torch.from_numpy(x.numpy()[rows]), torch.from_numpy(x.numpy()[rows, 0])

    @staticmethod
    def symbolic(g, x, threshold):
        first = g.op("Gather", x, g.op("Constant", value_t=torch.tensor(0)), axis_i=1)
        rows = g.op("Greater", first, threshold)
        return g.op("Compress", x, rows, axis_i=0), g.op("Compress", first, rows, axis_i=0)


class Rows(nn.Module):
    def forward(self, x, threshold):
        rows, first = Above.apply(x, threshold)
        return rows * first[:, None]


class Twice(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x, values):
        return self.function.apply(x * 2, values) + 1


@pytest.mark.parametrize(
    ("model", "values", "shape", "axis"),
    [
        (Twice(TwoScales), [2.0, 2.0], (1, 2, 8, 8), 3),
        (Twice(Weighed), [2.0, 0.5, 0.25], (4, 3), 0),
        (Rows(), 0.5, (8, 3), 0),
    ],
    ids=["sizes", "numbers", "rows"],
)
def test_values_that_a_function_reads_are_those_of_the_example_while_it_is_captured(
    model: nn.Module, values: Any, shape: tuple[int, ...], axis: int
) -> None:
    example = (torch.rand(shape), torch.tensor(values))
    given = tp.export(model, example, dynamic={"x": {axis: "n"}}, route="export")
    larger = list(shape)
    larger[axis] += 5
    x, other = torch.rand(larger), torch.tensor(values) * 1.5
    torch.testing.assert_close(tp.session(given.model)(x, other), model(x, other), rtol=1e-4, atol=1e-5)


bare = torch.library.Library("torchport_bare", "DEF")
bare.define("joined(Tensor a, Tensor b, int n=2) -> (Tensor, Tensor)")


@torch.library.impl(bare, "joined", "CPU")
def _joined(a, b, n=2):
    return torch.from_numpy(__import__("numpy").concatenate([a.numpy(), b.numpy()])), a * n


def test_an_operator_without_shapes_is_run_to_learn_them() -> None:
    class Net(nn.Module):
        def forward(self, a, b):
            both, times = torch.ops.torchport_bare.joined(a, b, 3)
            return both * 2, times

    example = (torch.randn(3, 4), torch.randn(5, 4))
    dynamic = {"a": {0: "n"}, "b": {0: "m"}}
    with pytest.raises(tp.CaptureError, match=r"no ONNX translation for torchport_bare\.joined") as caught:
        tp.export(Net(), example, dynamic=dynamic)
    assert '@tp.symbolic("torchport_bare::joined")' in str(caught.value)

    @tp.symbolic("torchport_bare::joined")
    def joined(g, a, b, n):
        return g.op("Concat", a, b, axis_i=0), g.op("Mul", a, n)

    given = tp.export(Net(), example, dynamic=dynamic, route="export")
    a, b = torch.randn(2, 4), torch.randn(7, 4)
    torch.testing.assert_close(tp.session(given.model)(a, b), (torch.cat([a, b]) * 2, a * 3))
    forget("torchport_bare::joined")


def test_a_typo_in_the_name_of_an_operator_of_torch_is_said() -> None:
    with pytest.raises(OptionError, match=r"has no operator 'aten::asinhh'\nnext:  did you mean aten::asinh,"):
        tp.symbolic("aten::asinhh", since=9)
    tp.symbolic("aten::Int", since=9)  # of TorchScript alone
    tp.symbolic("not_loaded_yet::anything", since=9)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda g, x: g.op("Asinhh", x), ["ONNX has no operator 'Asinhh'", "did you mean Asinh"]),
        (lambda g, x: g.op("LeakyRelu", x, alfa_f=0.1), ["has no attribute 'alfa'", "did you mean alpha?"]),
    ],
)
def test_a_typo_in_a_symbolic_is_named_with_its_line(build: Any, words: list[str]) -> None:
    tp.symbolic("aten::asinh", since=9)(build)
    with pytest.raises(tp.CaptureError) as caught:
        exported(Asinh(), "export")
    line = build.__code__.co_firstlineno
    for one in [*words, f"test_symbolic.py:{line}", "aten.asinh"]:
        assert one in str(caught.value)


def test_a_node_that_lacks_tensors_of_the_call_is_refused_for_that_reason() -> None:
    @tp.symbolic("torchport_tests::scaled_sum", since=9)
    def scaled_sum(g, a, b, alpha, axes, mode):
        return g.op("mine::ScaledSum", a)

    with pytest.raises(EngineError, match="the node lacks the inputs b") as caught:
        exported(ScaledSum(), "export")
    assert "pass them to g.op" in str(caught.value.next_step)
    assert "allow_unproven=True" in str(caught.value.next_step)
    assert not exported(ScaledSum(), "export", allow_unproven=True).proven
