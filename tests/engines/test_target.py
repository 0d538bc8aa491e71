"""An export is prepared for its target engine, proven in it, and lists the workarounds in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import torchport as tp
from torchport.errors import EngineError, EngineMissingError

KEY = "torchport.workarounds"


def pooled(x: Tensor) -> Tensor:
    return functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 2)


def scaled(x: Tensor) -> Tensor:
    return x.exp() * 2


PICTURE = (torch.randn(1, 2, 5, 5),)


def kinds(exported: tp.Exported) -> list[str]:
    return [node.op_type for node in exported.model.graph if node.op_type != "Constant"]


@pytest.fixture(scope="module")
def for_onnxruntime(tmp_path_factory: pytest.TempPathFactory) -> tp.Exported:
    return tp.export(pooled, PICTURE, route="export", output=tmp_path_factory.mktemp("target") / "pooled.onnx")


def test_the_saved_file_lists_its_workarounds(for_onnxruntime: tp.Exported) -> None:
    assert kinds(for_onnxruntime) == ["Pad", "Max", "MaxPool"]
    saved = tp.graph.load(str(for_onnxruntime.path))
    assert json.loads(saved.metadata_props[KEY]) == {"onnxruntime": {"pad-kept-from-pool": 1}}
    assert [n.op_type for n in saved.graph] == [n.op_type for n in for_onnxruntime.model.graph]


def test_a_model_without_workarounds_lists_none() -> None:
    assert KEY not in tp.export(scaled, (torch.randn(3),), route="export").model.metadata_props


def test_without_a_target_the_plain_graph_is_proven_and_saved(tmp_path: Path) -> None:
    plain = tp.export(lambda x: functional.max_pool2d(x.relu(), 2), PICTURE, route="export", target=None)
    assert plain.proof.engine == "onnxruntime"
    with pytest.raises(tp.ProofError):  # the fault that the workaround is for
        tp.export(pooled, (-1 - torch.rand(1, 2, 5, 5),), route="export", target=None, output=tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_another_target_proves_the_model_in_itself() -> None:
    exported = tp.export(pooled, PICTURE, route="export", target="reference")
    assert kinds(exported) == ["Pad", "MaxPool"]
    assert exported.proof.engine == "reference"
    assert KEY not in exported.model.metadata_props


def test_a_plain_graph_without_kernels_is_refused() -> None:
    x = torch.randn(3).bfloat16()
    with pytest.raises(EngineError, match="cannot run the model"):
        tp.export(scaled, (x,), route="export", target=None)
    kept = tp.export(scaled, (x,), route="export")
    assert json.loads(kept.model.metadata_props[KEY]) == {"onnxruntime": {"bfloat16-computed-in-float32": 2}}


def test_a_target_that_is_not_here_is_refused_first() -> None:
    with pytest.raises(EngineMissingError, match="there is no engine 'warp' here"):
        tp.export(scaled, (torch.randn(3),), target="warp")
