# mypy: disable-error-code="no-untyped-def,misc,type-arg"
"""An operator defined once exports, is proven and runs: by its kernel, its body, or PyTorch itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import onnx
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import torchport as tp
from torchport.cli.main import cli
from torchport.engines.onnxruntime import headers, kernel_libraries
from torchport.errors import EngineError, OptionError
from torchport.operators import definition

KERNELS = Path(__file__).parent / "kernels" / "everything.cc"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for name in definition.defined():
        definition.forget(name)


def scale_add() -> tp.Operator:
    @tp.operator("tests::scale_add")
    def scale_add(a: Tensor, b: Tensor, alpha: float = 3.0) -> Tensor:
        return (a * alpha + b).to(a.dtype)

    made: tp.Operator = scale_add
    return made


def sum_and_count() -> tp.Operator:
    @tp.operator("tests::sum_and_count")
    def sum_and_count(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(), torch.full((1,), x.numel())

    made: tp.Operator = sum_and_count
    return made


def blend() -> tp.Operator:
    @tp.operator("tests::blend")
    def blend(
        x: Tensor,
        words: Sequence[str],
        weight: Optional[Tensor] = None,  # noqa: UP045 - torch's schemas are written so
        power: int = 1,
        negate: bool = False,
        mode: str = "sum",
        counts: Sequence[int] = (),
        factors: Sequence[float] = (),
        extra: Optional[float] = None,  # noqa: UP045
    ) -> Tensor:
        value = x**power
        if weight is not None:
            value = value + weight if mode == "sum" else value * weight
        return (-value if negate else value * 1) + (extra or 0.0) + sum(counts) + sum(factors) + sum(map(len, words))

    made: tp.Operator = blend
    return made


def total() -> tp.Operator:
    @tp.operator("tests::total")
    def total(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).sum(0)

    made: tp.Operator = total
    return made


def positives() -> tp.Operator:
    @tp.operator("tests::positives")
    def positives(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy()[x.numpy() > 0])

    @positives.shape
    def _(x: Tensor) -> Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    made: tp.Operator = positives
    return made


class Uses(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x), x)


MODELS: dict[str, tuple[Any, str, Any]] = {
    "float32": (scale_add, "tests::ScaleAdd", lambda op: lambda h, x: op(h, x.cos()) + op(x, h, 0.5)),
    "several outputs": (sum_and_count, "tests::SumAndCount", lambda op: lambda h, x: op(h)),
    "no weight": (blend, "tests::Blend", lambda op: lambda h, x: op(h, [], None, 2, True, "sum", [1, 2], [0.5])),
    "every attribute": (
        blend,
        "tests::Blend",
        lambda op: lambda h, x: op(h, ["ab", "c"], x, 3, False, "product", [4], [0.25], 2.0),
    ),
    "many inputs": (total, "tests::Total", lambda op: lambda h, x: op([h, x, h * x])),
    "sizes from values": (positives, "tests::Positives", lambda op: lambda h, x: op(h) * 2),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", ["kernel", "python"])
def test_every_kind_of_operator_runs_by_its_kernel_and_without(kind: str, way: str, tmp_path: Path) -> None:
    make, node, use = MODELS[kind]
    op = make()
    op.onnx(node)
    if way == "kernel":
        op.kernel(KERNELS)
    model = Uses(use(op)).eval()
    exported = tp.export(model, (torch.randn(3, 4),), dynamic={"x": {0: "n"}}, output=tmp_path / "m.onnx")
    assert node in {f"{n.domain}::{n.op_type}" for n in exported.model.graph}
    in_python = [f for f in exported.findings if "PyTorch ran it" in f.message]
    assert bool(in_python) == (way == "python")
    x = torch.randn(7, 4)
    session = tp.session(tmp_path / "m.onnx")
    assert session.in_python == ((node,) if way == "python" else ())
    torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_kernel_has_a_function_for_each_dtype(dtype: torch.dtype) -> None:
    op = scale_add()
    op.onnx("tests::ScaleAdd")
    op.kernel(KERNELS)
    x = torch.arange(6).reshape(2, 3).to(dtype)
    exported = tp.export(lambda a, b: op(a, b, 2.0), (x, x + 1), dynamic={"a": {0: "n"}, "b": {0: "n"}})
    assert torch.equal(tp.session(exported.model)(x, x + 1), x * 2 + x + 1)


def test_an_operator_without_any_lowering_is_traced_through() -> None:
    op = scale_add()
    exported = tp.export(lambda a: op(a, a.sin()), (torch.randn(3, 4),), dynamic={"a": {0: "n"}})
    assert {n.domain for n in exported.model.graph} == {""}


def test_one_that_cannot_be_traced_says_what_to_give() -> None:
    @tp.operator("tests::by_numpy")
    def by_numpy(a: Tensor) -> Tensor:
        return torch.from_numpy(a.numpy() + 1)

    with pytest.raises(tp.CaptureError, match="tests::by_numpy has no ONNX lowering") as caught:
        tp.export(lambda a: by_numpy(a) * 2, (torch.randn(3),), route="export")
    assert ".onnx(" in str(caught.value)


def lowered_by_symbolic(g, a, b, alpha):
    return g.op("Add", g.op("Mul", a, g.op("Constant", value_t=torch.tensor(alpha))), b)


def lowered_by_onnxscript(a, b, alpha: float = 3.0):
    from onnxscript import opset18 as op

    return op.Add(op.Mul(a, op.Constant(value_float=alpha)), b)


@pytest.mark.parametrize("lowering", [lowered_by_symbolic, lowered_by_onnxscript])
@pytest.mark.parametrize("kept", [False, True])
def test_a_lowering_is_written_out_or_kept_as_a_body(lowering: Any, kept: bool, tmp_path: Path) -> None:
    op = scale_add()
    op.onnx(lowering)
    if kept:
        op.onnx("tests::ScaleAdd")
    model = Uses(lambda h, x: op(h, x) + op(x, h, 0.5)).eval()
    exported = tp.export(model, (torch.randn(3, 4),), dynamic={"x": {0: "n"}}, output=tmp_path / "m.onnx")
    nodes = [n.op_type for n in exported.model.graph if n.domain == "tests"]
    assert nodes == (["ScaleAdd", "ScaleAdd"] if kept else [])
    assert not exported.findings  # a body needs neither kernel nor PyTorch
    definition.forget("tests::scale_add")
    x = torch.randn(5, 4)
    torch.testing.assert_close(tp.session(tmp_path / "m.onnx")(x), model(x), rtol=1e-4, atol=1e-5)
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)


def test_a_kernel_and_a_body_are_both_proven() -> None:
    op = scale_add()
    op.onnx("tests::ScaleAdd")
    op.kernel(KERNELS)
    op.onnx(lambda g, a, b, alpha: g.op("Sub", g.op("Mul", a, g.op("Constant", value_t=torch.tensor(alpha))), b))
    with pytest.raises(tp.ProofError, match="bodies"):
        tp.export(lambda a, b: op(a, b), (torch.randn(3), torch.randn(3)), route="export")


def test_a_wrong_kernel_does_not_leave_the_house(tmp_path: Path) -> None:
    (tmp_path / "wrong.cc").write_text(KERNELS.read_text().replace("+ b[i]", "- b[i]"))
    op = scale_add()
    op.onnx("tests::ScaleAdd")
    op.kernel(tmp_path / "wrong.cc")
    with pytest.raises(tp.ProofError):
        tp.export(lambda a, b: op(a, b), (torch.randn(3), torch.randn(3)), output=tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_shapes_are_learned_from_runs_where_the_code_needs_numbers() -> None:
    @tp.operator("tests::joined")
    def joined(a: Tensor, b: Tensor) -> Tensor:
        import numpy as np

        return torch.from_numpy(np.concatenate([a.numpy(), b.numpy(), b.numpy()])[:, None])

    joined.onnx("tests::Joined")
    example = (torch.randn(3), torch.randn(5))
    exported = tp.export(lambda a, b: joined(a, b), example, dynamic={"a": {0: "n"}, "b": {0: "m"}}, route="export")
    a, b = torch.randn(4), torch.randn(2)
    assert torch.equal(tp.session(exported.model)(a, b), torch.cat([a, b, b])[:, None])


def test_shapes_that_are_no_sums_ask_for_a_shape_function() -> None:
    @tp.operator("tests::squared")
    def squared(a: Tensor) -> Tensor:
        return torch.from_numpy(a.numpy().repeat(len(a)))

    squared.onnx("tests::Squared")
    with pytest.raises(tp.CaptureError, match=r"9, 16 and 25.*cannot be learned from runs") as caught:
        tp.export(lambda a: squared(a), (torch.randn(3),), dynamic={"a": {0: "n"}}, route="export")
    assert "give a shape function" in str(caught.value.next_step)


def test_it_stays_differentiable_where_asked() -> None:
    op = scale_add()
    op.backward(lambda ctx, grad: (grad * 3.0, grad, None))
    a = torch.randn(3, requires_grad=True)
    op(a, torch.zeros(3)).sum().backward()
    assert torch.equal(a.grad, torch.full((3,), 3.0))  # type: ignore[arg-type]


def test_an_attribute_that_comes_from_a_size_is_refused_in_words() -> None:
    op = blend()
    op.onnx("tests::Blend")
    with pytest.raises(tp.CaptureError, match="'power' of tests::blend is computed while the model runs"):
        tp.export(lambda x: op(x, [], None, x.shape[0]), (torch.randn(3, 4),), dynamic={"x": {0: "n"}}, route="export")


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kernel_libraries.build([KERNELS])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    op = scale_add()
    op.onnx("tests::ScaleAdd")
    op.kernel(KERNELS)
    path = tmp_path_factory.mktemp("saved") / "m.onnx"
    tp.export(lambda a, b: op(a, b), (torch.randn(3), torch.randn(3)), output=path)
    definition.forget("tests::scale_add")
    return path


def test_a_saved_model_names_what_it_needs(saved: Path, library: Path) -> None:
    with pytest.raises(EngineError, match=r"tests::ScaleAdd.*domain 'tests'.*libeverything\.so") as caught:
        tp.session(saved)
    assert "libraries=" in str(caught.value)
    a, b = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(tp.session(saved, libraries=[library])(a, b), a * 3 + b)


def test_a_library_that_has_other_operators_is_named(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.cc"
    text = KERNELS.read_text()
    other.write_text(text.replace("tests::ScaleAdd", "tests::OtherAdd"))
    with pytest.raises(EngineError, match=r"none of libother\.so has it"):
        tp.session(saved, libraries=[kernel_libraries.build([other])])


def compiled(tmp_path: Path, text: str, *flags: str) -> Path:
    source = tmp_path / "bad.cc"
    source.write_text(text)
    target = tmp_path / "libbad.so"
    include = headers.find().folder
    command = [*kernel_libraries.compiler(), "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(target), *flags]
    subprocess.run(command, check=True, capture_output=True)
    return target


NEWER = """
#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  Ort::InitApi(base->GetApi(9999));
  Ort::CustomOpDomain domain{"tests"};
  return nullptr;
}
"""


def test_bad_libraries_are_errors_not_crashes(saved: Path, library: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no operator library 'nothing\.so'"):
        tp.session(saved, libraries=["nothing.so"])
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(OptionError, match="is no library of this system"):
        tp.session(saved, libraries=[tmp_path / "text.so"])
    elsewhere = bytearray(library.read_bytes())
    elsewhere[18:20] = (183 if os.uname().machine == "x86_64" else 62).to_bytes(2, "little")
    (tmp_path / "elsewhere.so").write_bytes(elsewhere)
    with pytest.raises(OptionError, match="was built for"):
        tp.session(saved, libraries=[tmp_path / "elsewhere.so"])
    with pytest.raises(EngineError, match="no function RegisterCustomOps"):
        tp.session(saved, libraries=[compiled(tmp_path, "int answer() { return 42; }")])
    with pytest.raises(EngineError, match="built against a newer one"):
        tp.session(saved, libraries=[compiled(tmp_path, NEWER)])


def test_a_kernel_that_refuses_says_why() -> None:
    op = blend()
    op.onnx("tests::Blend")
    op.kernel(KERNELS)
    with pytest.raises((tp.TorchportError), match="mode is 'median'"):
        tp.export(lambda x: op(x, [], None, 1, False, "median"), (torch.randn(3),), route="export")


def test_a_library_written_by_hand_works_too(tmp_path: Path) -> None:
    """ONNX Runtime's own C++ classes, without torchport.h."""
    (tmp_path / "by_hand.cc").write_text(
        """
#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>
struct Kernel {
  void Compute(OrtKernelContext* context) {
    Ort::KernelContext ctx(context);
    auto x = ctx.GetInput(0);
    auto shape = x.GetTensorTypeAndShapeInfo().GetShape();
    float* out = ctx.GetOutput(0, shape).GetTensorMutableData<float>();
    const float* in = x.GetTensorData<float>();
    for (size_t i = 0; i < x.GetTensorTypeAndShapeInfo().GetElementCount(); ++i) out[i] = in[i] + 1;
  }
};
struct Op : Ort::CustomOpBase<Op, Kernel> {
  void* CreateKernel(const OrtApi&, const OrtKernelInfo*) const { return new Kernel; }
  const char* GetName() const { return "PlusOne"; }
  size_t GetInputTypeCount() const { return 1; }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  Ort::InitApi(base->GetApi(21));
  static Op op;
  static Ort::CustomOpDomain domain{"tests"};
  static bool added = (domain.Add(&op), true);
  (void)added;
  return Ort::GetApi().AddCustomOpDomain(options, domain);
}
"""
    )

    @tp.operator("tests::plus_one")
    def plus_one(x: Tensor) -> Tensor:
        return x + 1

    plus_one.onnx("tests::PlusOne")
    plus_one.kernel(tmp_path / "by_hand.cc")
    exported = tp.export(lambda x: plus_one(x) * 2, (torch.randn(3),), dynamic={"x": {0: "n"}})
    assert not exported.findings
    x = torch.randn(5)
    torch.testing.assert_close(tp.session(exported.model)(x), (x + 1) * 2)


def test_kernels_of_one_domain_may_be_in_several_files(tmp_path: Path) -> None:
    ops = []
    for name, sign in (("plus", "+"), ("minus", "-")):
        (tmp_path / f"{name}.cc").write_text(
            '#include "torchport.h"\nusing namespace torchport;\n'
            f"static void {name}(const Input<float>& x, Output<float>& y) {{\n"
            "  float* out = y.resize(x.shape());\n"
            f"  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] {sign} 1;\n}}\n"
            f'TORCHPORT_KERNEL("tests::{name}", {{}}, {name})\n'
        )
        op = tp.operator(f"tests::{name}", schema="(Tensor x) -> Tensor")(
            (lambda x: x + 1) if sign == "+" else (lambda x: x - 1)
        )
        op.kernel(tmp_path / f"{name}.cc")
        ops.append(op)
    plus, minus = ops
    exported = tp.export(lambda x: minus(plus(x) * 2), (torch.randn(3),))
    x = torch.randn(3)
    torch.testing.assert_close(tp.session(exported.model)(x), (x + 1) * 2 - 1)
    apart = [kernel_libraries.build([tmp_path / f"{name}.cc"]) for name in ("plus", "minus")]
    definition.forget("tests::plus")
    definition.forget("tests::minus")
    with pytest.raises(EngineError, match="one library for a domain"):
        tp.session(exported.model, libraries=apart)


def test_the_reference_evaluator_runs_it_too() -> None:
    op = scale_add()
    op.onnx("tests::ScaleAdd")
    exported = tp.export(lambda a, b: op(a, b), (torch.randn(3), torch.randn(3)))
    a, b = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(tp.session(exported.model, "reference")(a, b), a * 3 + b)


# --- what is refused when it is defined -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my_add", "my::", "aten::mine", "my lib::x", 3])
def test_names_that_are_none_are_refused(name: Any) -> None:
    with pytest.raises(OptionError):
        tp.operator(name)


def test_a_function_without_annotations_is_told_what_to_do() -> None:
    with pytest.raises(OptionError, match="cannot be defined") as caught:

        @tp.operator("tests::bare")
        def bare(a, b):
            return a + b

    assert "annotate" in str(caught.value)

    @tp.operator("tests::bare", schema="(Tensor a, Tensor b) -> Tensor")
    def with_schema(a, b):
        return a + b

    assert torch.equal(with_schema(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


def test_a_kernel_that_does_not_compile_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "broken.cc").write_text('#include "torchport.h"\nvoid f() { undeclared(); }\n')
    with pytest.raises(OptionError, match=r"does not compile.*undeclared") as caught:
        kernel_libraries.build([tmp_path / "broken.cc"])
    assert "broken.cc:2" in str(caught.value)
    with pytest.raises(OptionError, match="no kernel source"):
        kernel_libraries.build([tmp_path / "nothing.cc"])


def test_a_library_is_built_again_only_when_something_changed(tmp_path: Path) -> None:
    (tmp_path / "part.h").write_text("const float factor = 1;\n")
    source = tmp_path / "part.cc"
    source.write_text(
        '#include "torchport.h"\n#include "part.h"\nusing namespace torchport;\n'
        "void f(const Input<float>& x, Output<float>& y) { y.resize(x.shape())[0] = factor; }\n"
        'TORCHPORT_KERNEL("tests::Part", {}, f)\n'
    )
    first = kernel_libraries.build([source])
    stamp = first.stat().st_mtime_ns
    assert kernel_libraries.build([source]).stat().st_mtime_ns == stamp
    (tmp_path / "part.h").write_text("const float factor = 2;\n")
    assert kernel_libraries.build([source]).stat().st_mtime_ns > stamp


def test_headers_are_looked_for_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"has no onnxruntime_cxx_api\.h"):
        headers.find(tmp_path)
    found = headers.find()
    assert headers.find(found.folder).source == "--ort-include"
    monkeypatch.setenv(headers.VARIABLE, found.folder)
    assert headers.find().source == headers.VARIABLE
    old = tmp_path / "old"
    old.mkdir()
    (old / "onnxruntime_cxx_api.h").write_text("")
    (old / "onnxruntime_c_api.h").write_text("#define ORT_API_VERSION 14\n")
    with pytest.raises(OptionError, match="API 14"):
        headers.find(old)


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_new_operator_works_as_it_is_written(tmp_path: Path) -> None:
    run = CliRunner()
    assert run.invoke(cli, ["ops", "new", "mylib::my_op", "--folder", str(tmp_path)]).exit_code == 0
    file = str(tmp_path / "my_op.py")
    text = Path(file).read_text()
    Path(file).write_text(text.replace("((4,), (2, 3), (64, 1000))", "((2, 3),)"))  # to be quick
    built = run.invoke(cli, ["ops", "build", file, "-o", str(tmp_path / "libmy_op.so")])
    assert built.exit_code == 0, built.output
    tested = run.invoke(cli, ["ops", "test", file])
    assert tested.exit_code == 0, tested.output
    assert "4 trials, all right" in tested.output
    target = str(tmp_path / "net.onnx")
    exported = run.invoke(cli, ["export", f"{file}:Net", "--dynamic", "x:0=batch", "-o", target])
    assert exported.exit_code == 0, exported.output
    definition.forget("mylib::my_op")
    for given in (file, str(tmp_path / "libmy_op.so")):
        ran = run.invoke(cli, ["run", target, "-i", "x=float32[3,8]", "--library", given])
        assert ran.exit_code == 0, ran.output
    again = run.invoke(cli, ["ops", "new", "mylib::my_op", "--folder", str(tmp_path)])
    assert again.exit_code == 2


def test_a_wrong_kernel_fails_its_test(tmp_path: Path) -> None:
    run = CliRunner()
    run.invoke(cli, ["ops", "new", "mylib::wrong_op", "--folder", str(tmp_path)])
    kernel = tmp_path / "wrong_op.cc"
    kernel.write_text(kernel.read_text().replace("+ b[i]", "- b[i]"))
    file = tmp_path / "wrong_op.py"
    file.write_text(file.read_text().replace("((4,), (2, 3), (64, 1000))", "((2, 3),)"))
    tested = run.invoke(cli, ["ops", "test", str(file)])
    assert tested.exit_code == 1
    assert "WRONG  kernel" in tested.output
    assert "right  lowering" in tested.output


def test_an_operator_defined_again_is_called_by_functions_of_the_first_definition_too() -> None:
    def define() -> Any:
        @tp.operator("tests::defined_again")
        def defined_again(a: Tensor) -> Tensor:
            return a * 3

        return defined_again

    first, second = define(), define()
    for _ in range(50):  # the first one's memory is freed: a call of it is undefined, not always an error
        assert torch.equal(first(torch.ones(2)), torch.full((2,), 3.0))
    assert first.overload is second.overload
