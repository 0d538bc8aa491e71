"""Boxes and the regions of an image that they cut out: torchvision's nms, roi_align, roi_pool and ps_roi_align.

torch's exporter has translations of three of them while torchvision can be imported, torchvision has symbolics. Both
differ from PyTorch where a box has its corners the wrong way round, and torch's of roi_pool takes other arguments.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.composition import only_where
from torchport.operators.registration import composes, replaces, translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_ALL = 2**63 - 1


# torchvision::nms
#
# ONNX's NonMaxSuppression puts the corners of a box in order, PyTorch does not: there such a box overlaps with none.
# One whose second corner is moved to the first has no area, and overlaps with none either.


@translates("torchvision::nms.default")
def nms(dets: Any, scores: Any, iou_threshold: float) -> Any:
    boxes = op.Cast(dets, to=ir.DataType.FLOAT)
    low = op.Slice(boxes, [0], [2], [1])
    high = op.Max(op.Slice(boxes, [2], [4], [1]), low)
    found = op.NonMaxSuppression(
        op.Unsqueeze(op.Concat(low, high, axis=1), [0]),
        op.Unsqueeze(op.Cast(scores, to=ir.DataType.FLOAT), [0, 1]),
        op.Constant(value=ir.tensor([_ALL])),
        op.Constant(value=ir.tensor([iou_threshold], dtype=ir.DataType.FLOAT)),
    )
    return op.Reshape(op.Slice(found, [2], [3], [1]), [-1])


# torchvision::roi_align, torchvision::roi_pool: rows of the image's number and the box. A sampling ratio of zero or
# less takes as many samples as fit, in ONNX zero does.


@translates("torchvision::roi_align.default")
def roi_align(
    input: Any,
    rois: Any,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    images = op.Cast(op.Squeeze(op.Slice(rois, [0], [1], [1]), [1]), to=ir.DataType.INT64)
    return op.RoiAlign(
        input,
        op.Slice(rois, [1], [5], [1]),
        images,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        spatial_scale=spatial_scale,
        output_height=pooled_height,
        output_width=pooled_width,
        sampling_ratio=max(sampling_ratio, 0),
    )


# A scale that is computed from sizes, as a pyramid of features finds its own: the boxes are scaled as by the operator.


@replaces("torch.ops.torchvision.roi_align")
@only_where(lambda input, rois, spatial_scale, *_, **__: not isinstance(spatial_scale, (int, float)))
def roi_align_by_scale(input: Any, rois: Any, spatial_scale: Any, *others: Any, **named: Any) -> Any:
    scaled = torch.cat([rois[:, :1], rois[:, 1:] * spatial_scale], 1)
    return torch.ops.torchvision.roi_align(input, scaled, 1.0, *others, **named)


@translates("torchvision::roi_pool.default")
def roi_pool(input: Any, rois: Any, spatial_scale: float, pooled_height: int, pooled_width: int) -> Any:
    """The second output, the places of the largest numbers, is for gradients."""
    pooled = op.MaxRoiPool(input, rois, pooled_shape=[pooled_height, pooled_width], spatial_scale=spatial_scale)
    return pooled, pooled


# torchvision::ps_roi_align: every bin has channels of its own,
#
#     output[k, c, i, j] = aligned[k, (c · height + i) · width + j, i, j]


@composes("torchvision::ps_roi_align.default")
def ps_roi_align(
    input: Any, rois: Any, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> Any:
    size = (pooled_height, pooled_width)
    aligned = torch.ops.torchvision.roi_align(input, rois, spatial_scale, *size, sampling_ratio, True)
    bins = aligned.reshape(rois.shape[0], input.shape[1] // (size[0] * size[1]), *size, *size)
    own = bins.diagonal(dim1=2, dim2=4).diagonal(dim1=2, dim2=3)
    return own, torch.zeros_like(own, dtype=torch.int32)
