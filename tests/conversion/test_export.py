"""tp.export: what can be exported, every option, and that the model is left as it was found."""

from __future__ import annotations

import dataclasses
import inspect
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxscript import opset18 as op
from torch import Tensor, nn

import torchport as tp
from torchport.conversion.options import TORCH_NAMES
from torchport.errors import (
    DynamicError,
    EngineError,
    ForwardError,
    InputError,
    OptionError,
    RandomModelError,
    SaveError,
    SourceError,
)
from torchport.irtools import metadata
from torchport.process import time_limit
from torchport.torch_compat.sampled_sizes import sampled_sizes

# The tests below make TorchScript models as users have them; torch warns that it will go one day.
SCRIPTS = pytest.mark.filterwarnings("ignore:.*torch.jit.*")

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def agree(exported: tp.Exported, model: Any, *inputs: torch.Tensor) -> None:
    """The exported model gives the model's own answers."""
    with torch.no_grad():
        want = model(*inputs)
    got = tp.session(exported.model)(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


# --- what can be exported ---------------------------------------------------------------------------------------------


def test_a_module_with_an_example_of_batch_one_takes_any_batch(exported: tp.Exported, small_net: nn.Module) -> None:
    assert exported.route == "export"
    assert [str(i) for i in exported.inputs] == ["x: float32[batch,3,height,width]"]
    assert [str(o) for o in exported.outputs] == ["logits: float32[batch,5]", "pooled: float32[batch,8]"]
    assert [a.outcome for a in exported.attempts] == ["passed"]
    sizes = {c.sizes["batch"] for c in exported.proof.cases}
    assert {1, 2} < sizes
    x = torch.randn(7, 3, 5, 11)
    logits, pooled = tp.session(exported.model)(x)
    torch.testing.assert_close(logits, small_net(x)["logits"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled, small_net(x)["pooled"], rtol=1e-4, atol=1e-5)


def test_a_plain_function() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu()

    exported = tp.export(scaled, (X, torch.ones(4, 3)), dynamic={"x": {0: "n"}}, route="trace")
    assert [i.name for i in exported.inputs] == ["x", "y"]
    agree(exported, scaled, torch.randn(5, 4), torch.randn(4, 3))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.fc(x)
        return -x


def test_a_branch_on_data_survives_by_the_rewrite_and_script_routes() -> None:
    model = Branching()
    assert tp.export(model, X, dynamic={"x": {0: "n"}}, route="script").proven
    exported = tp.export(model, X, dynamic={"x": {0: "n"}})
    assert exported.route == "rewrite"
    assert exported.attempts[0].outcome == "failed"
    assert "test_export.py" in exported.attempts[0].reason
    for x in (torch.ones(3, 4), -torch.ones(3, 4)):
        agree(exported, model, x)


@SCRIPTS
def test_a_scripted_module() -> None:
    model = torch.jit.script(Branching())
    exported = tp.export(model, X, dynamic={"x": [0]})
    assert exported.route == "script"
    assert exported.inputs[0].shape == ("x_dim0", 4)
    for x in (torch.ones(3, 4), -torch.ones(3, 4)):
        agree(exported, model, x)


@SCRIPTS
def test_a_traced_module() -> None:
    model = torch.jit.trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), X)
    exported = tp.export(model, X, dynamic={"input": {0: "n"}})
    agree(exported, model, torch.randn(5, 4))


def test_an_exported_program_with_its_own_dimensions_or_new_names() -> None:
    program = torch.export.export(nn.Linear(4, 3), (X,), dynamic_shapes={"input": {0: torch.export.Dim("n")}})
    assert tp.export(program).inputs[0].shape == ("input_dim0", 4)
    named = tp.export(program, dynamic={"input": {0: "batch"}})
    assert named.inputs[0].shape == ("batch", 4)
    assert named.outputs[0].shape == ("batch", 3)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    more: list[torch.Tensor]


class Nested(nn.Module):
    def forward(
        self, batch: Batch, *extra: torch.Tensor, scale: float = 1.0, mask: torch.Tensor | None = None, **named: Any
    ) -> dict[str, Any]:
        y = (batch.x + batch.more[0]) * scale + extra[0]
        return {"y": y, "rows": y.shape[0], "parts": (y + named["offset"], None), "x": batch.x}


def test_any_nesting_of_inputs_and_outputs() -> None:
    exported = tp.export(
        Nested(),
        (Batch(X, [X, X]), torch.ones(4)),
        kwargs={"scale": 2.0, "mask": None, "offset": torch.ones(1)},
        dynamic={"batch": {"x": {0: "n"}, "more": [{0: "n"}, {0: "n"}]}},
    )
    assert [i.name for i in exported.inputs] == ["batch.x", "batch.more.0", "batch.more.1", "extra.0", "offset"]
    assert [o.name for o in exported.outputs] == ["y", "rows", "parts.0", "x"]
    assert any("'scale'" in str(f) and "2.0" in str(f) for f in exported.findings)
    x = torch.randn(5, 4)
    y, rows, part, same = tp.session(exported.model)(x, x, x, torch.ones(4), torch.ones(1))
    torch.testing.assert_close(y, 2 * (x + x) + 1)
    assert rows == 5
    torch.testing.assert_close(part, y + 1)
    torch.testing.assert_close(same, x)


# --- names ------------------------------------------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def forward(self, a: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return a * 2


@pytest.mark.parametrize("route", ["export", "trace"])
def test_unused_inputs_stay_unless_asked(route: str) -> None:
    kept = tp.export(TwoInputs(), (X, X), route=route)
    assert [i.name for i in kept.inputs] == ["a", "unused"]
    dropped = tp.export(TwoInputs(), (X, X), route=route, keep_unused_inputs=False)
    assert [i.name for i in dropped.inputs] == ["a"]


@pytest.mark.parametrize("route", ["export", "trace"])
def test_inputs_outputs_and_their_dims_are_renamed(route: str) -> None:
    exported = tp.export(
        nn.Linear(4, 4),
        X,
        route=route,
        input_names=["pixels"],
        output_names=["input"],  # the parameter's own name, now given to the output
        dynamic={"pixels": {0: "N"}, "input": {0: "N"}},
    )
    assert str(exported.inputs[0]) == "pixels: float32[N,4]"
    assert str(exported.outputs[0]) == "input: float32[N,4]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_names": ["a", "b"]}, "2 input names given, the model has 1"),
        ({"output_names": []}, "0 output names given"),
        ({"input_names": ["same"], "output_names": ["same"]}, "given to an input and to an output"),
        ({"input_names": [""]}, "is empty"),
        ({"route": "magic"}, "there is no route 'magic'"),
        ({"mode": "test"}, "there is no mode 'test'"),
        ({"weights": "no"}, "weights='no' is unknown"),
        ({"opset": 3}, "opset 3"),
        ({"opset": 99}, "opset 99"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        tp.export(nn.Linear(4, 4), X, **options)
    assert message in str(caught.value)


def test_weights_and_modules_carry_the_models_own_names(exported: tp.Exported) -> None:
    assert {"conv.weight", "fc.bias"} <= set(exported.model.graph.initializers)
    origins = {n.metadata_props.get("torchport.module") for n in exported.model.graph}
    assert {"norm", "fc"} <= origins  # the norm is folded into the convolution before it
    sources = {n.metadata_props.get("torchport.source", "") for n in exported.model.graph}
    assert any(s.startswith("tests/shared/small_net.py:") for s in sources)
    assert not any(k.startswith("pkg.torch") for n in exported.model.graph for k in n.metadata_props)


def test_an_operator_on_sizes_is_named_without_its_address_so_that_bytes_repeat() -> None:
    exported = tp.export(lambda x: x.new_ones(int(x.shape[0] ** 0.5) + 1), (torch.ones(3, 4),), dynamic={"x": {0: "n"}})
    operators = {n.metadata_props.get("torchport.operator", "") for n in exported.model.graph}
    assert "sym_float" in operators
    assert not any("0x" in operator for operator in operators)


# --- dynamic dimensions -----------------------------------------------------------------------------------------------


class Freezing(nn.Module):
    """The shape is taken into Python and so frozen; not scriptable either."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [*range(x.shape[0])]
        weights = torch.tensor([1.0 + r for r in rows])
        return x * weights[:, None]


def test_a_frozen_dimension_is_found_and_the_line_named() -> None:
    with pytest.raises((tp.ProofError, tp.CaptureError)) as caught:
        tp.export(Freezing(), X, dynamic={"x": {0: "n"}})
    text = str(caught.value)
    assert "dimension 'n' (x axis 0) was fixed to 2" in text
    assert "test_export.py" in text
    assert "range(x.shape[0])" in text


def test_a_dimension_the_model_itself_cannot_vary() -> None:
    with pytest.raises(DynamicError, match="dimension 'f' cannot vary"):
        tp.export(nn.Linear(4, 4), X, dynamic={"input": {1: "f"}})


def test_numbers_that_were_made_up_are_not_called_a_size() -> None:
    class Parts(nn.Module):
        def forward(self, x: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
            return torch.stack([part.sum(0) for part in x.split(parts.tolist())])

    with pytest.raises(DynamicError, match="refuses the numbers made up for 'parts'"):
        tp.export(Parts(), (torch.randn(6, 3), torch.tensor([1, 3, 2])), dynamic={"parts": {0: "n"}})


def test_axes_are_inferred_from_examples() -> None:
    exported = tp.export(nn.Linear(4, 4), X, examples=[(torch.randn(5, 4),)], dynamic="auto", route="trace")
    assert exported.inputs[0].shape == ("input_dim0", 4)
    assert "example 2" in {c.label for c in exported.proof.cases}
    with pytest.raises(DynamicError, match="needs more than one example"):
        tp.export(nn.Linear(4, 4), X, dynamic="auto")


def test_sizes_that_must_be_multiples_are_found() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.shape[0] // 4, 4, -1).sum(1)

    exported = tp.export(Halves(), torch.randn(8, 3), dynamic={"x": {0: "n"}}, route="export")
    assert {c.sizes["n"] for c in exported.proof.cases if c.verdict == "pass"} > {8}


# --- wrong models never leave -----------------------------------------------------------------------------------------


class Threshold(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 3 if float(x.abs().max()) > 5 else 1
        return x * factor


def test_a_trace_that_froze_a_choice_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    with pytest.raises(tp.ProofError) as caught:
        tp.export(Threshold(), X, route="trace", output=target)
    assert not caught.value.proof.passed
    assert "frozen a choice" in str(caught.value)
    assert "test_export.py" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_allow_unproven_saves_and_says_so_inside(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    exported = tp.export(Threshold(), X, route="trace", output=target, allow_unproven=True)
    assert not exported.proven
    assert "unproven" in metadata.read(tp.graph.load(target))


def test_a_tracers_warning_that_does_no_harm_is_a_finding() -> None:
    class Asserts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert bool((x.shape[1] == torch.tensor(4)).all())
            return x * 2

    exported = tp.export(Asserts(), X, route="trace")
    assert any("no case showed it to matter" in str(f) for f in exported.findings)


def test_a_random_model_is_said_to_be_random() -> None:
    with pytest.raises(RandomModelError):
        tp.export(nn.Dropout(0.5), torch.ones(8, 8), mode="train")


# --- the model is left as it was found --------------------------------------------------------------------------------


class Stateful(nn.Module):
    """Counts calls in a buffer and an attribute, and has a batch norm that learns in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(4)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x.mul_(2)
        return self.norm(x) + self.calls


def test_state_mode_inputs_and_random_numbers_are_as_before() -> None:
    model = Stateful().train()
    model.norm.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = X.clone()
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    exported = tp.export(model, x, dynamic={"x": {0: "n"}})
    assert exported.proof.passed
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(x, X)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


class CountedBeside(Stateful):
    """With an operator that is composed of others: programs with one are searched for what sees weights alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.hypot(super().forward(x), self.calls.view(1) * 2)


def test_a_buffer_that_the_model_writes_to_is_no_constant() -> None:
    model = CountedBeside().eval()
    exported = tp.export(model, X.clone(), dynamic={"x": {0: "n"}}, route="export")
    assert exported.proof.passed
    assert model.calls == 0


# --- opset, weights and other options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [9, 13, 17, 18, 21])
def test_the_opset_is_exactly_the_one_asked_for(small_net: nn.Module, tmp_path: Path, opset: int) -> None:
    target = tmp_path / "model.onnx"
    exported = tp.export(small_net, torch.randn(1, 3, 8, 8), output=target, opset=opset, dynamic={"x": {0: "n"}})
    proto = onnx.load(target)
    assert [(o.domain, o.version) for o in proto.opset_import if not o.domain] == [("", opset)]
    assert proto.ir_version == onnx.helper.find_min_ir_version_for(proto.opset_import)
    assert exported.opset == opset


def test_an_opset_out_of_reach_names_what_stands_in_the_way() -> None:
    class Grid(nn.Module):
        def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return nn.functional.grid_sample(x, grid, align_corners=False)

    with pytest.raises(tp.OpsetError) as caught:
        tp.export(Grid(), (torch.randn(1, 2, 4, 4), torch.rand(1, 3, 3, 2)), opset=13)
    assert caught.value.nearest == 16
    assert any("GridSample" in b or "grid_sampl" in b for b in caught.value.blockers)
    assert "opset 16" in str(caught.value)


def test_weights_can_be_inputs_or_left_out(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    as_inputs = tp.export(model, X, weights="inputs").model
    assert {v.name for v in as_inputs.graph.inputs} == {"input", "weight", "bias"}
    assert set(as_inputs.graph.initializers) == {"weight", "bias"}
    target = tmp_path / "bare.onnx"
    tp.export(model, X, weights="omit", output=target)
    answer = tp.session(target).run(
        {"input": X.numpy(), "weight": model.weight.detach().numpy(), "bias": model.bias.detach().numpy()}
    )
    np.testing.assert_allclose(answer["output"], model(X).detach().numpy(), rtol=1e-5)


def test_custom_opsets_and_translations() -> None:
    from onnxscript import opset18 as op

    def twice_negated(x: Any) -> Any:
        return op.Neg(op.Neg(op.Relu(x)))

    exported = tp.export(
        nn.ReLU(), X, translations={torch.ops.aten.relu.default: twice_negated}, custom_opsets={"mine": 3}
    )
    assert exported.model.opset_imports["mine"] == 3
    assert [n.op_type for n in exported.model.graph].count("Neg") == 2


def test_external_data_lies_beside_the_model(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    tp.export(nn.Linear(64, 64), torch.randn(2, 64), output=target, external_data=True)
    assert len(list(tmp_path.iterdir())) == 2
    onnx.checker.check_model(str(target), full_check=True)
    assert tp.session(target)(torch.randn(2, 64)).shape == (2, 64)


def test_the_saved_file_tells_its_story(tmp_path: Path, small_net: nn.Module) -> None:
    target = tmp_path / "model.onnx"
    for name in ("first", "second"):
        tp.export(small_net, torch.ones(1, 3, 8, 8), output=target)
        (tmp_path / name).write_bytes(target.read_bytes())
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    story = metadata.read(tp.graph.load(target))
    assert story["route"] == "export"
    assert story["proof"]["passed"] is True
    assert story["versions"]["torch"].startswith("2.")
    onnx.checker.check_model(str(target), full_check=True)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_model_that_raises_shows_its_own_line() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("my own complaint")

    with pytest.raises(ForwardError) as caught:
        tp.export(Broken(), X)
    assert "my own complaint" in str(caught.value)
    assert "test_export.py" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "args", "error", "message"),
    [
        (nn.Linear(4, 4), (torch.randn(2, 5),), ForwardError, "raises RuntimeError"),
        (nn.Linear(4, 4), (X.double(),), ForwardError, "raises RuntimeError"),
        (nn.Linear(4, 4), (), InputError, "missing a required argument"),
        (nn.Linear(4, 4), (X, X), InputError, "too many positional arguments"),
        (nn.Linear(4, 4, device="meta"), (X,), InputError, "meta device"),
        (nn.Linear(4, 4), (X.to("meta"),), InputError, "meta device"),
        (nn.Linear, (X,), SourceError, "is a class"),
        ("model", (X,), SourceError, "is no model"),
        (lambda x: None, (X,), SourceError, "gives no tensor back"),
    ],
)
def test_bad_models_and_inputs(model: Any, args: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        tp.export(model, args)
    assert message in str(caught.value)


def test_the_target_is_checked_before_any_work(tmp_path: Path) -> None:
    ran: list[int] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return x

    for target in (tmp_path / "missing" / "m.onnx", tmp_path):
        with pytest.raises(SaveError):
            tp.export(model, X, output=target)
    assert not ran


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_file_is_proven_against_its_source(onnx_file: Path, small_net: nn.Module) -> None:
    proof = tp.verify(onnx_file, small_net)
    assert proof.passed
    assert {"batch", "height", "width"} <= set(proof.cases[0].sizes)


def test_another_training_of_the_same_model_is_noticed(onnx_file: Path) -> None:
    from small_net import SmallNet

    torch.manual_seed(1)
    proof = tp.verify(onnx_file, SmallNet().eval())
    assert not proof.passed
    assert any("the weights in the file are not the PyTorch model's" in str(f) for f in proof.findings)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_verify_goes_by_position_where_names_differ(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    torch.onnx.export(model, (X,), tmp_path / "plain.onnx", dynamo=False, input_names=["a"], output_names=["b"])
    assert tp.verify(tmp_path / "plain.onnx", model, X).passed
    assert tp.verify(tmp_path / "plain.onnx", model, engine="reference").passed


# --- what the engine cannot run ---------------------------------------------------------------------------------------


class Foo(torch.autograd.Function):
    """The notes' FooOp: a node no engine here has a kernel for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        return g.op("devtech::FooOp", x)


class UsesFoo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Foo.apply(x * 2)


def test_a_model_the_engine_refuses_is_refused_by_name_and_saved_only_if_asked(tmp_path: Path) -> None:
    target = tmp_path / "foo.onnx"
    with pytest.raises(EngineError) as caught:
        tp.export(UsesFoo(), X, route="trace", output=target)
    assert "FooOp" in str(caught.value)
    assert not target.exists()
    exported = tp.export(UsesFoo(), X, route="trace", output=target, allow_unproven=True, custom_opsets={"devtech": 2})
    assert not exported.proven
    loaded = tp.graph.load(target)
    assert "FooOp" in [n.op_type for n in loaded.graph]
    assert loaded.opset_imports["devtech"] == 2
    assert "FooOp" in metadata.read(loaded)["unproven"]


def test_an_example_of_size_zero_can_grow() -> None:
    exported = tp.export(nn.Linear(4, 4), torch.zeros(0, 4), dynamic={"input": {0: "n"}}, route="trace")
    assert {c.sizes["n"] for c in exported.proof.cases} > {0}


def test_an_output_that_is_a_multiple_of_a_dimension_says_so() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(x, scale_factor=2, mode="nearest")

    exported = tp.export(Twice(), torch.randn(1, 2, 5, 6), dynamic={"x": {2: "h", 3: "w"}})
    assert exported.outputs[0].shape == (1, 2, "2*h", "2*w")


def test_a_dimension_that_hangs_on_another_is_verified_too(tmp_path: Path) -> None:
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[:, :-1] + y

    length = torch.export.Dim("length", min=2, max=100)
    target = tmp_path / "m.onnx"
    args = (torch.randn(2, 9), torch.randn(2, 8))
    exported = tp.export(Shifted(), args, dynamic={"x": {1: length}, "y": {1: length - 1}}, output=target)
    assert [i.shape for i in exported.inputs] == [(2, "length"), (2, "length - 1")]
    proof = tp.verify(target, Shifted(), args)
    assert proof.passed
    assert {c.sizes["length"] for c in proof.cases} > {9}


# --- found by reviewers -----------------------------------------------------------------------------------------------


def test_training_mode_leaves_running_statistics_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    tp.export(model, X, mode="train", route="script", dynamic={"input": {0: "n"}})
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not model.training


@pytest.mark.parametrize("route", ["export", "script", "trace"])
def test_weights_left_out_keep_their_own_names_even_when_equal(route: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))  # fresh: both norms hold the same numbers
    exported = tp.export(model, X, weights="omit", route=route)
    wanted = {k for k in model.state_dict() if "num_batches" not in k}
    assert {i.name for i in exported.inputs} == {"input", *wanted}


def test_a_folded_norm_is_not_taken_for_another_training(tmp_path: Path) -> None:
    class Shifted(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv1d(1, 3, 1), nn.BatchNorm1d(3), nn.Linear(4, 2)
            self.shift = shift

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.norm(self.conv(x))) + self.shift

    right, wrong = Shifted(0.0).eval(), Shifted(1.0).eval()
    wrong.load_state_dict(right.state_dict())
    tp.export(right, torch.randn(2, 1, 4), output=tmp_path / "m.onnx")
    proof = tp.verify(tmp_path / "m.onnx", wrong)
    assert not proof.passed
    assert not any("weights" in str(f) for f in proof.findings)


def test_a_failed_trace_is_not_called_harmless() -> None:
    exported = tp.export(Threshold(), X, route="trace", allow_unproven=True)
    assert exported.findings
    assert not any("no case showed it to matter" in str(f) for f in exported.findings)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"opset": "13"}, OptionError),
        ({"output": object()}, OptionError),
        ({"custom_opsets": {"": 11}}, OptionError),
        ({"args": 5}, InputError),
        ({"args": {"input": X}}, InputError),
    ],
)
def test_arguments_of_the_wrong_type_are_said(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        tp.export(nn.Linear(4, 4), **{"args": X, **options})


def test_a_last_dict_may_hold_the_named_inputs() -> None:
    def model(x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return x * scale

    exported = tp.export(model, (X, {"scale": torch.ones(1)}), route="trace")
    assert [i.name for i in exported.inputs] == ["x", "scale"]


def test_unnamed_axes_are_named_after_the_users_own_name_for_the_input() -> None:
    exported = tp.export(nn.Linear(4, 4), X, input_names=["a"], dynamic={"a": [0]}, route="trace")
    assert exported.inputs[0].shape == ("a_dim0", 4)


def test_weights_that_cannot_be_inputs_are_said() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head, self.spare = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), nn.Linear(2, 2)
            self.head.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.words(ids))

    exported = tp.export(Tied(), torch.tensor([[1, 8]]), weights="omit")
    assert len(exported.inputs) == 2
    assert sorted(str(f).split("'")[1] for f in exported.findings) == ["spare.bias", "spare.weight"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tp.export(torch.relu, (X,)), "has no signature"),
        (lambda: tp.export(nn.Linear(4, 4), X, kwargs=[1]), "not a dict"),
        (lambda: tp.export(nn.Linear(4, 4), X, input_names=[3]), "input names are texts"),
        (lambda: tp.export(nn.Linear(4, 4), kwargs={"inptu": X}), "did you mean 'input'?"),
        (lambda: tp.export(nn.Linear(4, 4), X, dynamic={"output": {7: "z"}}), "axis 7 of output 'output'"),
        (lambda: tp.export(nn.Linear(4, 4), X, dynamic={"input": {0: "3"}}), "is no dimension name"),
        (lambda: tp.export(nn.Linear(4, 4), X, dynamic={"input": {0: "b;1=c"}}), "is no dimension name"),
        (lambda: tp.export(nn.Linear(4, 4), X, output="model.pt"), "ends like another kind of file"),
        (lambda: tp.export(nn.Linear(4, 4), X, dynamic_axes={}, opset_version=13), "write dynamic= for dynamic_axes="),
        (lambda: tp.export(nn.Linear(4, 4), X, opset_version=13), "write opset= for opset_version="),
        (lambda: tp.export(nn.Linear(4, 4), X, f="a.onnx"), "write output= for f="),
        (lambda: tp.export(nn.Linear(4, 4), X, training=True), 'mode="train"'),
        (lambda: tp.export(nn.Linear(4, 4), X, dynamics={}), "did you mean dynamic"),
        (lambda: tp.export(nn.Linear(4, 4), X, "model.onnx"), "give the others by name: output='model.onnx'"),
        (lambda: tp.export(nn.Linear(4, 4), X, input_names="abc"), "write input_names=['abc']"),
        (lambda: tp.export(nn.Linear(4, 4), X, libraries=["no.so"]), "there is no operator library 'no.so'"),
        (lambda: tp.export(nn.Linear(4, 4), X, translations={"aten::relux": torch.relu}), "did you mean aten::relu"),
        (lambda: tp.export(nn.Linear(4, 4), X, translations={"aten::relu": 3}), "is a function, not 3"),
        (lambda: tp.export(nn.Linear(4, 4).state_dict(), X), "these are weights only"),
        (lambda: tp.verify(nn.Linear(4, 4), "model.onnx"), "the arguments are swapped"),
        (lambda: tp.verify("a.onnx", "b.onnx"), "torchport compare b.onnx a.onnx"),
        (lambda: tp.verify(nn.Linear(4, 4), nn.Linear(4, 4)), "is no model"),
        (
            lambda: tp.export(lambda a, b: a + b, (X, X), dynamic={"a": {0: "n"}}),
            "if these are the same dimension add b:0=n",
        ),
    ],
)
def test_mistakes_reviewers_made(call: Any, message: str) -> None:
    with pytest.raises(tp.TorchportError) as caught:
        call()
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert caught.value.exit_code == 2


def test_every_argument_of_torchs_export_is_known() -> None:
    own = inspect.signature(tp.export).parameters
    unknown = inspect.signature(torch.onnx.export).parameters.keys() - own.keys() - TORCH_NAMES.keys()
    assert unknown - {"deprecated_kwargs", "kwargs"} == set()


def test_a_translation_may_be_named_by_a_text() -> None:
    def relu(x: Any) -> Any:
        return op.Max(x, op.Constant(value_floats=[0.0]))

    exported = tp.export(nn.ReLU(), X, translations={"aten::relu": relu}, route="export", fold_constants=False)
    assert "Max" in [node.op_type for node in exported.model.graph]


def test_a_name_for_an_axis_of_an_output_that_does_not_vary_is_said() -> None:
    exported = tp.export(nn.Linear(4, 4), X, dynamic={"output": {0: "N"}}, route="trace")
    assert any("does not vary" in str(f) for f in exported.findings)


def test_an_output_whose_rank_depends_on_sizes_declares_no_shape() -> None:
    exported = tp.export(lambda x: x.squeeze() * 2, (torch.randn(2, 3, 4),), dynamic={"x": {0: "b", 1: "t"}})
    assert exported.outputs[0].shape is None


@pytest.mark.parametrize(
    ("function", "example"),
    [
        (lambda x: x.to_sparse(), torch.eye(3)),
        (lambda x: x.to_dense() * 2, torch.eye(3).to_sparse()),
        (lambda x: x.to(torch.complex32), torch.eye(3)),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_tensors_that_onnx_has_not_are_refused_in_words(function: Any, example: torch.Tensor) -> None:
    with pytest.raises(tp.errors.InputError, match="tensor cannot go to ONNX"):
        tp.export(function, (example,))


def test_an_empty_example_does_not_end_the_process() -> None:
    given = tp.export(lambda x: x.reshape(0, 3).sum(1), (torch.zeros(3, 0),), route="export")
    assert given.proof.passed
    with pytest.raises(tp.TorchportError, match="empty example"):
        tp.export(lambda x: torch.nn.functional.pixel_unshuffle(x, 1), (torch.zeros(1, 0, 1, 1),))


@pytest.mark.parametrize("number", [0.1, 1 / 3, 3.141592653589793])
def test_numbers_of_float64_models_are_exact(number: float) -> None:
    x = torch.rand(3, 4, dtype=torch.float64) + 0.5
    for function in (lambda x: x * number, lambda x: x + number, lambda x: torch.full_like(x, number)):
        given = tp.export(function, (x,), route="export")
        assert torch.equal(tp.session(given.model)(x), function(x))


class NoisySum(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3


def test_tolerances_are_for_all_outputs_or_one_and_stand_in_the_metadata() -> None:
    x = torch.randn(2, 3)
    exported = tp.export(NoisySum(), (x,), output_names=["a", "b"], rtol=1e-2, atol={"b": 1e-4})
    proof = json.loads(exported.model.metadata_props["torchport.proof"])
    assert proof["tolerances"] == {"a": {"rtol": 0.01}, "b": {"rtol": 0.01, "atol": 0.0001}}
    assert "tolerances" not in tp.export(NoisySum(), (x,)).proof.summary()


@pytest.mark.parametrize(
    ("given", "words"), [({"c": 1e-3}, "'c', which is no output"), (-1.0, "rtol is -1.0"), ("1e-3", "rtol is '1e-3'")]
)
def test_a_bad_tolerance_is_refused(given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tp.export(NoisySum(), (torch.randn(2, 3),), output_names=["a", "b"], rtol=given)


def test_a_looser_tolerance_lets_a_rounded_model_through() -> None:
    class Precise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2.01

    model = tp.export(Rounded(), (torch.randn(2, 3),)).model
    assert not tp.verify(model, Precise(), (torch.randn(2, 3),)).passed
    assert tp.verify(model, Precise(), (torch.randn(2, 3),), rtol=1e-2).passed
    assert not tp.verify(model, Precise(), (torch.randn(2, 3),), rtol=1e-3).passed


class DropsAlways(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * 2, 0.5)


def test_dropout_in_eval_mode_is_named_with_its_line_and_the_right_advice() -> None:
    with pytest.raises(RandomModelError) as caught:
        tp.export(DropsAlways(), (torch.randn(4, 5),))
    assert "'dropout' draws random numbers" in caught.value.what
    assert "test_export.py" in str(caught.value.where)
    assert "training=self.training" in str(caught.value.next_step)


def test_more_weights_than_one_file_holds_are_refused_before_the_work() -> None:
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1).expand(2**30), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it is not run")

    with pytest.raises(OptionError, match=r"4 GiB of weights: a single \.onnx file holds at most 2 GiB"):
        tp.export(Large(), (torch.zeros(1),), external_data=False)


@pytest.mark.parametrize("route", ["export", "trace"])
def test_a_size_that_the_values_decide_is_not_called_like_an_input_s(route: Any) -> None:
    class Selects(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x[x > -1e9], torch.cat([x, x])

    exported = tp.export(Selects(), (torch.rand(5),), dynamic={"x": {0: "n"}}, route=route)
    assert [o.shape for o in exported.outputs] == [("output_0_dim0",), ("2*n",)]


def test_such_an_output_is_not_saved_and_the_message_says_where_it_differs(tmp_path: Path) -> None:
    example = (torch.randn(3, 1, 4),)
    with pytest.raises(tp.CaptureError, match=r"shape \[3, 4\] and, where b is 1, \[4\]") as caught:
        tp.export(lambda x: x.squeeze() * 2, example, dynamic={"x": {0: "b"}}, output=tmp_path / "m.onnx")
    assert "b[2..]" in str(caught.value)
    tp.export(lambda x: x.squeeze() * 2, example, dynamic={"x": {0: "b[2..]"}}, output=tmp_path / "m.onnx")


class SmallWindow(nn.Module):
    """A window no larger than the sequence: export alone settles the condition for the example's length."""

    def forward(self, x: Tensor) -> Tensor:
        length, window, shift = x.shape[1], 4, 2
        if length <= window:
            window = length
            shift = 0
        padded = nn.functional.pad(x, (0, 0, 0, -length % window))
        if shift > 0:
            padded = torch.roll(padded, -shift, 1)
        windows = padded.view(x.shape[0], -1, window, x.shape[2]).softmax(2)
        rows = windows.reshape(x.shape[0], -1, x.shape[2])
        if shift > 0:
            rows = torch.roll(rows, shift, 1)
        return rows[:, :length]


def test_a_window_no_larger_than_the_sequence_is_a_minimum_of_sizes() -> None:
    exported = tp.export(SmallWindow(), (torch.randn(2, 10, 3),), dynamic={"x": {0: "batch", 1: "length"}})
    for length in (1, 3, 4, 5, 9):
        agree(exported, SmallWindow(), torch.randn(1, length, 3))


def test_no_route_is_tried_once_the_time_for_captures_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchport.conversion.attempts._SECONDS", 0)
    monkeypatch.setattr("torchport.conversion.attempts._TIMES", 1)
    with pytest.raises(tp.ProofError, match="it is right at length from 4 on") as caught:
        tp.export(SmallWindow(), (torch.randn(2, 10, 3),), dynamic={"x": {1: "length"}})
    first, *others = caught.value.attempts
    assert "numbers differ" in first.reason
    assert {a.reason for a in others} == {"not tried: the time for captures is over"}


def test_a_capture_stops_once_its_time_is_over() -> None:
    axes = {"x": {1: torch.export.Dim.AUTO}}
    with time_limit(0.0), sampled_sizes(), pytest.raises(tp.errors.TimeLimitError, match="takes too long"):
        torch.export.export(SmallWindow(), (torch.randn(2, 10, 3),), dynamic_shapes=axes)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_dimension_of_an_ill_conditioned_model_is_proven_by_numbers_that_agree_as_a_whole(frozen: bool) -> None:
    """Some numbers have the sine of a sum in them that two engines round differently."""

    class Amplified(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixed = nn.Linear(2000, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = 0.005 * torch.sin(1e9 * self.mixed(x))
            rows = x * (1.1 if frozen and x.shape[1] == 3 else 1.0)
            return torch.cat([rows[..., :8] + noise, rows[..., 8:]], dim=-1)

    model, example = Amplified(), torch.randn(2, 3, 2000)
    if frozen:
        with pytest.raises(tp.ProofError):
            tp.export(model, (example,), dynamic={"x": {1: "length"}}, route="trace")
        return
    exported = tp.export(model, (example,), dynamic={"x": {1: "length"}})
    moved = [c for c in exported.proof.cases if c.sizes["length"] != 3]
    assert {c.verdict for c in moved} == {"ill-conditioned"}
