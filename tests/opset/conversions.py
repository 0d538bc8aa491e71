"""Models in onnx's text form, run before and after they are given another opset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from torchport.opset import convert

Arrays = list[np.ndarray[Any, Any]]


ort.set_default_logger_severity(4)


def parse(body: str, version: int, ir_version: int = 8) -> ir.Model:
    """A model from onnx's text form, its types inferred by nobody yet."""
    head = f'<ir_version: {ir_version}, opset_import: ["" : {version}]>\n'
    return ir.from_proto(onnx.parser.parse_model(head + body))


def session(model: ir.Model | onnx.ModelProto) -> ort.InferenceSession:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: ir.Model | onnx.ModelProto, feeds: dict[str, Any]) -> Arrays:
    return list(session(model).run(None, feeds))


def assert_same(got: Sequence[Any], want: Sequence[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def check_conversion(model: ir.Model, feeds: dict[str, Any], targets: Sequence[int], **limits: float) -> None:
    """Each target gives a valid model of exactly that opset, and the same numbers."""
    before = ir.to_proto(model).SerializeToString()
    want = run(model, feeds)
    for target in targets:
        converted = convert.convert(model, target)
        proto = ir.to_proto(converted)
        assert {o.domain: o.version for o in proto.opset_import}[""] == target
        onnx.checker.check_model(proto, full_check=True)
        assert_same(run(proto, feeds), want, **limits)
    assert ir.to_proto(model).SerializeToString() == before


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SPECIAL = np.array([-np.inf, -2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.4999, np.nan, np.inf], dtype=np.float32)
