"""tp.compare: what can stand on either side, what it is fed with, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import torchport as tp
from torchport.comparison.result import Comparison, Divergence
from torchport.engines.onnxruntime.engine import OnnxRuntime
from torchport.engines.protocol import Engine, OpenOptions, Runner
from torchport.errors import (
    EngineMissingError,
    FileError,
    ForwardError,
    InputError,
    OptionError,
    RandomModelError,
    SaveError,
)
from torchport.inputs.samples import read_samples
from torchport.numerics.error_metrics import measure
from torchport.results import Origin

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
    alone = tp.session(model)
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
    answers = tp.session(onnx_file).run(image)
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
    np.savez(tmp_path / "bare.npz", **tp.session(onnx_file).run(image))
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
    np.savez(tmp_path / "there.npz", **image, **tp.session(onnx_file).run(image))
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


class _FailingRunner(Runner):
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.inputs, self.outputs = self._runner.inputs, self._runner.outputs
        self._runs = 0

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        self._runs += 1
        if self._runs > 1:
            raise RuntimeError("out of beans")
        found: Sequence[Array] = self._runner.run(feeds, only)
        return found


class _Failing(OnnxRuntime):
    """ONNX Runtime that gives up at its second run."""

    def open(self, model: Path | ir.Model, options: OpenOptions) -> Runner:
        return _FailingRunner(super().open(model, options))


@pytest.fixture
def failing(register_engine: Callable[[str, type[Engine]], None]) -> None:
    register_engine("failing", _Failing)


@pytest.mark.usefixtures("failing")
def test_an_engine_that_fails_midway_is_reported_and_the_others_go_on(onnx_file: Path, image: dict[str, Array]) -> None:
    names = ("onnxruntime", "failing", "tvm", "reference")
    found = tp.compare(onnx_file, data=(image for _ in range(2)), engines=names)
    assert isinstance(found, dict)
    assert list(found) == ["failing", "tvm", "reference"]
    assert found["failing"].error == "the engine 'failing' failed: RuntimeError: out of beans (sample 1)"
    assert "there is no engine 'tvm' here; use one of: " in found["tvm"].error
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
        (OptionError, "no engine is named", (onnx_file, onnx_file), {"engines": ()}),
        (OptionError, "two models and 2 engines", (onnx_file,) * 2, {"engines": ("onnxruntime", "reference")}),
        (EngineMissingError, "no engine 'onxruntime'", (onnx_file,), {"engines": ("onnxruntime", "onxruntime")}),
        (OptionError, "inputs and data are both given", (onnx_file, onnx_file), {"data": [image]}),
        (OptionError, "no tensor fits into 0 bytes", (onnx_file, onnx_file), {"budget": 0}),
        (OptionError, "output 'pooled' is given twice", (onnx_file,) * 2, {"outputs": dict.fromkeys("ab", "pooled")}),
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


# Calls that are not all alike


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(
        self, x: torch.Tensor, scale: float = 1.0, *, mask: torch.Tensor | None = None, states: Any = None
    ) -> torch.Tensor:
        y = self.fc(x) * scale if mask is None else self.fc(x) * scale * mask
        return y if states is None else y + states["h"][0] * states["weight"]


@pytest.fixture(scope="module")
def scaled() -> nn.Module:
    return _Scaled().eval()


@pytest.fixture(scope="module")
def scaled_file(scaled: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported with a scale of 1, and without a mask."""
    path = tmp_path_factory.mktemp("scaled") / "scaled.onnx"
    tp.export(scaled, (torch.ones(2, 4),), output=path)
    return path


def test_every_recorded_call_is_made_with_its_own_arguments(
    scaled: nn.Module, scaled_file: Path, tmp_path: Path
) -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    with tp.record(scaled, tmp_path):
        scaled(x)
        scaled(x, 2.0)
        scaled(x, mask=torch.zeros(2, 4))
    found = _compared(scaled, scaled_file, data=tmp_path)
    assert found.verdict() == "DIFFERENT: 1 of 1 outputs differ"
    assert "(2 of 3 samples differ)" in found.outputs[0].problem
    assert [str(f) for f in found.findings] == [
        "argument 'scale' is not the same in all calls: in an ONNX model, what is no tensor has one value "
        "(call_00002.npz)",
        "input 'mask' is taken by PyTorch's _Scaled only (call_00003.npz)",
    ]
    assert _compared(scaled, scaled, data=tmp_path).agrees
    masked = _compared(tmp_path / "call_00003.npz", scaled_file)
    assert "input 'mask' of the recorded call is not taken by" in _told(masked)


def test_the_saved_worst_sample_has_the_arguments_that_are_no_tensors(
    scaled: nn.Module, scaled_file: Path, tmp_path: Path
) -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    with tp.record(scaled, tmp_path / "calls"):
        scaled(x)
        scaled(x, 2.0)
    found = _compared(scaled, scaled_file, data=tmp_path / "calls", save=tmp_path, layers=True)
    again = _compared(scaled, scaled_file, data=found.worst)
    assert found.worst == str(tmp_path / "worst.npz")
    assert again.verdict() == found.verdict() == "DIFFERENT: 1 of 1 outputs differ"
    assert again.outputs[0].max_abs == found.outputs[0].max_abs
    (sample,) = read_samples(found.worst)
    assert sample.arguments == {"scale": 2.0}


def test_precision_is_told_by_the_calls_an_export_can_make(
    scaled: nn.Module, scaled_file: Path, tmp_path: Path
) -> None:
    with tp.record(scaled, tmp_path):
        scaled(torch.ones(2, 4))
        scaled(torch.ones(2, 4), 2.0)
    found = _compared(scaled, _half(scaled_file), data=tmp_path, precision=True)
    assert not found.agrees  # the other call differs, whatever the precision
    assert found.precision is not None
    assert found.precision.before.ok
    assert "which layers need more precision is told by 1 of 2 samples" in _told(found)


def test_recorded_containers_are_given_again_as_they_were(scaled: nn.Module, tmp_path: Path) -> None:
    x, states = torch.ones(2, 4), {"h": (torch.ones(2, 4),), "weight": 3.0}
    tp.export(scaled, (x,), kwargs={"states": states}, output=tmp_path / "net.onnx")
    with tp.record(scaled, tmp_path / "calls"):
        scaled(x, states=states)
    call = tmp_path / "calls" / "call_00001.npz"
    for a, b in ((scaled, tmp_path / "net.onnx"), (scaled, scaled)):
        assert _compared(a, b, data=call).agrees
    assert _compared(call, scaled).agrees
    direct = _compared(scaled, _Scaled().eval(), {"x": x, "states": states}, save=tmp_path)
    assert _compared(scaled, tmp_path / "net.onnx", data=direct.worst).agrees


def test_arrays_by_the_names_of_an_export_go_into_their_containers(tmp_path: Path) -> None:
    net = _Stateful().eval()
    inputs = {"x": torch.ones(2, 3), "state": {"h": torch.ones(2, 4), "count": torch.zeros(2)}}
    tp.export(net, kwargs=inputs, output=tmp_path / "net.onnx")
    arrays = {"x": inputs["x"], "state.h": torch.zeros(2, 4), "state.count": torch.ones(2)}
    assert _compared(net, tmp_path / "net.onnx", data=[arrays]).agrees
    with pytest.raises(InputError, match="'x' is given as a whole and in part"):
        tp.compare(net, tmp_path / "net.onnx", data=[{**arrays, "x.0": torch.ones(1)}])


class _Cache:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys


class _Cached(nn.Module):
    def forward(self, x: torch.Tensor, cache: _Cache) -> torch.Tensor:
        return x + cache.keys


def test_an_object_of_which_only_the_tensors_were_recorded_is_not_guessed(tmp_path: Path) -> None:
    net, x = _Cached(), torch.ones(2)
    with tp.record(net, tmp_path):
        net(x, _Cache(x * 2))
    call = tmp_path / "call_00001.npz"
    with pytest.raises(
        InputError, match="argument 'cache' cannot be given again: of a _Cache only the tensors"
    ) as raised:
        tp.compare(net, net, data=call)
    assert raised.value.where == "call_00001.npz"
    tp.export(net, (x, _Cache(x)), output=tmp_path / "net.onnx")
    assert _compared(call, tmp_path / "net.onnx").agrees  # what was recorded is enough for that


def test_the_sample_that_cannot_be_run_is_named(small_net: nn.Module, onnx_file: Path, image: dict[str, Array]) -> None:
    wrong = {"x": np.zeros((1, 4, 8, 8), np.float32)}
    with pytest.raises(ForwardError) as raised:
        tp.compare(small_net, small_net, data=[image, wrong])
    assert (raised.value.where or "").startswith("sample 1")
    with pytest.raises(InputError, match="there is no input 'typo'") as unknown:
        tp.compare(onnx_file, onnx_file, data=[image, {**image, "typo": np.zeros(1)}])
    assert (unknown.value.where or "").startswith("sample 1")


def test_inputs_of_other_names_are_said_to_be_taken_in_order(onnx_file: Path, image: dict[str, Array]) -> None:
    found = _compared(onnx_file, onnx_file, {"picture": image["x"]})
    assert [str(f) for f in found.findings] == [f"{onnx_file} takes the inputs in order, as x"]
    assert _compared(onnx_file, onnx_file, image["x"]).findings == ()


# Outputs that are not compared, or are no tensors


def _model(nodes: list[Any], outputs: list[Any], inits: Mapping[str, Array] | None = None) -> ir.Model:
    """From an x of any rows and 4 columns."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    weights = [numpy_helper.from_array(array, name) for name, array in (inits or {}).items()]
    graph = helper.make_graph(nodes, "g", [x], outputs, weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


ROWS = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}


def _two_outputs(second: str) -> ir.Model:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("y", "z")]
    nodes = [
        helper.make_node("Tanh", ["x"], ["y"], name="n_y"),
        helper.make_node("Mul", ["x", "x"], ["square"], name="n_square"),
        helper.make_node(second, ["square"], ["z"], name="n_z"),
    ]
    return _model(nodes, info)


def test_an_output_that_is_not_compared_is_no_evidence_of_anything() -> None:
    for second in ("Sin", "Cos"):
        found = _compared(_two_outputs("Sin"), _two_outputs(second), ROWS, outputs={"y": "y"}, layers=True)
        assert found.agrees
        assert [f.name for f in found.outputs] == ["y"]
        assert "output 'z' was not compared: --map leaves it out" in _told(found)
        assert "fuses" not in _told(found)
    states = {layer.tensor: layer.state for layer in found.layers}
    assert (states["y"], states["square"]) == ("agrees", "agrees")
    assert states["z"] != "agrees"


def test_an_output_the_saved_tensors_lack_is_said_not_to_be_compared(tmp_path: Path) -> None:
    np.savez(tmp_path / "there.npz", **ROWS, y=np.tanh(ROWS["x"]), other=np.zeros(1), more=np.zeros(1))
    told = f"output 'z' was not compared: {tmp_path / 'there.npz'} does not hold it"
    for sides in ((tmp_path / "there.npz", _two_outputs("Sin")), (_two_outputs("Sin"), tmp_path / "there.npz")):
        found = _compared(*sides, layers=sides[0] == tmp_path / "there.npz")
        assert found.agrees
        assert [str(f) for f in found.findings] == [told]


def _sequence(*operators: str) -> ir.Model:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    names = [f"t{i}" for i in range(len(operators))]
    nodes = [helper.make_node(op, ["x"], [n], name=f"n_{n}") for op, n in zip(operators, names, strict=True)]
    nodes.append(helper.make_node("SequenceConstruct", names, ["s"], name="n_s"))
    return _model(nodes, [helper.make_value_info("s", kind)])


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_a_sequence_of_tensors_is_compared_item_by_item(engine: str) -> None:
    right, wrong = _sequence("Neg", "Tanh"), _sequence("Neg", "Sin")
    assert _compared(right, right, ROWS, layers=True, engines=(engine,)).agrees
    found = _compared(right, wrong, ROWS, layers=True, engines=(engine,))
    assert found.outputs[0].problem.startswith("item 1: 8 of 8 numbers differ")
    assert found.first_divergence is not None
    assert found.first_divergence.node == "n_t1"
    longer = _compared(right, _sequence("Neg", "Tanh", "Sin"), ROWS, engines=(engine,))
    assert longer.outputs[0].problem == "3 tensors instead of 2 tensors"


def _optional(operator: str) -> ir.Model:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 4]))
    nodes = [
        helper.make_node(operator, ["x"], ["t"], name="n_t"),
        helper.make_node("Optional", ["t"], ["o"], name="n_o"),
    ]
    return _model(nodes, [helper.make_value_info("o", kind)])


def test_an_optional_output_is_compared_as_what_it_holds() -> None:
    assert _compared(_optional("Neg"), _optional("Neg"), ROWS, layers=True).agrees
    found = _compared(_optional("Neg"), _optional("Abs"), ROWS, layers=True)
    assert not found.agrees
    assert found.first_divergence is not None
    assert found.first_divergence.node == "n_t"
    engines = tp.compare(_optional("Neg"), inputs=ROWS, engines=("onnxruntime", "reference"))
    assert isinstance(engines, dict)
    assert engines["reference"].agrees


def test_no_output_at_all_is_no_agreement(tmp_path: Path) -> None:
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz")
    found = _compared(tmp_path / "a.npz", tmp_path / "b.npz")
    assert (found.agrees, found.verdict()) == (False, "NOT compared: there is no output")


def test_an_empty_output_is_said_to_tell_nothing() -> None:
    info = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])]
    one, other = (_model([helper.make_node(op, ["x"], ["y"], name="n")], info) for op in ("Sin", "Cos"))
    found = _compared(one, other, {"x": ROWS["x"][:0]})
    assert [str(f) for f in found.findings] == ["output 'y' is empty: nothing was compared in it"]
    assert _compared(one, one, data=[{"x": ROWS["x"][:0]}, ROWS]).findings == ()


def _loop(factor: float) -> ir.Model:
    def info(name: str, kind: int, shape: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes"], name="n_goes"),
            helper.make_node("Mul", ["state", "w"], ["next"], name="n_next"),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("going", TensorProto.BOOL, []),
            info("state", TensorProto.FLOAT, [2, 4]),
        ],
        [info("goes", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, [2, 4])],
    )
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="n_t"),
        helper.make_node("Loop", ["three", "", "t"], ["u"], name="n_loop", body=body),
        helper.make_node("Sin", ["u"], ["y"], name="n_y"),
    ]
    return _model(nodes, [info("y", TensorProto.FLOAT, ["n", 4])], {"w": np.float32(factor), "three": np.int64(3)})


def test_a_loop_at_fault_is_saved_with_its_data(tmp_path: Path) -> None:
    found = _compared(_loop(1.1), _loop(1.4), ROWS, layers=True, save=tmp_path)
    assert found.first_divergence is not None
    assert found.first_divergence.node == "n_loop"
    model, data = found.first_divergence.files
    (sample,) = read_samples(data)
    np.testing.assert_allclose(
        tp.session(model).run({"t": sample.arrays["t"]})["u"], np.tanh(ROWS["x"]) * 1.4**3, rtol=1e-5
    )


def _untyped(bias: float) -> ir.Model:
    """ONNX does not know what type ONNX Runtime's own operators give."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="n_t"),
        helper.make_node("BiasGelu", ["t", "b"], ["u"], name="n_gelu", domain="com.microsoft"),
        helper.make_node("Sin", ["u"], ["y"], name="n_y"),
    ]
    model = _model(
        nodes,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        {"b": np.full(4, bias, np.float32)},
    )
    model.graph.opset_imports["com.microsoft"] = 1
    return model


def test_a_node_that_cannot_be_saved_alone_leaves_the_result(tmp_path: Path) -> None:
    found = _compared(_untyped(0), _untyped(1), ROWS, layers=True, save=tmp_path)
    assert found.first_divergence is not None
    assert (found.first_divergence.node, found.first_divergence.files) == ("n_gelu", ())
    assert "node 'n_gelu' (com.microsoft::BiasGelu) cannot be saved alone: nothing tells the type of 'u'" in _told(
        found
    )
    assert (tmp_path / "worst.npz").exists()


# How it is shown


def test_what_is_found_fits_a_terminal_of_80_columns() -> None:
    suspects = tuple(f"/encoder/layer.{i}/attention/MatMul" for i in range(7))
    origin = Origin()
    first = Divergence(suspects[0], "MatMul", origin, suspects, "t", None, {})
    failed = Comparison(("one", "other"), (), 1, first_divergence=first, error="there is no such engine here " * 4)
    fine = measure("y", ROWS["x"], ROWS["x"])
    other = Comparison(("one", "other"), (fine,), 1, other_inputs=("pixel_values", "attention_mask", "position_ids"))
    for shown in (failed, other):
        assert max(map(len, str(shown).splitlines())) <= 80
    told = " ".join(str(failed).split())
    assert "or one of the 6 after it: /encoder/layer.1/attention/MatMul, " in told
    assert "and 2 more" in told
    assert "NOT compared: there is no such engine here there is" in told
    two = Divergence("a", "MatMul", origin, ("a", "b"), "t", None, {})
    assert "\n  or the one after it: 'b'\n" in str(two)
