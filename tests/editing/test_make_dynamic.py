"""A dimension made dynamic, with everything that was exported for its old size."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import torchport as tp
from torchport.editing.make_dynamic.reshape_rules import placements
from torchport.editing.shapes import set_dim
from torchport.errors import InputError

SIZE = 5


def model(text: str, opset: int = 18) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "mine": 1]> {text}'))


def run(given: ir.Model, **feeds: Any) -> list[np.ndarray]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in tp.graph.lint(given) if f.severity == "error"] == []
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def shapes(given: ir.Model) -> list[str]:
    return [str(v.shape) for v in given.graph.outputs]


# --- made by PyTorch's exporter ---------------------------------------------------------------------------------------


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.qkv, self.out = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 48), nn.Linear(16, 16)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 5, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        x = torch.cat([self.token.expand(n, -1, -1), self.patch(x).flatten(2).transpose(1, 2)], 1) + self.place
        q, k, v = self.qkv(x).reshape(n, 5, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(n, 5, 16))[:, 0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(x, x, x)[0]


NETS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "vision": (Vision, (3, 8, 8)),
    "recurrent": (Recurrent, (7, 6)),
    "attention": (Attention, (7, 16)),
}


def exported(name: str, size: int) -> tuple[nn.Module, ir.Model]:
    torch.manual_seed(0)
    kind, rest = NETS[name]
    net = kind().eval()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(net, (torch.randn(size, *rest),), dynamo=True, verbose=False)
    finally:
        logging.disable(logging.NOTSET)
    assert program is not None
    return net, ir.from_proto(program.model_proto)


@pytest.mark.parametrize(
    ("name", "size"),
    [("vision", 4), ("recurrent", 1), ("attention", 1)],
)
def test_an_export_at_a_fixed_batch_answers_as_pytorch_at_any(name: str, size: int) -> None:
    net, given = exported(name, size)
    feed = str(given.graph.inputs[0].name)
    assert set_dim(given, f"{feed}:0", "batch") > 1
    assert all("batch" in shape for shape in shapes(given))
    for count in (size, SIZE):
        x = torch.randn(count, *NETS[name][1])
        with torch.no_grad():
            wanted = net(x)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for got, want in zip(run(given, **{feed: x.numpy()}), wanted, strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


# --- made by hand -----------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)


def rows(given: ir.Model, free: ir.Model, **feeds: np.ndarray) -> None:
    """The freed model on several rows gives what the old one gives on each."""
    several = run(free, **feeds)
    count = len(next(iter(feeds.values())))
    single = [run(given, **{k: v[n : n + 1] for k, v in feeds.items()}) for n in range(count)]
    for at, got in enumerate(several):
        np.testing.assert_allclose(got, np.concatenate([one[at] for one in single]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "feed"),
    [
        (
            "g (float[1,2,6] x) => (float[1,2,2,3] y) { s = Constant<value_ints=[1,-1,2,3]>() y = Reshape(x, s) }",
            (2, 6),
        ),
        (
            "g (float[1,2,6] x) => (float[1,12] y) { s = Constant<value_ints=[1,12]>()"
            " y = Reshape<allowzero=1>(x, s) }",
            (2, 6),
        ),
        (
            "g (float[1,2,6] x) => (float[1,2,6] y) { s = Constant<value_ints=[2,6]>() a = Reshape(x, s)"
            " t = Constant<value_ints=[1,2,6]>() y = Reshape(a, t) }",
            (2, 6),
        ),
        (
            "g (float[1,4] x) => (float[1,4] y) { a = Constant<value_ints=[0]>() b = Constant<value_ints=[1]>()"
            " y = Slice(x, a, b, a) }",
            (4,),
        ),
        (
            "g (float[1,2,3,3] x) => (float[1,2,6,6] y) { s = Constant<value_ints=[1,2,6,6]>() y = Resize(x, , , s) }",
            (2, 3, 3),
        ),
        (
            "g (float[1,3] x) => (float[1,5] y) { s = Constant<value_ints=[1,2]>() z = ConstantOfShape(s)"
            " y = Concat<axis=1>(x, z) }",
            (3,),
        ),
        (
            "g (float[1,3] x) => (float[1,6] y) { c = Constant<value_float=1.0>() s = Constant<value_ints=[1,3]>()"
            " e = Expand(c, s) y = Concat<axis=-1>(e, x) }",
            (3,),
        ),
        (
            "g (float[1,3] x) => (float[1,3] y) { n = Constant<value_int=2>() s = ReduceSum<keepdims=0>(x)"
            " z = Constant<value_float=0.0>() c = Greater(s, z) y = If (c) <"
            " then_branch = t () => (float[1,3] p) { p = Neg(x) },"
            " else_branch = e () => (float[1,3] q) { k = Constant<value_ints=[1,3]>() q = ConstantOfShape(k) }> }",
            (3,),
        ),
    ],
)  # fmt: skip
def test_constants_of_the_old_size_follow(text: str, feed: tuple[int, ...]) -> None:
    given, free = model(text), model(text)
    set_dim(free, "x:0", "batch")
    assert shapes(free)[0].startswith("[batch")
    x = np.abs(RNG.standard_normal((SIZE, *feed))).astype(np.float32)
    rows(given, free, x=x)


def test_a_loop_whose_state_begins_as_a_constant() -> None:
    text = (
        "g (float[1,3] x) => (float[1,3] y) { n = Constant<value_int=3>() c = Constant<value=bool {1}>()"
        " s = Constant<value_ints=[1,3]>() h = ConstantOfShape(s) y = Loop (n, c, h) <body = b (int64 i, bool k,"
        " float[1,3] a) => (bool k2, float[1,3] o) { k2 = Identity(k) o = Add(a, x) }> }"
    )
    given, free = model(text), model(text)
    set_dim(free, "x:0", "batch")
    rows(given, free, x=RNG.standard_normal((SIZE, 3)).astype(np.float32))


def test_a_sequence_length_takes_positions_along() -> None:
    table = ",".join(map(str, range(16)))
    text = (
        f"g (float[n,4,2] x) => (float[n,4,2] y) <float[8,2] t = {{{table}}}>"
        " { i = Constant<value_ints=[0,1,2,3]>() p = Gather(t, i) y = Add(x, p) }"
    )
    free = model(text)
    set_dim(free, "x:1", "length")
    assert shapes(free) == ["[n,length,2]"]
    x = RNG.standard_normal((2, 7, 2)).astype(np.float32)
    np.testing.assert_allclose(run(free, x=x)[0], x + np.arange(14, dtype=np.float32).reshape(7, 2))


def test_a_slice_of_a_table_gets_a_new_end() -> None:
    table = ",".join(map(str, range(16)))
    text = (
        f"g (float[3,4,2] x) => (float[3,4,2] y) <float[1,8,2] t = {{{table}}}> {{ a = Constant<value_ints=[0]>()"
        " b = Constant<value_ints=[4]>() c = Constant<value_ints=[1]>() p = Slice(t, a, b, c) y = Add(x, p) }"
    )
    free = model(text)
    set_dim(free, "x:1", "length")
    x = RNG.standard_normal((3, 6, 2)).astype(np.float32)
    np.testing.assert_allclose(run(free, x=x)[0], x + np.arange(12, dtype=np.float32).reshape(6, 2))


def test_a_dimension_beside_one_that_is_dynamic() -> None:
    free = model(
        "g (float[1,l,6] x) => (float[1,l,2,3] y) { z = Constant<value_ints=[1]>() s = Shape<start=1,end=2>(x)"
        " r = Constant<value_ints=[2,3]>() t = Concat<axis=0>(z, s, r) y = Reshape(x, t) }"
    )
    set_dim(free, "x:0", "batch")
    x = RNG.standard_normal((SIZE, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(free, x=x)[0], x.reshape(SIZE, 4, 2, 3))
    assert shapes(free) == ["[batch,l,2,3]"]


def test_height_and_batch_one_after_the_other() -> None:
    weight = ",".join(["1"] * 9)
    text = (
        f"g (float[1,1,8,8] x) => (float[1,1,8,8] y, float[1,64] z) <float[1,1,3,3] w = {{{weight}}}>"
        " { a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w) s = Constant<value_ints=[1,1,8,8]>() y = Resize(a, , , s)"
        " t = Constant<value_ints=[1,64]>() z = Reshape(y, t) }"
    )
    free = model(text)
    set_dim(free, "x:0", "batch")
    set_dim(free, "x:2", "height")
    assert shapes(free) == ["[batch,1,None,8]", "[batch,None]"]
    x = RNG.standard_normal((3, 1, 24, 8)).astype(np.float32)
    y, z = run(free, x=x)
    small = torch.nn.functional.conv2d(torch.from_numpy(x), torch.ones(1, 1, 3, 3), stride=2, padding=1)
    np.testing.assert_allclose(y, small.numpy().repeat(2, 2).repeat(2, 3), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(z, y.reshape(3, -1))


def test_rows_of_a_batch_are_not_mixed() -> None:
    text = (
        "g (float[7,1,16] x) => (float[4,7,7] y) { s = Constant<value_ints=[7,4,4]>() a = Reshape(x, s)"
        " q = Transpose<perm=[1,0,2]>(a) k = Transpose<perm=[1,2,0]>(a) m = MatMul(q, k) y = Softmax<axis=-1>(m) }"
    )
    free = model(text)
    set_dim(free, "x:1", "batch")
    assert shapes(free) == ["[4*batch,7,7]"]
    x = RNG.standard_normal((7, 3, 16)).astype(np.float32)
    single = [run(model(text), x=x[:, n : n + 1])[0] for n in range(3)]
    np.testing.assert_allclose(run(free, x=x)[0], np.concatenate(single), rtol=1e-5, atol=1e-6)


def test_an_operator_of_ones_own_keeps_the_shape() -> None:
    free = model("g (float[1,3] x) => (float[1,3] y) { a = mine.Foo(x) y = Relu(a) }")
    free.graph[0].outputs[0].shape, free.graph[0].outputs[0].dtype = ir.Shape([1, 3]), ir.DataType.FLOAT
    set_dim(free, "x:0", "batch")
    assert shapes(free) == ["[batch,3]"]


def test_a_function_is_gone_through() -> None:
    free = model("g (float[1,3] x) => (float[1,3] y) { y = mine.F(x) } <domain: \"mine\", opset_import: [\"\": 18]> F (a) => (b) { b = Relu(a) }")  # fmt: skip  # noqa: E501
    set_dim(free, "x:0", "batch")
    assert shapes(free) == ["[batch,3]"]
    x = RNG.standard_normal((SIZE, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(free, x=x)[0], np.maximum(x, 0))


def test_the_old_constants_do_not_stay_behind() -> None:
    free = model("g (float[1,6] x) => (float[1,2,3] y) <int64[3] s = {1,2,3}> { y = Reshape(x, s) }")
    set_dim(free, "x:0", "batch")
    assert list(free.graph.initializers) == []
    assert [n.op_type for n in free.graph] == ["Constant", "Reshape"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("g (float[1,3] x) => (float[3] y) { a = Constant<value_ints=[0]>() y = Squeeze(x, a) }", "it takes this dim"),
        ("g (float[1,3] x) => (float[3] y) { a = Constant<value_int=0>() y = Gather<axis=0>(x, a) }", "takes 0 of"),
        (
            "g (float[2,3] x) => (float[2,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = Add(x, w) }",
            "'w' is made for size 2, and its rows are not alike",
        ),
        ("g (float[1,6] x, float[1,2] z) => (float[1,8] y) { y = Concat<axis=1>(x, z) }", "axis 0 of input 'z' must"),
        (
            "g (float[2,3] x) => (float[1,3] y, float[1,3] z) { s = Constant<value_ints=[1,1]>()"
            " y, z = Split<axis=0>(x, s) }",
            "it splits this dimension",
        ),
        ("g (float[1,3] x) => (float[2,3] y) { y = mine.Foo(x) }", "nothing tells what shape"),
    ],
)  # fmt: skip
def test_what_cannot_follow_is_named_and_nothing_is_changed(text: str, words: str) -> None:
    given = model(text)
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    with pytest.raises(InputError, match=words):
        set_dim(given, "x:0", "batch")
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before


def test_inputs_that_share_the_dimension_are_given_together() -> None:
    free = model("g (float[1,6] x, float[1,2] z) => (float[1,8] y) { y = Concat<axis=1>(x, z) }")
    assert set_dim(free, "x:0,z:0", "batch") == 2
    x, z = (RNG.standard_normal((SIZE, n)).astype(np.float32) for n in (6, 2))
    np.testing.assert_array_equal(run(free, x=x, z=z)[0], np.concatenate([x, z], 1))


def test_the_refusal_names_where_the_node_comes_from() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = Add(x, w) }")
    given.graph[0].metadata_props.update({"torchport.module": "head", "torchport.source": "net.py:7"})
    with pytest.raises(InputError) as caught:
        set_dim(given, "x:0", "batch")
    assert caught.value.where == "head, net.py:7"


@pytest.mark.parametrize(
    ("was", "axis", "inner", "out", "now"),
    [
        ([1, 196, 768], 0, None, [1, 196, 12, 64], (53, 196, 12, 64)),
        ([1, 12, 197, 64], 0, None, [12, 197, 64], (636, 197, 64)),
        ([12, 197, 64], 0, [12, 1, 1], [1, 12, 197, 64], (53, 12, 197, 64)),
        ([12, 1, 64], 1, None, [12, 8, 8], (12, 424, 8)),
        ([12, 8, 8], 1, [1, 8, 1], [12, 64], (636, 64)),
    ],
)
def test_a_dimension_is_found_by_its_stride(
    was: list[int], axis: int, inner: list[int] | None, out: list[int], now: tuple[int, ...]
) -> None:
    grown = [d * 53 if n == axis else d for n, d in enumerate(was)]
    assert placements(was, grown, inner or [1] * len(was), out, 1)[0].now == now
