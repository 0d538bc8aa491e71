"""Which layers need more precision: exactly the one that was spoiled."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from torchport.comparison.mixed_precision import Precision, needs_precision
from torchport.comparison.restore_layers import Restorer
from torchport.errors import InputError
from torchport.numerics.tolerance import Tolerance

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
HALF_LIMIT = Tolerance(1e-2, 1e-2)
INT8_LIMIT = Tolerance(0.0, 0.08)
RNG = np.random.default_rng(0)
X = {"x": RNG.normal(size=(4, 16)).astype(np.float32)}


def made(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    info = [helper.make_tensor_value_info(name, FLOAT, [4, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def dense(count: int = 12, factor: dict[int, float] | None = None) -> onnx.ModelProto:
    """`count` times a matrix product and a Tanh; a factor blows a product up and the next Mul takes it back."""
    rng, nodes, weights, here = np.random.default_rng(1), [], {}, "x"
    for i in range(count):
        weights[f"w{i}"] = rng.normal(0, 0.25, (16, 16)).astype(np.float32) * (factor or {}).get(i, 1.0)
        nodes.append(helper.make_node("MatMul", [here, f"w{i}"], [f"m{i}"], name=f"fc{i}"))
        before = f"m{i}"
        if factor and i in factor:
            weights[f"s{i}"] = np.float32(1 / factor[i])
            nodes.append(helper.make_node("Mul", [before, f"s{i}"], [f"d{i}"], name=f"scale{i}"))
            before = f"d{i}"
        here = "y" if i == count - 1 else f"a{i}"
        nodes.append(helper.make_node("Tanh", [before], [here], name=f"tanh{i}"))
    return made(nodes, {k: np.asarray(v, np.float32) for k, v in weights.items()})


def half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """In float16, between casts at both ends, as converters do it: names stay."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    with np.errstate(over="ignore"):
        tensors = [numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name)
                   for t in copy.graph.initializer]  # fmt: skip
    for node in copy.graph.node:
        node.input[:] = ["x_half" if n == "x" else n for n in node.input]
        node.output[:] = ["y_half" if n == "y" else n for n in node.output]
    inner = list(copy.graph.node)
    first = helper.make_node("Cast", ["x"], ["x_half"], name="down", to=HALF)
    last = helper.make_node("Cast", ["y_half"], ["y"], name="up", to=FLOAT)
    for field, content in (("node", [first, *inner, last]), ("initializer", tensors)):
        copy.graph.ClearField(field)
        getattr(copy.graph, field).extend(content)
    return copy


def precision(good: onnx.ModelProto, low: onnx.ModelProto, limit: Tolerance, **rest: Any) -> Precision:
    return needs_precision(ir.from_proto(good), ir.from_proto(low), X, tolerance=limit, **rest)


def names(found: Precision) -> list[str]:
    return [layer.name for layer in found.layers]


def test_a_model_within_the_tolerance_needs_nothing() -> None:
    found = precision(dense(), half(dense()), HALF_LIMIT)
    assert (found.layers, found.enough, found.tried) == ((), True, 0)
    assert found.before == found.after
    assert 0 < found.before.max_abs < 1e-2


def norm_in(count: int, place: int) -> onnx.ModelProto:
    """A chain with one norm: what it takes and gives is small enough for float16, the squares inside are not."""
    proto = dense(count)
    nodes = list(proto.graph.node)
    at = next(i for i, n in enumerate(nodes) if n.name == f"tanh{place}")
    out = nodes[at].output[0]
    nodes[at].output[0] = "big_in"
    more = [
        helper.make_node("Mul", ["big_in", "up"], ["big"], name="enlarge"),
        helper.make_node("ReduceL2", ["big"], ["length"], name="length", axes=None, keepdims=1),
        helper.make_node("Div", ["big", "length"], [out], name="normed"),
    ]
    more[1].ClearField("attribute")
    more[1].input.append("axes")
    axes = numpy_helper.from_array(np.array([1]), "axes")
    up = numpy_helper.from_array(np.float32(2000), "up")
    proto.graph.ClearField("node")
    proto.graph.node.extend([*nodes[: at + 1], *more, *nodes[at + 1 :]])
    proto.graph.initializer.extend([axes, up])
    return proto


def half_but_axes(proto: onnx.ModelProto) -> onnx.ModelProto:
    low = half(proto)
    for tensor in low.graph.initializer:
        if tensor.name == "axes":
            tensor.CopyFrom(numpy_helper.from_array(np.array([1]), "axes"))
    return low


def test_the_one_layer_that_overflows_inside_is_found() -> None:
    good = norm_in(8, 4)
    found = precision(good, half_but_axes(good), HALF_LIMIT, engine="reference")
    assert not np.isfinite(found.before.max_abs) or found.before.max_abs > 0.1
    assert names(found) == ["length"]
    assert found.enough
    assert found.after.max_abs < 1e-2
    assert found.ranking[0].layer.name == "length"


@pytest.mark.parametrize(("engine", "kept"), [("reference", ["fc6", "scale6"]), ("onnxruntime", ["fc6"])])
def test_a_product_too_large_for_float16_is_kept_in_float_with_what_has_to_read_it(
    engine: str, kept: list[str]
) -> None:
    """ONNX Runtime on a CPU computes in float32 between float16 nodes: there, the product alone is enough."""
    good = dense(10, {6: 1e6})
    low = half(good)
    weight = next(t for t in low.graph.initializer if t.name == "w6")
    assert np.isinf(numpy_helper.to_array(weight)).any()
    found = precision(good, low, HALF_LIMIT, engine=engine)
    assert names(found) == kept
    assert found.enough
    assert found.tried <= 6


def test_a_module_goes_back_as_a_whole() -> None:
    good = ir.from_proto(dense(10, {6: 1e6}))
    for node in good.graph:
        number = "".join(c for c in str(node.name) if c.isdigit())
        node.metadata_props["torchport.module"] = f"layers.{number}"
    low = ir.from_proto(half(ir.to_proto(good)))
    found = needs_precision(good, low, X, tolerance=HALF_LIMIT)
    assert names(found) == ["layers.6"]
    assert found.layers[0].nodes == ("fc6", "scale6", "tanh6")
    assert found.enough


def test_the_mixed_model_has_the_original_weights_and_is_valid() -> None:
    good = ir.from_proto(dense(4))
    own = good.graph.initializers["w2"].const_value = ir.tensor(np.ones((16, 16), np.float32), name="w2")
    restorer = Restorer(good, ir.from_proto(half(dense(4))))
    layer = next(x for x in restorer.layers if x.name == "fc2")
    mixed = restorer.mixed([layer])
    onnx.checker.check_model(ir.to_proto(mixed), full_check=True)
    assert np.shares_memory(mixed.graph.initializers["w2_in_float"].const_value.numpy(), own.numpy())
    assert own.name == "w2"
    product = next(n for n in mixed.graph if n.name == "fc2_in_float")
    assert [v.dtype for v in product.inputs] == [ir.DataType.FLOAT] * 2
    assert "fc2" not in [n.name for n in mixed.graph]
    assert [v.name for v in mixed.graph.outputs] == ["y"]


def test_all_layers_put_back_give_the_original_numbers() -> None:
    good = dense(6)
    restorer = Restorer(ir.from_proto(good), ir.from_proto(half(good)))
    assert len(restorer.layers) == 12
    found = needs_precision(ir.from_proto(good), restorer.mixed(restorer.layers), X, tolerance=Tolerance(1e-6, 1e-6))
    assert (found.tried, found.before.max_abs) == (0, 0.0)


def quantized(proto: onnx.ModelProto, folder: Path, form: str) -> onnx.ModelProto:
    from onnxruntime import quantization

    source, target = folder / "f.onnx", folder / "q.onnx"
    onnx.save(proto, source)
    samples = iter([dict(X) for _ in range(2)])

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(samples, None)

    logging.disable(logging.CRITICAL)  # it warns that the model was not preprocessed
    try:
        quantization.quantize_static(
            source, target, Reader(), quant_format=getattr(quantization.QuantFormat, form), reduce_range=True
        )
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(target)


def spoiled(proto: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    """One scale, wrong by a factor."""
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.float32(numpy_helper.to_array(tensor) * factor), name))
    return proto


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("scale", ["w5_scale", "m5_scale"])
def test_the_one_badly_scaled_layer_of_an_int8_model_is_found(tmp_path: Path, form: str, scale: str) -> None:
    good = dense(10)
    fine = quantized(good, tmp_path, form)
    assert precision(good, fine, INT8_LIMIT).layers == ()
    found = precision(good, spoiled(fine, scale, 0.1), INT8_LIMIT)
    assert names(found) == ["fc5"]
    assert found.enough
    assert not found.before.ok
    assert found.after.max_abs < found.before.max_abs
    assert found.unjudged == {}


def test_a_relu_that_quantizing_took_in_goes_back_with_its_layer(tmp_path: Path) -> None:
    good = dense(8)
    for node in good.graph.node:
        node.op_type = "Relu" if node.op_type == "Tanh" and node.name != "tanh7" else node.op_type
    conv = as_convolutions(good)
    low = quantized(conv, tmp_path, "QDQ")
    assert sum(n.op_type == "Relu" for n in low.graph.node) == 0
    limit = Tolerance(0.0, 0.2)
    assert precision(conv, low, limit).layers == ()
    found = precision(conv, spoiled(low, "w3_scale", 0.1), limit)
    assert found.enough
    assert [layer.nodes for layer in found.layers] == [("fc3", "tanh3")]


def as_convolutions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The products as 1x1 convolutions of [4,16,1,1]."""
    weights = {t.name: numpy_helper.to_array(t).T.reshape(16, 16, 1, 1).copy() for t in proto.graph.initializer}
    for node in proto.graph.node:
        node.op_type = "Conv" if node.op_type == "MatMul" else node.op_type
        node.input[:] = ["x4" if n == "x" else n for n in node.input]
        node.output[:] = ["y4" if n == "y" else n for n in node.output]
    first = helper.make_node("Reshape", ["x", "to4"], ["x4"], name="first")
    last = helper.make_node("Reshape", ["y4", "to2"], ["y"], name="last")
    shapes = {"to4": np.array([4, 16, 1, 1]), "to2": np.array([4, 16])}
    return made([first, *proto.graph.node, last], {**weights, **shapes})


def test_dynamic_quantization_is_put_back_too(tmp_path: Path) -> None:
    from onnxruntime import quantization

    good = dense(8)
    onnx.save(good, tmp_path / "f.onnx")
    logging.disable(logging.CRITICAL)
    try:
        quantization.quantize_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx", reduce_range=True)
    finally:
        logging.disable(logging.NOTSET)
    low = onnx.load(tmp_path / "q.onnx")
    assert sum(n.op_type == "MatMulInteger" for n in low.graph.node) == 8
    assert precision(good, low, INT8_LIMIT).layers == ()
    assert names(precision(good, spoiled(low, "w3_scale", 3.0), INT8_LIMIT)) == ["fc3"]


def test_two_bad_layers_are_both_found_and_no_other(tmp_path: Path) -> None:
    good = dense(12)
    low = spoiled(spoiled(quantized(good, tmp_path, "QDQ"), "w2_scale", 0.1), "w9_scale", 0.1)
    found = precision(good, low, Tolerance(0.0, 0.1))
    assert sorted(names(found)) == ["fc2", "fc9"]


def test_a_fault_that_precision_does_not_mend_is_said() -> None:
    good, low = dense(4), half(dense(4))
    for proto, op in ((good, "Neg"), (low, "Abs")):
        proto.graph.output.add().CopyFrom(helper.make_tensor_value_info("z", FLOAT, [4, 16]))
        proto.graph.node.append(helper.make_node("If", ["yes"], ["z"], name="if", **branches(op)))
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    found = precision(good, low, HALF_LIMIT)
    assert (found.layers, found.enough, found.before.name) == ((), False, "z")
    assert found.after.name == "z"
    assert found.unjudged == {"if": "it has branches or a loop"}


def branches(op: str) -> dict[str, onnx.GraphProto]:
    """Both branches of an If: the operator, of the outer x."""
    give = helper.make_tensor_value_info("inner", FLOAT, [4, 16])
    body = helper.make_graph([helper.make_node(op, ["x"], ["inner"])], "b", [], [give])
    return {"then_branch": body, "else_branch": body}


def test_no_samples_and_other_outputs_are_refused() -> None:
    model = ir.from_proto(dense(2))
    with pytest.raises(InputError, match="no samples"):
        needs_precision(model, model, [], tolerance=HALF_LIMIT)
    other = dense(2)
    other.graph.output[0].name = other.graph.node[-1].output[0] = "z"
    with pytest.raises(InputError, match="same outputs"):
        needs_precision(model, ir.from_proto(other), X, tolerance=HALF_LIMIT)


def test_the_worst_of_several_samples_decides() -> None:
    good = norm_in(6, 3)
    small, low = {"x": X["x"] * np.float32(1e-2)}, half_but_axes(good)
    models = ir.from_proto(good), ir.from_proto(low)
    assert needs_precision(*models, small, tolerance=HALF_LIMIT, engine="reference").layers == ()
    both = needs_precision(*models, [small, X, small], tolerance=HALF_LIMIT, engine="reference")
    assert names(both) == ["length"]
    assert both.enough


def called_otherwise(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Every node and tensor inside under another name, as another exporter has them; weights keep theirs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    weights = {t.name for t in copy.graph.initializer}
    inner = {o: f"/{o}" for n in copy.graph.node for o in n.output if o != "y"}
    assert not weights & set(inner)
    for node in copy.graph.node:
        node.name = f"/{node.name}"
        node.input[:] = [inner.get(i, i) for i in node.input]
        node.output[:] = [inner.get(o, o) for o in node.output]
    return copy


def test_layers_are_told_apart_in_a_file_of_another_exporter() -> None:
    good = dense(10, {6: 1e6})
    found = precision(good, called_otherwise(half(good)), HALF_LIMIT)
    assert (names(found), found.enough) == (["fc6"], True)


def test_what_is_most_of_the_model_is_no_layer() -> None:
    """Nothing inside has a partner: all operators are others."""
    good = dense(10, {6: 1e6})
    low = called_otherwise(half(good))
    for node in low.graph.node:
        node.op_type = {"MatMul": "Gemm", "Tanh": "Sin", "Mul": "Sub"}.get(node.op_type, node.op_type)
    found = precision(good, low, HALF_LIMIT)
    assert (found.layers, found.enough, found.ranking) == ((), False, ())
    assert found.unjudged == {
        "fc0 … tanh9": "it is most of the model: hardly a tensor inside was found in the other model"
    }


def test_a_module_that_is_most_of_the_model_is_divided() -> None:
    good = ir.from_proto(dense(10, {6: 1e6}))
    for node in good.graph:
        node.metadata_props["torchport.module"] = "net"
    found = needs_precision(good, ir.from_proto(half(ir.to_proto(good))), X, tolerance=HALF_LIMIT)
    assert found.layers[0].nodes == ("fc6",)
