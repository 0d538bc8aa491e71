"""Advice names what takes time and need not, with the time of the kernels that would go away; nothing for trifles."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest

from torchport.benchmark.profile_advice import Measured, advice_for
from torchport.benchmark.profile_report import Advice
from torchport.engines.profiling import Kernel, KernelTimes

ATTENTION = """(float[2,4,8,16] q, float[2,4,16,8] k, float[2,4,8,16] v, bool[8,8] mask) => (float[2,8,4,16] y)
<float scale = {0.25}, float low = {-1000.0}> {
    [product] s = MatMul(q, k)
    [scaled] t = Mul(s, scale)
    [masked] m = Where(mask, t, low)
    [soft] p = Softmax<axis = -1>(m)
    [out] o = MatMul(p, v)
    [turned] y = Transpose<perm = [0, 2, 1, 3]>(o)
}"""
NORM = """(float[8,64] x) => (float[8,64] y) <float two = {2.0}, float small = {0.00001}, float[64] w> {
    [squared] s = Pow(x, two)
    [mean] m = ReduceMean<axes = [-1], keepdims = 1>(s)
    [added] a = Add(m, small)
    [root] r = Sqrt(a)
    [divided] d = Div(x, r)
    [scaled] y = Mul(d, w)
}"""


def model_of(body: str) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 17]> g {body}')


def kernels(model: ir.Model, groups: Sequence[str], seconds: float = 1e-3) -> tuple[Kernel, ...]:
    """One kernel for each group of names, all of the same time."""
    by_name = {node.name: node for node in model.graph}
    nodes = [tuple(by_name[name] for name in group.split("+")) for group in groups]
    return tuple(Kernel(group[0].name or "", group[0].op_type, seconds, 1.0, group) for group in nodes)


def found_in(
    model: ir.Model,
    made: tuple[Kernel, ...],
    *,
    run: float | None = None,
    between: float = 0.0,
    threads: dict[int | None, tuple[float, ...]] | None = None,
    asked: int | None = None,
) -> dict[str, Advice]:
    times = KernelTimes(made, 10, True)
    measured = Measured(model, times, run or times.seconds, between, lambda nodes: 1e-3, threads or {}, asked)
    return {advice.kind: advice for advice in advice_for(measured)}


def test_attention_in_single_nodes_names_what_is_in_the_way() -> None:
    model = model_of(ATTENTION)
    next(n for n in model.graph if n.name == "masked").metadata_props["torchport.source"] = "net.py:12"
    found = found_in(model, kernels(model, ["product", "scaled", "masked", "soft", "out", "turned"]))["attention"]
    assert "Where between its matrix products" in found.message
    assert "net.py:12" in found.message
    assert set(found.nodes) == {"scaled", "masked", "turned"}  # the softmax would stay
    assert found.gain_seconds == pytest.approx(3e-3)
    assert found.gain == pytest.approx(0.5)


def test_fused_attention_is_no_finding() -> None:
    model = model_of(ATTENTION)
    assert "attention" not in found_in(model, kernels(model, ["product+scaled+masked+soft+out", "turned"]))


def test_a_norm_written_out_saves_all_but_one_pass_over_the_tensor() -> None:
    model = model_of(NORM)
    names = ["squared", "mean", "added", "root", "divided", "scaled"]
    found = found_in(model, kernels(model, names))["norm"]
    assert found.gain_seconds == pytest.approx(5e-3 - 1e-3)  # one pass stays
    assert "RMSNorm" in found.next_step
    fused = kernels(model, ["squared+mean+added+root+divided", "scaled"])
    assert "norm" not in found_in(model, fused)


def test_layouts_casts_and_shapes_are_found_with_their_time() -> None:
    body = """(float[n,8] x) => (float[8,n] y, double[n,8] z, int64[1] c) <int64[1] one = {1}> {
        [turn] y = Transpose(x) [cast] z = Cast<to = 11>(x) [shape] s = Shape(x) [part] c = Slice(s, one, one) }"""
    model = model_of(body)
    inserted = Kernel("ReorderOutput", "com.microsoft.nchwc.ReorderOutput", 1e-3, 1.0, (), tuple(model.graph)[:1])
    found = found_in(model, (*kernels(model, ["turn", "cast", "shape", "part"]), inserted))
    assert found["transposes"].gain == pytest.approx(0.4)
    assert "1 of them inserted" in found["transposes"].message
    assert found["casts"].gain == pytest.approx(0.2)
    assert found["dimensions"].gain == pytest.approx(0.4)
    assert "as n may vary" in found["dimensions"].message


def test_nothing_below_one_part_in_a_hundred_is_mentioned() -> None:
    body = "(float[8,8] x) => (float[8,8] y) { [turn] t = Transpose(x) [work] y = MatMul(t, x) }"
    model = model_of(body)
    assert found_in(model, kernels(model, ["turn", "work"]), run=0.2) == {}


def test_many_tiny_nodes_count_their_part_of_the_time_between() -> None:
    steps = " ".join(f"[n{i}] v{i + 1} = Sin(v{i})" for i in range(30))
    model = model_of(f"(float[8] v0) => (float[8] v30) {{ {steps} }}")
    made = kernels(model, [f"n{i}" for i in range(30)], seconds=5e-6)
    found = found_in(model, made, run=300e-6, between=150e-6)["tiny-nodes"]
    assert found.gain == pytest.approx(1.0)
    assert "tiny-nodes" not in found_in(model, kernels(model, [f"n{i}" for i in range(30)], seconds=1e-3))


@pytest.mark.parametrize(
    ("times", "asked", "gain"),
    [
        ({1: (1.0, 1.1), None: (0.5, 0.6)}, None, None),  # threads help
        ({1: (1.0, 1.0), None: (2.0, 2.2)}, None, 0.5),
        ({1: (1.0, 1.0), None: (1.0, 1.0)}, None, 0.0),  # no time, but cores
        ({1: (1.0, 1.0), None: (2.0, 0.5)}, None, None),  # the measurements do not agree
        ({1: (1.0, 1.0), None: (0.5, 0.5)}, 1, 0.5),  # one is asked for
        ({}, None, None),
    ],
)
def test_threads_that_do_not_help(
    times: dict[int | None, tuple[float, ...]], asked: int | None, gain: float | None
) -> None:
    model = model_of("(float[8] x) => (float[8] y) { [work] y = Sin(x) }")
    found = found_in(model, kernels(model, ["work"], seconds=1.0), threads=times, asked=asked)
    assert ({kind: a.gain for kind, a in found.items()} == {"threads": pytest.approx(gain)}) == (gain is not None)
    assert bool(found) == (gain is not None)
