# mypy: disable-error-code="no-untyped-def,misc,type-arg,no-untyped-call,untyped-decorator"
"""Corners of operators defined once: calls that PyTorch runs, bodies, names, paths and faults."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner
from onnxscript import opset15, opset18, script, values
from torch import Tensor

import torchport as tp
from torchport import results
from torchport.cli.main import cli
from torchport.engines.onnxruntime import headers, kernel_libraries, python_kernels
from torchport.errors import EngineError, OptionError
from torchport.operators import definition

KERNELS = Path(__file__).parent / "kernels" / "everything.cc"
OWN = values.Opset("tests", 1)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for name in definition.defined():
        definition.forget(name)


def same(function: Any, given: tuple[Any, ...], *, route: str = "export") -> Any:
    exported = tp.export(function, given, route=route)
    torch.testing.assert_close(tp.session(exported.model)(*given), function(*given))
    return exported


# --- calls that PyTorch runs ------------------------------------------------------------------------------------------


def test_an_exception_in_a_call_is_an_error_and_not_the_end_of_the_process() -> None:
    @tp.operator("tests::small_only")
    def small_only(a: Tensor) -> Tensor:
        if a.numpy().max() > 1e5:
            raise ValueError("too big")
        return a * 1

    small_only.onnx("tests::SmallOnly")
    session = tp.session(tp.export(lambda a: small_only(a), (torch.rand(3),), route="trace").model)
    with pytest.raises(EngineError, match="PyTorch fails while running tests::small_only: too big"):
        session(torch.full((3,), 1e6))
    assert session(torch.ones(3)).sum() == 3  # and the next run knows nothing of it


def test_a_half_tensor_is_refused_in_words() -> None:
    op = tp.operator("tests::doubled", schema="(Tensor a) -> Tensor")(lambda a: a + a)
    op.onnx("tests::Doubled")
    with pytest.raises(EngineError, match="FLOAT16 cannot be given to Python"):
        tp.export(lambda a: op(a), (torch.ones(3, dtype=torch.float16),), route="trace")


def test_outputs_that_nobody_uses_may_be_of_another_type() -> None:
    @tp.operator("tests::sum_and_count")
    def sum_and_count(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(), torch.full((1,), x.numel())

    sum_and_count.onnx("tests::SumAndCount")
    same(lambda x: sum_and_count(x)[0], (torch.randn(3),))
    sum_and_count.kernel(KERNELS)
    same(lambda x: sum_and_count(x)[0], (torch.randn(3),))


def test_none_for_an_attribute_with_a_default_stays_none() -> None:
    @tp.operator("tests::offset")
    def offset(a: Tensor, k: Optional[float] = 2.0, counts: Sequence[int] = (1,)) -> Tensor:  # noqa: UP045
        return a + (50.0 if k is None else k) + sum(counts)

    offset.onnx("tests::Offset")
    same(lambda a: offset(a, None, []) + offset(a), (torch.randn(3),), route="trace")


def test_tensors_left_out_and_texts_go_through_torchscript() -> None:
    @tp.operator("tests::middle")
    def middle(a: Tensor, w: Optional[Tensor], b: Tensor, mode: str = "é") -> Tensor:  # noqa: UP045
        return (a - b if w is None else a * w - b) + len(mode)

    middle.onnx("tests::Middle")
    same(lambda a, b: middle(a, None, b, "") + middle(a, b, b), (torch.randn(3), torch.randn(3)), route="trace")


def test_symbolics_with_arguments_by_name_and_outputs_of_two_types_are_run() -> None:
    @torch.library.custom_op("tests::pair", mutates_args=())
    def pair(a: Tensor, b: Tensor, *, n: int = 2) -> tuple[Tensor, Tensor]:
        return a - b, torch.full((2,), n)

    @pair.register_fake
    def _(a, b, *, n=2):
        return torch.empty_like(a), a.new_empty(2, dtype=torch.int64)

    tp.symbolic("tests::pair")(lambda g, a, b, n: g.op("tests::Pair", b, a, n_i=n, outputs=2))
    exported = same(lambda a, b: pair(a, b, n=3), (torch.randn(3), torch.randn(3)))
    assert [v.dtype for v in exported.model.graph.outputs] == [ir.DataType.FLOAT, ir.DataType.INT64]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, k):
        return a * k

    @staticmethod
    def symbolic(g, a, k):
        return g.op("tests::Doubled", a, k_f=k)


def test_a_model_saved_twice_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tp.export(lambda x: Doubled.apply(x, 2.0), (torch.ones(3),), route="export", output=tmp_path / f"{name}.onnx")
    first = (tmp_path / "a.onnx").read_bytes()
    assert first == (tmp_path / "b.onnx").read_bytes()
    assert results.MARK.encode() not in first


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("(Tensor a) -> Tensor[]", "gives a list of tensors"),
        ("(Tensor[] a, Tensor b) -> Tensor", "argument 'a'"),
        ("(Tensor[] a, Tensor[] b) -> Tensor", "argument 'a'"),
        ("(Tensor?[] a) -> Tensor", "argument 'a'"),
    ],
)
def test_what_is_no_node_is_refused_when_it_is_said(schema: str, words: str) -> None:
    op = tp.operator("tests::no_node", schema=schema)(lambda *a: a[0])
    with pytest.raises(OptionError, match=words):
        op.onnx("tests::NoNode")


def test_a_dtype_is_no_attribute() -> None:
    @tp.operator("tests::cast_to")
    def cast_to(a: Tensor, dtype: torch.dtype) -> Tensor:
        return a.to(dtype) + 1

    cast_to.onnx("tests::CastTo")
    with pytest.raises(tp.CaptureError, match=r"is a torch\.dtype"):
        tp.export(lambda a: cast_to(a, torch.float64), (torch.ones(3),), route="export")


def test_a_function_may_use_what_is_around_it() -> None:
    factor = 2.0

    @tp.operator("tests::around")
    def around(a: Tensor) -> Tensor:
        return a * factor

    assert around(torch.ones(1)) == 2


def test_torchscript_is_told_where_it_has_no_lowering() -> None:
    op = tp.operator("tests::plain", schema="(Tensor a, float k=2.0) -> Tensor")(lambda a, k=2.0: a * k)
    with pytest.raises(tp.CaptureError, match="no lowering that TorchScript's exporter can take"):
        tp.export(lambda a: op(a), (torch.ones(3),), route="trace")
    op.onnx(lambda g, a, k: g.op("Mul", a, g.op("Constant", value_t=torch.tensor(k))))
    same(lambda a: op(a, 0.5), (torch.ones(3),), route="trace")


# --- bodies -----------------------------------------------------------------------------------------------------------


@script(OWN, default_opset=opset18)
def inner(a, b):
    return opset18.Add(a, b)


@script(OWN, default_opset=opset18)
def nested(a, b, alpha: float = 3.0):
    return inner(opset18.Mul(a, opset18.Constant(value_float=alpha)), b)


@script(OWN, default_opset=opset15)
def older(a, b, alpha: float = 3.0):
    return opset15.Add(opset15.Mul(a, opset15.Constant(value_float=alpha)), b)


@pytest.mark.parametrize("function", [nested, older])
@pytest.mark.parametrize("kept", [False, True])
def test_onnxscript_functions_of_any_opset_are_lowerings(function: Any, kept: bool) -> None:
    op = tp.operator("tests::scaled", schema="(Tensor a, Tensor b, float alpha=3.0) -> Tensor")(
        lambda a, b, alpha=3.0: a * alpha + b
    )
    op.onnx(function)
    if kept:
        op.onnx("tests::Scaled")
    exported = same(lambda a, b: op(a, b) - op(b, a, 0.5), (torch.randn(3), torch.randn(3)))
    assert not exported.findings
    assert len(exported.model.functions) == (2 if kept else 0)


def test_bodies_of_every_wiring() -> None:
    """An input left out in the middle, an output that is an input, two that are one, a domain of the engine's."""

    @tp.operator("tests::wired")
    def wired(a: Tensor, w: Optional[Tensor], b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: UP045
        return b.clone(), a - b, a - b, torch.nn.functional.gelu(a)

    wired.onnx("tests::Wired")

    @wired.onnx
    def _(g, a, w, b):
        difference = g.op("Sub", a, b)
        return b, difference, difference, g.op("com.microsoft::Gelu", a)

    assert not same(lambda a, b: wired(a, None, b), (torch.randn(3), torch.randn(3))).findings


# --- building ---------------------------------------------------------------------------------------------------------

KERNEL = """#include "torchport.h"
#include "the value.h"
using namespace torchport;
static void f(const Input<float>& x, Output<float>& y) { VALUE }
TORCHPORT_KERNEL("tests::%s", {}, f)
"""


def test_folders_with_spaces_several_files_and_a_kernel_without_output(tmp_path: Path) -> None:
    folder = tmp_path / "a b$ #c"
    folder.mkdir()
    (folder / "the value.h").write_text("#define VALUE\n")
    first, second = folder / "first.cc", folder / "second.cc"
    first.write_text(KERNEL % "Forgets")
    second.write_text(KERNEL % "Second")
    stamp = kernel_libraries.build([first, second]).stat().st_mtime_ns
    assert kernel_libraries.build([first, second]).stat().st_mtime_ns == stamp
    first.write_text(KERNEL % "Forgetful")
    library = kernel_libraries.build([first, second])
    assert library.stat().st_mtime_ns > stamp
    op = tp.operator("tests::forgetful", schema="(Tensor x) -> Tensor")(lambda x: x + 1)
    op.onnx("tests::Forgetful")
    op.kernel(library=library)
    with pytest.raises(tp.TorchportError, match=r"did not resize\(\) output 0"):
        tp.export(lambda x: op(x), (torch.ones(3),), route="trace")


def test_compilers_and_caches_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-thing g++")
    with pytest.raises(OptionError, match="no C\\+\\+ compiler no-such-thing here"):
        kernel_libraries.compiler()
    monkeypatch.setenv("CXX", "env g++")
    assert kernel_libraries.compiler() == ["env", "g++"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(headers.VARIABLE, headers.find().folder)
    monkeypatch.setenv("TORCHPORT_CACHE", str(tmp_path / "file"))
    with pytest.raises(OptionError, match="cannot write to its cache"):
        kernel_libraries.build([KERNELS])


# --- the command line -------------------------------------------------------------------------------------------------


def test_names_of_new_operators(tmp_path: Path) -> None:
    run = CliRunner()
    refused = run.invoke(cli, ["ops", "new", "mylib::lambda", "--folder", str(tmp_path)])
    assert isinstance(refused.exception, OptionError) or "keyword of Python" in refused.output
    run.invoke(cli, ["ops", "new", "mylib::HTTPOp", "--folder", str(tmp_path)])
    assert '"mylib::HTTPOp"' in (tmp_path / "HTTPOp.py").read_text()
    run.invoke(cli, ["ops", "new", "mylib::torch", "--folder", str(tmp_path)])
    assert "def torch_op(" in (tmp_path / "torch_op.py").read_text()
    assert not (tmp_path / "torch.py").exists()


def test_a_library_that_cannot_be_written_is_an_error_in_words() -> None:
    done = CliRunner().invoke(cli, ["ops", "build", str(KERNELS), "-o", "/proc/nothing.so"])
    assert "cannot be written" in (done.output + str(done.exception))


def test_the_garbage_collector_may_take_options_before_the_session() -> None:
    """ONNX Runtime unloads a library with the options it was registered in; kernels must not be gone by then."""
    import gc

    import onnxruntime

    from torchport.engines.onnxruntime.engine import _options
    from torchport.engines.protocol import OpenOptions
    from torchport.files import onnx_files

    library = kernel_libraries.build([KERNELS])
    define = tp.operator("tests::gc_add", schema="(Tensor a, Tensor b, float alpha=3.0) -> Tensor")
    op = define(lambda a, b, alpha=3.0: a * alpha + b)
    op.onnx("tests::ScaleAdd")
    op.kernel(KERNELS)
    exported = tp.export(lambda a, b: op(a, b), (torch.randn(3), torch.randn(3)), route="export")
    options = _options(OpenOptions(libraries=(str(library),)))
    session = onnxruntime.InferenceSession(
        onnx_files.to_bytes(exported.model), options, providers=["CPUExecutionProvider"]
    )
    session._sess_options = None
    del options
    gc.collect()
    feeds = {i.name: torch.ones(3).numpy() for i in session.get_inputs()}
    assert session.run(None, feeds)[0].tolist() == [4.0, 4.0, 4.0]
    del session
    gc.collect()
    definition.forget("tests::gc_add")


def test_saving_by_hand_leaves_no_marks(tmp_path: Path) -> None:
    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x + 1

        @staticmethod
        def symbolic(g, x):  # type: ignore[no-untyped-def]
            return g.op("tests::Marked", x)

    exported = tp.export(lambda x: Marked.apply(x), (torch.randn(3),), route="export")
    tp.graph.save(exported.model, tmp_path / "m.onnx")
    assert b"python_call" not in (tmp_path / "m.onnx").read_bytes()
    assert tp.session(exported.model).in_python == ("tests::Marked",)  # the model in memory still knows


def test_running_a_node_in_python_changes_nothing_for_processes_started_later() -> None:
    """onnxruntime-extensions switches protobuf's implementation by an environment variable when it is imported."""
    before = dict(os.environ)
    node = ir.node("Nothing", [], domain="test.none")
    model = ir.Model(ir.Graph([], [], nodes=[node], opset_imports={"": 18, "test.none": 1}, name="g"), ir_version=9)
    python_kernels.with_python_kernels(model, [])
    assert dict(os.environ) == before
