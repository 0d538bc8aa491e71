"""Every dialect of dynamic dimensions is read into one form."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch.export import Dim as TorchDim

from torchport.capture import dynamic_dims, models
from torchport.capture.structure import Call
from torchport.errors import DynamicError
from torchport.results import Dim


def _model(x: torch.Tensor, batch: Any = None) -> torch.Tensor:
    return x


def read(spec: Any, *, x: tuple[int, ...] = (2, 3, 8), nested: bool = False) -> dict[str, dict[int, Dim]]:
    args = (torch.zeros(x), {"y": torch.zeros(2, 5), "zs": [torch.zeros(2)]}) if nested else (torch.zeros(x),)
    call = Call(_model, args, {})
    return dynamic_dims.read(spec, call, input_names=call.names, output_names=["output"]).inputs


BATCH = {"x": {0: Dim("batch")}}


@pytest.mark.parametrize(
    "spec",
    [
        {"x": {0: "batch"}},
        {0: {0: "batch"}},
        {"x": {-3: "batch"}},
        {"x": {0: "batch"}, "output": {0: "batch"}},
        {"x": {0: TorchDim("batch")}},
        {"x": (TorchDim("batch"), None, None)},
        {"x": {0: TorchDim("batch"), 1: TorchDim.STATIC, 2: None}},
        ({0: "batch"},),
        [{0: "batch"}],
        "x:0=batch",
        ["x:0=batch"],
        "0:0=batch",
        {"x": {0: Dim("batch")}},
    ],
)
def test_the_same_dimension_in_every_dialect(spec: Any) -> None:
    assert read(spec) == BATCH


@pytest.mark.parametrize("spec", [None, {}, {"x": None}, {"x": {}}, {"x": {0: None}}, {"x": [None] * 3}])
def test_nothing_varies_when_nothing_is_said(spec: Any) -> None:
    assert read(spec) == {}


@pytest.mark.parametrize("spec", [{"x": [0, 2]}, "x:0,2", {"x": {0: TorchDim.AUTO, 2: TorchDim.DYNAMIC}}])
def test_axes_without_names_are_named_after_input_and_axis(spec: Any) -> None:
    assert {a: d.name for a, d in read(spec)["x"].items()} == {0: "x_dim0", 2: "x_dim2"}


def test_bounds_come_from_torch_and_from_text() -> None:
    assert read({"x": {0: TorchDim("n", min=2, max=16)}})["x"][0] == Dim("n", min=2, max=16)
    assert read("x:0=n[2..16]")["x"][0] == Dim("n", min=2, max=16)
    assert read("x:0=n[2..]")["x"][0] == Dim("n", min=2)
    assert read({"x": {0: TorchDim.AUTO(min=2, max=9)}})["x"][0] == Dim("x_dim0", min=2, max=9)


def test_a_derived_dimension_hangs_on_its_root() -> None:
    half = TorchDim("half", min=1, max=64)
    dim = read({"x": {2: 2 * half + 2}})["x"][2]
    assert (dim.root, dim.scale, dim.offset) == ("half", 2, 2)
    assert dim.size(3) == 8
    assert dim.root_size(8) == 3
    assert dim.root_size(9) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"batch": {"y": {0: "n"}, "zs": [{0: "n"}]}},
        {"batch.y": {0: "n"}, "batch.zs.0": {0: "n"}},
        (None, {"y": {0: "n"}, "zs": ({0: "n"},)}),
        ["batch.y:0=n", "batch.zs.0:0=n"],
    ],
)
def test_nested_inputs_are_reached_by_nesting_or_by_dotted_name(spec: Any) -> None:
    assert read(spec, nested=True) == {"batch.y": {0: Dim("n")}, "batch.zs.0": {0: Dim("n")}}


def test_names_of_outputs_are_kept_apart() -> None:
    call = Call(_model, (torch.zeros(2, 3),), {})
    spec = dynamic_dims.read({"input": {0: "N"}, "result": [0]}, call, input_names=["input"], output_names=["result"])
    assert spec.inputs == {"x": {0: Dim("N")}}
    assert spec.outputs == {"result": {0: "result_dim0"}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"y": {0: "n"}}, "there is no input or output 'y'"),
        ({"x": {3: "n"}}, "axis 3 of input 'x' is out of range"),
        ({"x": {-4: "n"}}, "axis -4 of input 'x' is out of range"),
        ({"x": {"0": "n"}}, "is no number"),
        ({"x": {0: "n", 1: "n"}}, "dimension 'n' has two sizes in the example: 2 and 3"),
        ({"x": {0: 1.5}}, "1.5 is no dimension"),
        ({"x": {0: ""}}, "is no dimension name"),
        ({"x": {0: "n[9..2]"}}, "upper bound is below its lower"),
        ({"x": {0: "n[3..9]"}}, "outside its own bounds"),
        ({"x": ("n", None)}, "has rank 3"),
        ({5: {0: "n"}}, "there is no input 5"),
        (({0: "n"}, None), "dynamic has 2 entries, the model has 1 inputs"),
        (7, "of no known form"),
        ("x", "is no dynamic dimension"),
        ("x:", "is no dynamic dimension"),
        ("x:a=n", "is no dynamic dimension"),
        ("x:0=", "is no dynamic dimension"),
        ({"x": {2: 3 * TorchDim("n")}}, "which no 'n' makes"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(spec: Any, message: str) -> None:
    with pytest.raises(DynamicError, match=re.escape(message)) as caught:
        read(spec)
    assert str(caught.value).startswith(caught.value.what)


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(DynamicError) as caught:
        read({"xx": {0: "n"}})
    assert "did you mean 'x'?" in str(caught.value)


def test_axes_that_vary_between_examples_are_found_and_tied() -> None:
    calls = [Call(lambda a, b: a, (torch.zeros(n, 4), torch.zeros(4, n)), {}) for n in (2, 5)]
    assert dynamic_dims.infer(calls) == {"a": {0: Dim("a_dim0")}, "b": {1: Dim("a_dim0")}}


def test_examples_of_different_rank_are_refused() -> None:
    calls = [Call(lambda a: a, (torch.zeros(shape),), {}) for shape in ((2, 4), (2,))]
    with pytest.raises(DynamicError, match="another rank"):
        dynamic_dims.infer(calls)


names = st.text("abcxyzABC_", min_size=1, max_size=6)


@given(st.dictionaries(names, st.dictionaries(st.integers(0, 9), names, min_size=1), min_size=1))
def test_text_specs_round_trip(spec: dict[str, dict[int, str]]) -> None:
    texts = [f"{name}:" + ",".join(f"{a}={d}" for a, d in axes.items()) for name, axes in spec.items()]
    assert dynamic_dims.parse_texts(texts) == spec


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_kindly(text: str) -> None:
    try:
        dynamic_dims.parse_texts([text])
    except DynamicError:
        return  # any other exception fails the test


@given(st.text(max_size=20))
def test_any_dimension_name_is_read_or_refused_kindly(text: str) -> None:
    try:
        dim = dynamic_dims.to_dim(text, "default")
    except DynamicError:
        return
    assert dim is not None
    assert dim.name


def test_a_pattern_stands_for_every_input_that_matches() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, past: dict[str, torch.Tensor]) -> torch.Tensor:
            return x

    x, past = torch.zeros(2, 3), {"key": torch.zeros(2, 4, 5), "value": torch.zeros(2, 4, 5)}
    call = models.call(models.subject(Net()), (x, past), None)
    for spec in (["past.*:2=past", "*:0=batch"], {"past.*": {2: "past"}, "*": {0: "batch"}}):
        found = dynamic_dims.read(spec, call, input_names=call.names, output_names=["y"])
        assert {n: {a: d.name for a, d in axes.items()} for n, axes in found.inputs.items()} == {
            "x": {0: "batch"},
            "past.key": {2: "past", 0: "batch"},
            "past.value": {2: "past", 0: "batch"},
        }
    with pytest.raises(DynamicError, match=r"no input or output 'pat\.\*'"):
        dynamic_dims.read(["pat.*:2=past"], call, input_names=call.names, output_names=["y"])


def test_an_entry_that_is_none_may_be_left_out_of_a_list() -> None:
    call = Call(_model, (torch.zeros(2, 3), [torch.zeros(2), None, torch.zeros(2)]), {})
    spec = {"batch": [{0: "n"}, {0: "n"}]}
    found = dynamic_dims.read(spec, call, input_names=call.names, output_names=["output"]).inputs
    assert found == {"batch.0": {0: Dim("n")}, "batch.2": {0: Dim("n")}}
    with pytest.raises(DynamicError, match="has 3 entries, its dynamic entry 1"):
        dynamic_dims.read({"batch": [{0: "n"}]}, call, input_names=call.names, output_names=["output"])
