"""Operators are found, explained, and counted in a model before it is exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import torchport as tp
from torchport.cli.main import cli
from torchport.errors import OptionError
from torchport.operators import catalog, onnx_catalog


def ops(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["ops", *arguments])
    return result.exit_code, result.output


def test_a_part_of_a_name_finds_torchs_and_onnxs_operators() -> None:
    found = tp.operators.find("asinh")
    assert {"aten::asinh", "Asinh"} <= set(found[:3])
    assert "aten::upsample_bicubic2d" in tp.operators.find("BICUBIC")


def test_a_torch_operator_tells_its_way_to_onnx() -> None:
    asinh = tp.operators.show("asinh")
    assert isinstance(asinh, catalog.TorchOperator)
    assert asinh.name == "aten::asinh"
    assert "aten::asinh(Tensor self) -> Tensor" in asinh.schemas
    assert "torch.asinh" in asinh.calls
    (way,) = asinh.mappings
    assert (way.how, way.onnx, way.since) == ("direct", ("Asinh",), 9)
    assert way.where.endswith(tuple("0123456789"))


@pytest.mark.parametrize("name", ["aten::upsample_bicubic2d", "aten.upsample_bicubic2d.vec", "upsample_bicubic2d"])
def test_an_operator_may_be_named_as_people_do(name: str) -> None:
    found = tp.operators.show(name)
    assert isinstance(found, catalog.TorchOperator)
    assert found.name == "aten::upsample_bicubic2d"
    assert any("Resize" in m.onnx and m.since == 11 for m in found.mappings)
    assert {r for m in found.mappings for r in m.routes} == {"export", "rewrite", "script", "trace"}
    assert any("interpolate" in call for call in found.calls)


def test_an_operator_of_our_library_is_said_to_be_ours() -> None:
    found = tp.operators.show("aten::masked_select")
    assert isinstance(found, catalog.TorchOperator)
    assert found.mappings[0].where.startswith("torchport/operators/library/indexing.py:")
    assert "Compress" in found.mappings[0].onnx


def test_an_onnx_operator_tells_its_history_types_and_kernels() -> None:
    resize = tp.operators.show("Resize")
    assert isinstance(resize, onnx_catalog.OnnxOperator)
    versions = dict(resize.versions)
    assert versions[10] == "introduced"
    assert "+ attribute cubic_coeff_a" in versions[11]
    assert versions[13] == "+ types bfloat16"
    assert "float32" in resize.engines["onnxruntime"]
    assert "float64" not in resize.engines["onnxruntime"]
    assert "float64" in resize.engines["reference"]
    assert "aten::upsample_bicubic2d" in resize.torch


def test_an_unknown_operator_is_refused_with_the_closest_names() -> None:
    with pytest.raises(OptionError) as caught:
        tp.operators.show("ressize")
    assert "did you mean aten::resize, Resize" in str(caught.value)
    with pytest.raises(OptionError, match="did you mean aten::asinh, Asinh,"):
        catalog.show("asinhh")
    code, output = ops("show", "ressize")
    assert code == 2
    assert "there is no operator 'ressize'" in output


def test_what_nothing_maps_is_listed() -> None:
    missing = tp.operators.missing()
    assert "aten::hash_tensor" in missing
    assert not {"aten::asinh", "aten::add", "aten::masked_select"} & set(missing)


MODEL = """
import torch

class Good(torch.nn.Module):
    def forward(self, x):
        return torch.asinh(x).masked_select(x > 0)

class Lost(torch.nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return torch.ops.aten.hash_tensor(y)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_models_operators_are_counted_before_it_is_exported(model: Path) -> None:
    code, output = ops("coverage", f"{model}:Good", "--input", "x=float32[4,3]", "--json")
    assert code == 0
    found = json.loads(output)
    assert found["supported"]
    assert {u["operator"]: u["how"] for u in found["uses"]}["aten::asinh.default"] == "direct"


def test_an_operator_without_a_mapping_is_named_with_its_line(model: Path) -> None:
    code, output = ops("coverage", f"{model}:Lost", "--input", "x=float32[4,3]")
    assert code == 1
    assert "missing: aten::hash_tensor.default" in output
    assert "model.py:11" in output
    assert "1 of 2 do not get to ONNX" in output


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x.sin()
        return x.cos()


def test_operators_in_branches_are_counted_too() -> None:
    found = tp.operators.coverage(Branch(), (torch.randn(3),))
    assert {"aten::sin.default", "aten::cos.default"} <= {u.operator for u in found.uses}
    assert found.supported
    assert "control flow rewritten" in found.note


def test_a_composition_for_some_calls_does_not_hide_the_translation() -> None:
    """conv2d is composed only where its padding varies: of a plain call, coverage tells the translation."""
    found = tp.operators.coverage(torch.nn.Conv2d(3, 4, 3), (torch.randn(2, 3, 8, 8),))
    assert [(use.operator, use.how) for use in found.uses] == [("aten::conv2d.default", "direct")]
    assert "Conv" in found.uses[0].onnx
    ways = [m.how for m in catalog.mappings_of(torch.ops.aten.conv2d.default) if "export" in m.routes]
    assert (ways[0], ways[-1]) == ("direct", "composed")


def test_output_fits_a_terminal() -> None:
    _, output = ops("show", "Resize")
    assert max(map(len, output.splitlines())) <= 80


def test_an_operator_defined_once_is_known() -> None:
    import torch

    import torchport as tp
    from torchport.operators import definition

    @tp.operator("torchport_tests::known", schema="(Tensor a) -> Tensor")
    def known(a):  # type: ignore[no-untyped-def]
        return a + 1

    known.onnx("torchport_tests::Known")
    found = catalog.show("torchport_tests::known")
    assert isinstance(found, catalog.TorchOperator)
    assert found.mappings[0].onnx == ("torchport_tests::Known",)
    counted = tp.operators.coverage(lambda x: known(x) * 2, (torch.randn(3),))
    assert counted.supported
    definition.forget("torchport_tests::known")
