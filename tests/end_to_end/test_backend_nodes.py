"""Every model of ONNX's own backend tests survives: loading, saving, describing, linting and a cut of all of it.

What the cut gives is run beside the untouched model, wherever ONNX Runtime runs that.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import FunctionProto, GraphProto, ModelProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

import torchport as tp
from torchport.irtools.serialization import proto_scopes

KINDS = ("node", "simple")


@dataclasses.dataclass(frozen=True)
class _Case:
    name: str
    model: ModelProto
    inputs: list[Any]


def _cases() -> Iterator[_Case]:
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            if case.model is None:
                yield _Case(case.name, onnx.load(Path(case.model_dir) / "model.onnx"), [])
            else:
                yield _Case(case.name, case.model, list(case.data_sets[0][0]))


@pytest.mark.filterwarnings("ignore")  # numpy's, about the examples the cases are made of
def test_every_model_survives_all_verbs_with_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # thousands of flushes, which are not in question here
    problems: list[str] = []
    count = ran = 0
    for case in _cases():
        count += 1
        try:
            ran += _survives(case, tmp_path)
        except Exception as error:  # noqa: BLE001 - all of them are listed
            problems.append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    assert not problems, f"{len(problems)} of {count}:\n" + "\n".join(problems)
    print(f"{count} models, of which ONNX Runtime runs {ran}")
    assert count > 1800
    assert ran > 1300


def _survives(case: _Case, folder: Path) -> bool:
    """Whether ONNX Runtime ran it; raises if something was lost."""
    source, saved, part = (folder / f"{name}.onnx" for name in ("source", "saved", "part"))
    source.write_bytes(case.model.SerializeToString())
    tp.graph.save(tp.graph.load(source), saved)
    assert _plain(saved) == _plain(source), "saving changed it"
    assert tp.graph.describe(source).nodes == sum(len(scope.node) for scope in _scopes(case.model))
    faults = [str(fault) for fault in tp.graph.lint(source) if fault.severity == "error"]
    assert not faults, faults
    tp.graph.save(tp.graph.cut(source), part)
    return _same_answers(source, part, case.inputs)


def _scopes(model: ModelProto) -> list[GraphProto | FunctionProto]:
    return list(proto_scopes(model.graph, *model.functions))


def _plain(path: Path) -> ModelProto:
    """The model without what means the same in two spellings."""
    model = onnx.load(path)
    for scope in _scopes(model):
        for node in scope.node:
            if not node.domain:
                node.ClearField("domain")
        for tensor in scope.initializer if isinstance(scope, GraphProto) else ():
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
        if scope is not model.graph and isinstance(scope, GraphProto):
            del scope.value_info[:]  # the types of a branch's outputs are stated there as well
    return model


def _same_answers(source: Path, part: Path, inputs: list[Any]) -> bool:
    """Whether both gave the same; False where ONNX Runtime does not run the untouched model."""
    try:
        expected = _run(source, inputs)
    except Exception:  # noqa: BLE001 - what it does not run is no question here
        return False
    found = _run(part, inputs)
    if not _equal(found, expected):
        assert not _equal(_run(source, inputs), expected), "other answers"  # else it is random by itself
    return True


def _run(path: Path, inputs: list[Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    feeds = {i.name: given for i, given in zip(session.get_inputs(), inputs, strict=False)}
    answers: list[Any] = session.run(None, feeds)
    return answers


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(_equal, found, expected))
    if not isinstance(expected, np.ndarray):
        return bool(found == expected)
    exact = expected.dtype.kind not in "fc"
    return found.dtype == expected.dtype and np.array_equal(found, expected, equal_nan=not exact)
