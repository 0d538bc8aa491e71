"""tp.compare: what can stand on either side, what it is fed with, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import torchport as tp
from torchport.comparing.comparison import Comparison
from torchport.comparing.samples import read_samples
from torchport.engines import base
from torchport.errors import (
    EngineMissingError,
    FileError,
    ForwardError,
    InputError,
    OptionError,
    RandomModelError,
    SaveError,
)

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def image() -> dict[str, Array]:
    return {"x": np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)}


@pytest.fixture(scope="module")
def wrong(exported: tp.Exported) -> ir.Model:
    """The last weight of SmallNet half as large again."""
    model = exported.model.clone()
    weight = model.graph.initializers["fc.weight"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * 1.5, name="fc.weight")
    return model


def _compared(*args: Any, **options: Any) -> Comparison:
    found = tp.compare(*args, **options)
    assert isinstance(found, Comparison)
    return found


def _told(found: Comparison) -> str:
    return "\n".join(map(str, found.findings))


def test_a_model_agrees_with_its_own_export(small_net: nn.Module, onnx_file: Path, image: dict[str, Array]) -> None:
    found = _compared(small_net, onnx_file, image, layers=True)
    assert found.agrees
    assert [f.name for f in found.outputs] == ["logits", "pooled"]
    assert max(f.max_abs for f in found.outputs) < 1e-5
    assert found.outputs[0].top1 == 1.0
    assert sum(found.outputs[0].histogram.counts) + found.outputs[0].histogram.exact == 10
    assert "the same: all 2 outputs are within tolerance" in str(found)


def test_the_node_with_the_wrong_weight_is_named_between_onnx_models(
    onnx_file: Path, wrong: ir.Model, image: dict[str, Array], tmp_path: Path
) -> None:
    found = _compared(onnx_file, wrong, image, layers=True, save=tmp_path / "saved")
    first = found.first_divergence
    assert not found.agrees
    assert first is not None
    assert first.origin.module == "fc"
    assert len(first.suspects) == 1
    assert found.modules["fc"] > 0.1
    model, data = first.files
    (sample,) = read_samples(data)
    alone = base.open_session(model)
    answer = alone.run({i.name: sample.arrays[i.name] for i in alone.inputs})
    expected = sample.arrays[f"expected.{first.tensor}"]
    assert first.figures is not None
    assert np.abs(answer[first.tensor] - expected).max() == pytest.approx(first.figures.max_abs, rel=1e-5)


def test_the_worst_sample_is_saved_and_reproduces(
    onnx_file: Path, wrong: ir.Model, image: dict[str, Array], tmp_path: Path
) -> None:
    data = [{"x": image["x"] * scale} for scale in (0.1, 10, 1)]
    found = _compared(onnx_file, wrong, data=data, save=tmp_path)
    again = _compared(onnx_file, wrong, data=found.worst)
    assert found.samples == 3
    assert again.samples == 1
    assert again.outputs[0].max_abs == pytest.approx(found.outputs[0].max_abs)


def test_samples_may_be_a_generator_of_torch_tensors_and_metrics_your_own(
    small_net: nn.Module, onnx_file: Path
) -> None:
    data = ({"x": torch.full((n, 3, 8, 8), 0.5)} for n in (1, 2, 3))
    found = _compared(small_net, onnx_file, data=data, metrics={"rows": lambda a, b: len(a)})
    assert found.samples == 3
    assert found.outputs[0].own == {"rows": 2.0}
    assert "top-1 100.0%, rows 2)" in str(found)


def test_a_float16_model_is_compared_with_its_original_on_the_originals_inputs(
    onnx_file: Path, image: dict[str, Array]
) -> None:
    half = _half(onnx_file)
    found = _compared(onnx_file, half, image, layers=True, precision=True)
    assert found.agrees
    assert 1e-7 < found.outputs[0].max_abs < 1e-2
    assert found.precision is not None
    assert found.precision.layers == ()


def test_a_pytorch_model_is_exported_to_tell_which_layers_need_precision(
    small_net: nn.Module, onnx_file: Path, image: dict[str, Array]
) -> None:
    half = _half(onnx_file)
    weight = half.graph.initializers["fc.weight"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(np.round(weight.const_value.numpy() * 4) / np.float16(4), name=weight.name)
    data = [image, {"x": np.concatenate([image["x"]] * 2)}]
    one, other = (_compared(a, half, data=data, precision=True).precision for a in (onnx_file, small_net))
    assert one is not None
    assert one.enough
    assert [layer.nodes for layer in one.layers] == [layer.nodes for layer in other.layers]  # type: ignore[union-attr]


def _chain(dtype: int) -> ir.Model:
    """x * 300 * 300 / 10000: in float16 the second product is too large; ONNX Runtime would widen it on the CPU."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    weights = {"a": 300.0, "b": 300.0, "c": 1e-4}
    nodes, here = [helper.make_node("Cast", ["x"], ["start"], name="n_start", to=dtype)], "start"
    for name in weights:
        nodes.append(helper.make_node("Mul", [here, f"w_{name}"], [name], name=f"n_{name}"))
        here = name
    nodes.append(helper.make_node("Cast", [here], ["y"], name="n_y", to=TensorProto.FLOAT))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("x", "y")]
    inits = [numpy_helper.from_array(np.array([w], kind), f"w_{n}") for n, w in weights.items()]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:], inits)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def test_the_layer_in_which_a_float16_model_overflows_is_found_and_needs_float32() -> None:
    x = {"x": np.linspace(0.9, 1.1, 6, dtype=np.float32).reshape(2, 3)}
    found = _compared(
        _chain(TensorProto.FLOAT), _chain(TensorProto.FLOAT16), x, engines=("reference",), layers=True, precision=True
    )
    assert found.outputs[0].inf_candidate == 6
    assert found.first_divergence is not None
    assert found.first_divergence.suspects == ("n_b",)
    assert found.precision is not None
    assert found.precision.enough
    assert "n_b" in {name for layer in found.precision.layers for name in layer.nodes}
    assert "in float32" in str(found)


def _half(path: Path) -> ir.Model:
    import onnx

    model = ir.from_proto(onnx.load(path))
    for value in model.graph.initializers.values():
        if value.const_value is not None and value.dtype == ir.DataType.FLOAT:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)
            value.dtype = ir.DataType.FLOAT16
    for value in [*model.graph.inputs, *(o for n in model.graph for o in n.outputs)]:
        if value.dtype == ir.DataType.FLOAT:
            value.dtype = ir.DataType.FLOAT16
    return model


# Saved tensors


def test_saved_tensors_stand_on_either_side(
    small_net: nn.Module, onnx_file: Path, image: dict[str, Array], tmp_path: Path
) -> None:
    answers = base.open_session(onnx_file).run(image)
    np.savez(tmp_path / "there.npz", **image, **answers)
    np.savez(tmp_path / "off.npz", **image, **{n: a + 1 for n, a in answers.items()})
    for a, b in ((tmp_path / "there.npz", onnx_file), (onnx_file, tmp_path / "there.npz")):
        assert _compared(a, b).outputs[0].max_abs == 0
    assert _compared(tmp_path / "there.npz", small_net).agrees
    off = _compared(tmp_path / "there.npz", tmp_path / "off.npz")
    assert {f.name: f.ok for f in off.outputs} == {"x": True, "logits": False, "pooled": False}
    assert off.outputs[1].max_abs == pytest.approx(1)


def test_saved_tensors_without_their_inputs_are_not_compared_with_made_up_ones(
    onnx_file: Path, image: dict[str, Array], tmp_path: Path
) -> None:
    np.savez(tmp_path / "bare.npz", **base.open_session(onnx_file).run(image))
    with pytest.raises(InputError, match="does not hold the input 'x'"):
        tp.compare(tmp_path / "bare.npz", onnx_file)
    found = _compared(tmp_path / "bare.npz", onnx_file, image)
    assert found.agrees
    assert found.findings == ()


def test_a_recorded_call_is_compared_with_its_recorded_answer(
    small_net: nn.Module, onnx_file: Path, image: dict[str, Array], tmp_path: Path
) -> None:
    with tp.record(small_net, tmp_path):
        small_net(torch.from_numpy(image["x"]), scale=2.0)
    call = next(tmp_path.glob("*.npz"))
    assert _compared(call, small_net).agrees  # the argument that is no tensor is given again
    found = _compared(call, onnx_file)  # exported with a scale of 1
    assert {f.name: f.ok for f in found.outputs} == {"logits": False, "pooled": True}


def test_other_inputs_than_those_saved_are_told_with_the_likely_cause(
    onnx_file: Path, image: dict[str, Array], tmp_path: Path
) -> None:
    np.savez(tmp_path / "there.npz", **image, **base.open_session(onnx_file).run(image))
    found = _compared(tmp_path / "there.npz", onnx_file, {"x": image["x"] * 255})
    assert not found.agrees
    assert "input 'x' differs by a factor of 255" in _told(found)


def test_two_recordings_of_the_same_calls_say_where_their_inputs_differ(
    small_net: nn.Module, onnx_file: Path, image: dict[str, Array]
) -> None:
    ours = [image, {"x": image["x"] + 1}]
    swapped = [{"x": sample["x"][:, ::-1]} for sample in ours]
    assert _compared(small_net, onnx_file, data=ours, data_b=ours).findings == ()
    found = _compared(small_net, onnx_file, data=ours, data_b=swapped)
    assert found.agrees
    assert len(found.findings) == 1
    assert "the inputs differ (sample 0): input 'x' has its channels in the other order" in _told(found)
    assert "the other side has 1 samples only" in _told(_compared(small_net, onnx_file, data=ours, data_b=ours[:1]))
    assert "more than these 1 samples" in _told(_compared(small_net, onnx_file, data=ours[:1], data_b=ours))


# Engines


class _Failing:
    """ONNX Runtime that gives up at its second run."""

    def __init__(self, model: Any) -> None:
        self._runner = base.engines()["onnxruntime"].load()(model)
        self.inputs, self.outputs = self._runner.inputs, self._runner.outputs
        self._runs = 0

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        self._runs += 1
        if self._runs > 1:
            raise RuntimeError("out of beans")
        found: Sequence[Array] = self._runner.run(feeds, only)
        return found


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**base.engines(), "failing": SimpleNamespace(load=lambda: _Failing)}
    monkeypatch.setattr(base, "engines", lambda: known)


@pytest.mark.usefixtures("failing")
def test_an_engine_that_fails_midway_is_reported_and_the_others_go_on(onnx_file: Path, image: dict[str, Array]) -> None:
    names = ("onnxruntime", "failing", "nowhere", "reference")
    found = tp.compare(onnx_file, data=(image for _ in range(2)), engines=names)
    assert isinstance(found, dict)
    assert list(found) == ["failing", "nowhere", "reference"]
    assert found["failing"].error == "the engine 'failing' failed: RuntimeError: out of beans"
    assert "there is no engine 'nowhere' here; use one of: " in found["nowhere"].error
    assert not found["failing"].agrees
    assert found["reference"].agrees
    assert found["reference"].samples == 2


@pytest.mark.usefixtures("failing")
def test_a_reference_engine_that_fails_is_not_blamed_on_the_others(onnx_file: Path, image: dict[str, Array]) -> None:
    with pytest.raises(tp.errors.EngineError, match="the engine 'failing' failed"):
        tp.compare(onnx_file, data=[image] * 2, engines=("failing", "onnxruntime"))
    with pytest.raises(EngineMissingError, match="no engine 'nowhere'"):
        tp.compare(onnx_file, inputs=image, engines=("nowhere", "onnxruntime"))


# What is refused


class _Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) + torch.rand(x.shape[0], 3)


def test_a_random_model_is_said_to_be_random(image: dict[str, Array]) -> None:
    with pytest.raises(RandomModelError, match="the reference answers differently each time"):
        tp.compare(_Random(), _Random(), image)


class _Other(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        pooled = x.mean((2, 3))
        return {"one": pooled, "two": pooled + 1, "three": pooled + 2}


def test_outputs_that_do_not_pair_up_need_a_mapping(onnx_file: Path, image: dict[str, Array]) -> None:
    with pytest.raises(InputError, match="one side has 3 outputs, the other 2") as caught:
        tp.compare(_Other(), onnx_file, image)
    assert caught.value.next_step is not None
    assert "--map" in caught.value.next_step
    with pytest.raises(InputError, match="there is no output 'four'"):
        tp.compare(_Other(), onnx_file, image, outputs={"four": "logits"})
    found = _compared(_Other(), _Other(), image, outputs={"two": "one"})
    assert found.outputs[0].max_abs == pytest.approx(1)


def test_outputs_of_a_common_name_belong_together_whatever_their_order(tmp_path: Path) -> None:
    a, b = np.zeros(3, np.float32), np.ones(3, np.float32)
    np.savez(tmp_path / "a.npz", y=a, z=b)
    np.savez(tmp_path / "b.npz", z=b, w=a)
    found = _compared(tmp_path / "a.npz", tmp_path / "b.npz")
    assert found.agrees
    assert [f.name for f in found.outputs] == ["z", "w"]


@pytest.mark.parametrize(
    ("inputs", "error", "told"),
    [
        ({"x": np.zeros((1, 4, 8, 8), np.float32)}, ForwardError, "PyTorch's SmallNet raises RuntimeError"),
        ({"x": np.zeros((1, 3, 8, 8), np.int64)}, ForwardError, "raises RuntimeError"),
        ({"x": np.zeros((1, 3, 8, 8), np.float32), "z": np.zeros(1)}, InputError, "do not fit|no input 'z'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    small_net: nn.Module, onnx_file: Path, inputs: dict[str, Array], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        tp.compare(small_net, onnx_file, inputs)


def test_an_input_neither_model_has_is_refused(onnx_file: Path, image: dict[str, Array]) -> None:
    with pytest.raises(InputError, match="there is no input 'typo'"):
        tp.compare(onnx_file, onnx_file, {**image, "typo": np.zeros(1)})


def test_empty_and_unreadable_samples_are_named(small_net: nn.Module, onnx_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        tp.compare(small_net, onnx_file, data=tmp_path)
    (tmp_path / "broken.npz").write_text("no numbers")
    with pytest.raises(InputError, match=r"broken\.npz' cannot be read"):
        tp.compare(small_net, onnx_file, data=tmp_path)
    with pytest.raises(InputError, match="there are no samples"):
        tp.compare(small_net, onnx_file, data=iter([]))


def test_options_that_cannot_be_meant_are_refused(
    small_net: nn.Module, onnx_file: Path, image: dict[str, Array], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    refused: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (OptionError, "rtol and atol", (onnx_file, onnx_file), {"rtol": 1e-3}),
        (OptionError, "nothing to compare with", (onnx_file,), {}),
        (OptionError, "engines run ONNX models", (small_net,), {"engines": ("onnxruntime", "reference")}),
        (InputError, "beside the float model it came from", (onnx_file, small_net), {"precision": True}),
        (InputError, "second side is an ONNX model", (onnx_file, small_net), {"layers": True}),
        (SaveError, "cannot be made", (onnx_file, onnx_file), {"save": tmp_path / "file"}),
        (FileError, "cannot be opened", (onnx_file, tmp_path / "none.onnx"), {}),
        (OptionError, "metric 'mine' failed", (onnx_file, onnx_file), {"metrics": {"mine": lambda a, b: a}}),
    ]
    for error, told, sides, options in refused:
        with pytest.raises(error, match=told):
            tp.compare(*sides, inputs=image, **options)


def test_progress_is_told(small_net: nn.Module, onnx_file: Path, image: dict[str, Array]) -> None:
    said: list[str] = []
    tp.compare(small_net, onnx_file, image, layers=True, progress=said.append)
    assert said[0] == "opening"
    assert "comparing sample 1" in said
    assert any("slice 1 of 1" in line for line in said)


class _Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: torch.Tensor, state: dict[str, torch.Tensor], scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"h": self.cell(x, state["h"]) * scale, "count": state["count"] + 1}


def test_inputs_in_containers_are_given_as_the_pytorch_model_takes_them(tmp_path: Path) -> None:
    net = _Stateful().eval()
    inputs = {"x": torch.randn(2, 3), "state": {"h": torch.randn(2, 4), "count": torch.zeros(2)}, "scale": 2.0}
    tp.export(net, kwargs=inputs, output=tmp_path / "net.onnx")
    found = _compared(net, tmp_path / "net.onnx", inputs, layers=True)
    assert found.agrees
    assert found.first_divergence is None
    assert len(found.outputs) == 2
    with pytest.raises(InputError, match="arrays only"):
        tp.compare(tmp_path / "net.onnx", tmp_path / "net.onnx", inputs)
