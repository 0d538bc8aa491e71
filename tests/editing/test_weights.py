"""Weights become inputs, inputs become weights, and weights get other numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import save_file
from small_models import answers, model, refused

from torchport.editing.weights import set_weights, to_constant, to_input
from torchport.errors import FileError, InputError

ONES = np.ones(3, np.float32)


# --- to_input ---------------------------------------------------------------------------------------------------------

ADD = "g (float[3] x) => (float[3] y) <float[3] w = {1,2,3}> { s = Add(x, w)  y = Mul(s, w) }"


def test_a_weight_becomes_an_input_of_its_type_and_shape() -> None:
    given = model(ADD)
    assert to_input(given, "w") == 1
    assert [(v.name, v.dtype, str(v.shape)) for v in given.graph.inputs][1] == ("w", ir.DataType.FLOAT, "[3]")
    assert not given.graph.initializers
    assert answers(given, x=ONES, w=2 * ONES)[0].tolist() == [6, 6, 6]


def test_what_a_constant_node_gives_becomes_an_input() -> None:
    given = model("g (float[3] x) => (float[3] y, float k) { k = Constant<value_float=2.0>()  y = Mul(x, k) }")
    to_input(given, "k")
    assert [n.op_type for n in given.graph] == ["Mul"]
    y, k = answers(given, x=ONES, k=np.array(5, np.float32))
    assert y.tolist() == [5, 5, 5]
    assert k == 5


def test_a_default_value_is_dropped() -> None:
    given = model(ADD)
    given.graph.inputs.append(given.graph.initializers["w"])
    to_input(given, "w")
    assert [v.name for v in given.graph.inputs] == ["x", "w"]
    assert answers(given, x=ONES, w=2 * ONES)[0].tolist() == [6, 6, 6]


BRANCH = """g (bool c, float[3] x) => (float[3] y) {
    y = If(c) <
        then_branch = t () => (float[3] a) <float[3] w = {1,2,3}> {
            k = Constant<value_float=3.0>()  p = Mul(w, k)  a = Add(x, p)
        },
        else_branch = e () => (float[3] b) <float[3] r = {1,2,3}> { b = Identity(r) }>
}"""


@pytest.mark.parametrize(
    ("name", "value", "wanted"), [("w", 2 * ONES, [7, 7, 7]), ("k", np.array(10, np.float32), [11, 21, 31])]
)
def test_a_constant_inside_a_branch_comes_from_outside(name: str, value: Any, wanted: list[float]) -> None:
    given = model(BRANCH)
    to_input(given, name)
    assert answers(given, c=np.array(True), x=ONES, **{name: value})[0].tolist() == wanted


def test_what_is_no_constant_cannot_become_an_input() -> None:
    given = model(
        "g (float[3] x) => (float[3] y) <float[3] weight = {1,2,3}> { s = Add(x, weight)  y = my.F(s) }"
        '<domain: "my", opset_import: ["": 17]> F (a) => (b) { k = Constant<value_float=2.0>()  b = Mul(a, k) }'
    )
    refused(given, "is no constant: the Add that makes 's' computes it", to_input, "s")
    refused(given, "it is an input already", to_input, "x")
    refused(given, "inside the function 'my::F'", to_input, "k")
    assert "did you mean weight" in str(refused(given, "no weight 'weigth'", to_input, "weigth"))


# --- to_constant ------------------------------------------------------------------------------------------------------


def test_an_input_becomes_a_weight(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", 2 * ONES)
    for value in (2 * ONES, [2, 2, 2], 2, 2.0, str(tmp_path / "w.npy"), tmp_path / "w.npy"):
        given = model("g (float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }")
        assert to_constant(given, "w", value) == 1
        assert [v.name for v in given.graph.inputs] == ["x"]
        assert answers(given, x=ONES)[0].tolist() == [3, 3, 3]


def test_a_dimension_that_becomes_known_is_known_everywhere() -> None:
    given = model(
        "g (bool c, float[n,3] x, float[n,1] m) => (float[p,3] y) <float[n,3] s> { s = Mul(x, m)"
        "d = Concat<axis=0>(s, s)"
        "y = If(c) <then_branch = t () => (float[q,3] a) { a = Neg(d) },"
        "           else_branch = e () => (float[r,3] b) { b = Relu(d) }> }"
    )
    inner = [v for g in given.graphs() for v in g.outputs]
    for value in inner:
        value.shape = ir.Shape(["2*n", 3])
    to_constant(given, "m", [[1], [10]])
    assert str(given.graph.inputs[1].shape) == "[2,3]"
    assert [str(v.shape) for v in inner] == ["[4,3]"] * 3
    x = np.ones((2, 3), np.float32)
    assert answers(given, c=np.array(True), x=x)[0].tolist() == [[-1] * 3, [-10] * 3] * 2


def test_a_shape_that_the_value_decides_is_known() -> None:
    given = model("g (float[2,3] x, int64[k] s) => (float[p,q] y) { y = Reshape(x, s) }")
    to_constant(given, "s", [3, 2])
    assert str(given.graph.outputs[0].shape) == "[3,2]"
    assert answers(given, x=np.ones((2, 3), np.float32))[0].shape == (3, 2)


def test_a_default_value_is_replaced_and_old_versions_are_raised() -> None:
    given = model(ADD)
    given.ir_version = 3
    given.graph.inputs.append(given.graph.initializers["w"])
    to_constant(given, "w", 5)
    assert [v.name for v in given.graph.inputs] == ["x"]
    assert answers(given, x=ONES)[0].tolist() == [30, 30, 30]


def test_an_input_that_is_an_output_as_well() -> None:
    given = model("g (float[3] x, float[3] w) => (float[3] y, float[3] w) { y = Add(x, w) }")
    to_constant(given, "w", 2)
    assert [found.tolist() for found in answers(given, x=ONES)] == [[3, 3, 3], [2, 2, 2]]


def test_texts_and_bfloat16_become_weights() -> None:
    given = model("g (string[2] s, bfloat16[2] h) => (string[2] t, float[2] y) { t = Identity(s)  y = Cast<to=1>(h) }")
    to_constant(given, "s", ["a", "b"])
    to_constant(given, "h", [0.5, 2])
    t, y = answers(given)
    assert t.tolist() == ["a", "b"]
    assert y.tolist() == [0.5, 2]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("q", 1, "no input 'q'"),
        ("w", [1, 2], "is \\[3\\], what is given is \\[2\\]"),
        ("w", np.ones(3), "is float32, what is given is float64"),
        ("w", True, "is float32, and cannot be True"),
        ("w", "three", "'three' is no value"),
        ("w", [[1], [1, 2]], "not even"),
        ("i", 0.5, "is uint8, and cannot be 0.5"),
        ("i", 256, "is uint8, and cannot be 256"),
        ("m", 1, "is \\[n,n\\], what is given is \\[\\]"),
        ("m", [[1, 2]], "is \\[n,n\\], what is given is \\[1,2\\]"),
        ("m", [[1, 2], [3, 4]], "cannot be that: "),  # what uses it wants three columns
        ("seq", [1], "is no tensor"),
    ],
)
def test_what_does_not_fit_an_input_is_refused_and_changes_nothing(name: str, value: Any, words: str) -> None:
    given = model(
        "g (float[3] x, float[3] w, uint8 i, float[n,n] m, seq(float[3]) seq) => (float[n,3] y, uint8 j) {"
        "s = Add(x, w)  y = Mul(m, s)  j = Identity(i) }"
    )
    refused(given, words, to_constant, name, value)


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    given = model("g (float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }")
    with pytest.raises(InputError, match=r"w\.npy' cannot be read: it is missing"):
        to_constant(given, "w", tmp_path / "w.npy")
    (tmp_path / "w.npy").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="cannot be read: it is no file of numpy's"):
        to_constant(given, "w", tmp_path / "w.npy")


# --- set_weights ------------------------------------------------------------------------------------------------------

TWO = """g (float[3] x) => (float[3] y) <float[3] w = {1,1,1}, bfloat16[3] half = {1,1,1}> {
    h = Cast<to=1>(half)  s = Mul(x, w)  y = Add(s, h)
}"""
W = np.array([2, 3, 4], np.float32)
HALF = np.array([0.5, 0.25, 8], ml_dtypes.bfloat16)


@pytest.mark.parametrize("kind", ["safetensors", "npz", "arrays", "state dict"])
def test_weights_come_from_files_arrays_and_state_dicts(tmp_path: Path, kind: str) -> None:
    given, source = model(TWO), Path(tmp_path / f"weights.{kind}")
    tensors: Any = {"w": W, "half": HALF}
    if kind == "safetensors":
        save_file(tensors, source)
    elif kind == "npz":
        np.savez(source, **tensors)
    elif kind == "state dict":
        import torch

        tensors = {"w": torch.tensor([2.0, 3, 4], requires_grad=True), "half": torch.tensor([0.5, 0.25, 8]).bfloat16()}
    assert set_weights(given, tensors if kind in ("arrays", "state dict") else source) == 2
    assert answers(given, x=ONES)[0].tolist() == [2.5, 3.25, 12]


def test_a_safetensors_is_mapped_not_read(tmp_path: Path) -> None:
    save_file({"w": W, "half": HALF}, tmp_path / "w.safetensors")
    given = model(TWO)
    set_weights(given, str(tmp_path / "w.safetensors"))
    base: Any = given.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]
    while not isinstance(base, np.memmap) or isinstance(base.base, np.ndarray):
        base = base.base
    assert str(base.filename) == str(tmp_path / "w.safetensors")


def test_weights_that_the_source_lacks_stay_and_names_are_translated() -> None:
    given = model(TWO)
    set_weights(given, {"half": HALF})
    assert set_weights(given, {"net.w": W, "net.bn.num_batches_tracked": np.array(7)}, names={"net.*": "*"}) == 1
    assert answers(given, x=ONES)[0].tolist() == [2.5, 3.25, 12]


def test_weights_inside_branches_are_set() -> None:
    given = model(BRANCH)
    assert set_weights(given, {"w": W, "r": -W}) == 2
    assert answers(given, c=np.array(True), x=ONES)[0].tolist() == [7, 10, 13]
    assert answers(given, c=np.array(False), x=ONES)[0].tolist() == [-2, -3, -4]


@pytest.mark.parametrize(
    ("source", "names", "words"),
    [
        ({"w": W, "hal": HALF}, {}, "has no weights 'hal'[\\s\\S]*did you mean half"),
        ({"num_batches_tracked": np.array(1)}, {}, "none of the model's weights"),
        ({}, {}, "none of the model's weights"),
        ({"w": W[:2]}, {}, "is \\[3\\], 'w' of the source is \\[2\\]"),
        ({"w": W.astype(np.float16)}, {}, "is float32, what is given is float16"),
        ({"a": W}, {"b": "w"}, "source has no tensor 'b'"),
        ({"a": W, "w": W}, {"a": "w"}, "two tensors of the source are for one weight"),
        ("weights.h5", {}, "not from 'weights.h5'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(source: Any, names: Any, words: str) -> None:
    refused(model(TWO), words, set_weights, source, names=names)


@pytest.mark.parametrize("name", ["w.safetensors", "w.npz"])
def test_files_of_weights_that_are_missing_or_broken_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match="missing"):
        set_weights(model(TWO), tmp_path / name)
    (tmp_path / name).write_bytes(b"\xff" * 100)
    with pytest.raises(FileError, match="cannot be read"):
        set_weights(model(TWO), tmp_path / name)
