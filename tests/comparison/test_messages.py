"""What a comparison must not claim: partners by chance, errors that looking removes, agreement about nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import torchport as tp
from torchport.comparison.result import Comparison
from torchport.engines.onnxruntime.engine import OnnxRuntime
from torchport.engines.protocol import Engine, OpenOptions, Runner
from torchport.errors import InputError, RandomModelError

Array = np.ndarray[Any, Any]
X = {"x": np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)}


def _compared(*args: Any, **options: Any) -> Comparison:
    found = tp.compare(*args, **options)
    assert isinstance(found, Comparison)
    return found


def _chain(
    blocks: int = 4,
    *,
    skip: int = 0,
    wrong: Sequence[int] = (),
    padded: bool = False,
    by_block: bool = False,
    turned: bool = False,
) -> ir.Model:
    """Products, sums and sigmoids, whose names were counted up from another number.

    Padded, there are other nodes before and after, so that nothing from the inputs or the outputs on looks the same.
    The weights' names are counted up as well, or are those of their block. Turned, the numbers between the blocks stand
    in another order.
    """
    made = np.random.default_rng(1)
    nodes, weights = [], []
    last, number = "x", skip
    if padded:
        nodes = [helper.make_node("Abs", ["x"], ["size"]), helper.make_node("Less", ["size", "x"], ["never"])]
        nodes.append(helper.make_node("Where", ["never", "size", "x"], ["same"]))
        last = "same"
    for block in range(blocks):
        product, total, out = (f"val_{number + n}" for n in (1, 2, 3))
        matrix, bias = made.normal(size=(4, 4)), made.normal(size=4)
        if block in wrong:
            matrix = matrix * 1.5
        if turned and block:
            matrix = matrix[::-1]
        if turned and block < blocks - 1:
            matrix, bias = matrix[:, ::-1], bias[::-1]
        w, b = (f"block.{block}.{c}" if by_block else f"{c}_{number}" for c in "wb")
        weights.append(numpy_helper.from_array(matrix.astype(np.float32), w))
        weights.append(numpy_helper.from_array(bias.astype(np.float32), b))
        nodes.append(helper.make_node("MatMul", [last, w], [product], f"node_MatMul_{number}"))
        nodes.append(helper.make_node("Add", [product, b], [total], f"node_Add_{number}"))
        nodes.append(helper.make_node("Sigmoid", [total], [out], f"node_Sigmoid_{number}"))
        last, number = out, number + 3
    if padded:
        nodes.append(helper.make_node("Identity", [last], ["y"]))
    else:
        nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("skip", [0, 3, 6])
def test_names_that_an_exporter_counted_up_pair_nothing(skip: int, padded: bool, by_block: bool) -> None:
    """From node to node they may fit each other and all be wrong; what the weights hold tells, whatever they are."""
    shifted = {"skip": skip, "padded": padded, "by_block": by_block}
    found = _compared(_chain(by_block=by_block), _chain(**shifted), X, layers=True)
    assert found.agrees
    assert found.first_divergence is None
    counted = {layer.state for layer in found.layers if layer.node.startswith("node_")}
    assert counted == {"agrees"}
    broken = _chain(**shifted, wrong=[2])
    first = _compared(_chain(by_block=by_block), broken, X, layers=True).first_divergence
    assert first is not None
    assert first.suspects == (f"node_MatMul_{skip + 6}",)


def test_models_that_agree_though_nothing_inside_does_have_no_first_divergence() -> None:
    found = _compared(_chain(), _chain(turned=True), X, layers=True)
    assert found.agrees
    assert found.first_divergence is None
    assert "most tensors inside differ" in str(found)


def test_two_faults_show_as_two_when_each_layer_gets_the_references_inputs() -> None:
    found = _compared(_chain(), _chain(wrong=[1, 3]), X, layers=True, isolate=True)
    introduced = [layer.node for layer in found.layers if layer.state == "introduced"]
    assert introduced == ["node_MatMul_3", "node_MatMul_9"]


def _pooled(*, quantized: bool) -> ir.Model:
    """A pool of floats, or of what they are quantized to."""
    pool = {"kernel_shape": [2, 2]}
    if quantized:
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x8"], "quantize"),
            helper.make_node("MaxPool", ["x8"], ["pooled8"], "pool8", **pool),
            helper.make_node("DequantizeLinear", ["pooled8", "s", "z"], ["pooled"], "dequantize"),
        ]
    else:
        nodes = [helper.make_node("MaxPool", ["x"], ["pooled"], "pool", **pool)]
    nodes.append(helper.make_node("Sigmoid", ["pooled"], ["y"], "last"))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, k, k]) for n, k in (("x", 4), ("y", 3))]
    numbers = {"s": np.float32(0.05), "z": np.uint8(128)}
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in numbers.items()] if quantized else []
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def test_a_quantized_tensor_is_no_partner_of_a_float() -> None:
    x = {"x": np.random.default_rng(0).normal(size=(1, 1, 4, 4)).astype(np.float32)}
    found = _compared(_pooled(quantized=False), _pooled(quantized=True), x, layers=True)
    assert found.agrees
    assert {layer.tensor: layer.state for layer in found.layers}["pooled8"] == "no partner"
    assert found.first_divergence is None


class _FusingRunner(Runner):
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.inputs, self.outputs = self._runner.inputs, self._runner.outputs

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        found = self._runner.run(feeds, only)
        return found if len(self.outputs) > 1 else [array + 0.1 for array in found]


class _Fusing(OnnxRuntime):
    """ONNX Runtime, but where nobody looks at the products it adds a tenth."""

    def open(self, model: Path | ir.Model, options: OpenOptions) -> Runner:
        return _FusingRunner(super().open(model, options))


def test_an_error_that_looking_at_it_removes_is_nobodys(register_engine: Callable[[str, type[Engine]], None]) -> None:
    register_engine("fusing", _Fusing)
    results = tp.compare(_chain(), inputs=X, engines=("onnxruntime", "fusing"), layers=True)
    assert isinstance(results, dict)
    found = results["fusing"]
    assert not found.agrees
    assert found.first_divergence is None
    assert "output 'y' differs when fusing runs the model as it is" in str(found)


def test_a_divergence_that_the_outputs_do_not_show_is_called_so() -> None:
    broken = _chain()
    small = broken.graph.initializers["w_0"]
    assert small.const_value is not None
    small.const_value = ir.tensor(small.const_value.numpy() * 1.01, name="w_0")
    text = str(_compared(_chain(), broken, X, layers=True, rtol=0.003, atol=0.003))
    assert "which the outputs do not show: node 'node_MatMul_0'" in text
    assert "the same" in text


def _random() -> ir.Model:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def test_two_random_models_that_draw_the_same_first_are_still_random() -> None:
    with pytest.raises(RandomModelError, match="answers differently each time"):
        tp.compare(_random(), _random(), X)


def test_agreement_on_nan_is_called_empty() -> None:
    found = _compared(_chain(), _chain(), {"x": np.full((2, 4), np.nan, np.float32)})
    assert "NaN throughout" in str(found)
    assert "top-1" not in str(found)


def test_a_model_with_float16_inside_is_held_to_float16() -> None:
    half = _chain()
    for node in [n for n in half.graph if n.op_type == "Sigmoid"][:1]:
        source = node.inputs[0]
        down, up = (ir.node("Cast", [source], {"to": kind}) for kind in (TensorProto.FLOAT16, TensorProto.FLOAT))
        down.outputs[0].name, up.outputs[0].name = "half", "whole"
        down.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
        up.replace_input_with(0, down.outputs[0])
        half.graph.insert_before(node, [down, up])
        node.replace_input_with(0, up.outputs[0])
    found = _compared(_chain(), half, X, precision=True)
    assert found.agrees
    assert found.precision is not None
    assert found.precision.before.ok
    assert "computes in float16" in str(found)


def test_what_is_no_file_of_numpys_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK junk")
    with pytest.raises(InputError, match="no file of numpy's"):
        tp.compare(_chain(), _chain(), data=tmp_path)


def test_a_tensor_inside_that_is_off_by_rounding_only_is_no_divergence() -> None:
    """HardSigmoid cuts off all but a small part of what it is given, rounding of the large part included."""

    def gated(bias: float) -> ir.Model:
        nodes = [
            helper.make_node("Add", ["x", "b"], ["shifted"], "add"),
            helper.make_node("HardSigmoid", ["shifted"], ["gate"], "gate", alpha=1 / 6),
            helper.make_node("Add", ["x", "gate"], ["y"], "last"),
        ]
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "y")]
        weight = numpy_helper.from_array(np.float32(bias), "b")
        graph = helper.make_graph(nodes, "g", info[:1], info[1:], [weight])
        return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))

    x = {"x": np.array([[-300.0, -3.0, 300.0, -3.0]], np.float32)}
    found = _compared(gated(0.01), gated(0.01 + 1.5e-4), x, layers=True)
    assert found.agrees
    assert {layer.tensor: layer.state for layer in found.layers}["gate"] == "differs"
    assert found.first_divergence is None


def _of(
    steps: Sequence[tuple[str, str, str]], weights: Mapping[str, Array], shape: Sequence[int], **more: Any
) -> ir.Model:
    """A model of nodes that are named after what they give: operator, what it reads, what it gives."""
    made = [(*op.rpartition("::")[::2], reads, gives) for op, reads, gives in steps]
    nodes = [
        helper.make_node(op, reads.split(), [gives], f"node_{gives}", domain=domain, **more.get(op, {}))
        for domain, op, reads, gives in made
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y")]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    domains = [helper.make_opsetid(d, 1) for d in dict.fromkeys(d for d, *_ in made) if d]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    opsets = [helper.make_opsetid("", 18), *domains]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=9))


_ERF = {"w": np.eye(4, k=1, dtype=np.float32) + 1, "root": np.float32(2**0.5), "one": np.float32(1)}
_ERF["half"] = np.float32(0.5)


def _gelu(prefix: str, *, first_half: bool, wrong: bool = False) -> ir.Model:
    """Half of ``p`` times ``1 + erf``: by the order of the two products there is another tensor between them."""
    products = (
        [("Mul", "half s", "h"), ("Mul", "p h", "g")] if first_half else [("Mul", "p s", "h"), ("Mul", "h half", "g")]
    )
    steps = [("MatMul", "x w", "p"), ("Div", "p root", "d"), ("Erf", "d", "e"), ("Add", "e one", "s"), *products]
    steps += [("MatMul", "g w", "q"), ("Sin" if wrong else "Tanh", "q", "y")]
    inner = {gives: prefix + gives for _, _, gives in steps[:-1]}
    renamed = [(op, " ".join(inner.get(r, r) for r in reads.split()), inner.get(o, o)) for op, reads, o in steps]
    return _of(renamed, _ERF, ["n", 4])


def test_two_ways_to_multiply_the_same_are_no_divergence() -> None:
    found = _compared(_gelu("a_", first_half=True), _gelu("b_", first_half=False), X, layers=True)
    assert found.agrees
    assert found.first_divergence is None
    assert found.layers[-3].tensor == "b_g"
    assert found.layers[-3].state == "agrees"


def test_two_ways_to_multiply_the_same_do_not_hide_the_wrong_node() -> None:
    found = _compared(_gelu("a_", first_half=True), _gelu("b_", first_half=False, wrong=True), X, layers=True)
    assert found.first_divergence is not None
    assert found.first_divergence.suspects == ("node_y",)


def test_a_fused_operator_is_held_against_what_it_gives_not_against_its_first_half() -> None:
    """ONNX Runtime gives the fused node the name of the convolution."""
    made = np.random.default_rng(2)
    weights = {n: made.normal(size=(3, 3, 3, 3)).astype(np.float32) for n in "vw"}
    steps = [("Conv", "x v", "c"), ("Relu", "c", "r"), ("Conv", "r w", "d"), ("Relu", "d", "s"), ("Neg", "s", "y")]
    shape = [1, 3, "h", "w"]
    apart = _of(steps, weights, shape)
    fused = [("com.microsoft::FusedConv", "x v", "r"), ("com.microsoft::FusedConv", "r w", "s"), ("Neg", "s", "y")]
    other = _of(fused, weights, shape, FusedConv={"activation": "Relu"})
    other.graph[0].name, other.graph[1].name = "node_c", "node_d"
    found = _compared(apart, other, {"x": made.normal(size=(1, 3, 8, 8)).astype(np.float32)}, layers=True)
    assert found.first_divergence is None
    assert [(x.tensor, x.partner, x.state) for x in found.layers] == [(n, f"'{n}'", "agrees") for n in "rsy"]


def test_a_tensor_in_blocks_of_channels_has_no_partner() -> None:
    """ONNX Runtime's own convolutions keep channels in blocks: the same shape, the numbers in another order."""
    feeds = {"x": np.random.default_rng(4).normal(size=(1, 32, 2, 3)).astype(np.float32)}
    plain = _of([("Sin", "x", "s"), ("Relu", "s", "r"), ("Neg", "r", "y")], {}, [1, 32, 2, 3])
    blocks = "com.microsoft.nchwc"
    steps = [("Sin", "x", "s"), (f"{blocks}::ReorderInput", "s", "b"), ("Relu", "b", "rb")]
    steps += [(f"{blocks}::ReorderOutput", "rb", "o"), ("Neg", "o", "y")]
    found = _compared(plain, _of(steps, {}, [1, 32, 2, 3], ReorderOutput={"channels": 32}), feeds, layers=True)
    assert found.first_divergence is None
    assert {x.tensor: x.state for x in found.layers if x.tensor in ("b", "rb")} == {
        "b": "no partner",
        "rb": "no partner",
    }
