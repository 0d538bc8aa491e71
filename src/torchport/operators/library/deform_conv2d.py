"""torchvision::deform_conv2d as ONNX's DeformConv, which came in opset 19.

torch's exporter has this mapping only while torchvision can be imported; the operator may be there without it, from a
library of the user's with torchvision's schema. Source of truth: DeformConv's specification, and PyTorch's answers.
"""

from __future__ import annotations

from typing import Any

from onnxscript import evaluator, opset19 as op

from torchport.errors import OpsetError
from torchport.operators.registering import translates

_FIRST = 19


@translates("torchvision::deform_conv2d.default")
def deform_conv2d(
    input: Any,
    weight: Any,
    offset: Any,
    mask: Any,
    bias: Any,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Any:
    opset = evaluator.default().opset.version  # type: ignore[attr-defined]
    if opset < _FIRST:
        raise OpsetError(
            f"torchvision::deform_conv2d is DeformConv in ONNX, which came in opset {_FIRST}",
            blockers=[f"DeformConv (from opset {_FIRST})"],
            nearest=_FIRST,
            next_step=f'use opset {_FIRST}, or give a node of your own with @tp.symbolic("torchvision::deform_conv2d")',
        )
    return op.DeformConv(
        input,
        weight,
        offset,
        bias,
        mask if use_mask else None,
        dilations=[dilation_h, dilation_w],
        group=groups,
        offset_group=offset_groups,
        pads=[pad_h, pad_w, pad_h, pad_w],
        strides=[stride_h, stride_w],
    )
