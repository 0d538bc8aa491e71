"""Transposed convolutions with a large output padding, gradients, deformable convolution, im2col of an empty batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import evaluator, opset19 as op
from torch.nn import functional

from torchport.errors import OpsetError
from torchport.operators.composition import only_where
from torchport.operators.registration import composes, translates

# aten::conv_transpose1d, 2d, 3d, aten::convolution with an output padding that is no smaller than the stride
#
#     the whole result without padding, zeros after it as far as the output padding goes beyond it, cut; then the bias
#
# PyTorch allows it if it is smaller than the dilation. ONNX Runtime does not.
#
# Source of truth: PyTorch's answers.


def _beyond(stride: Sequence[int], output_padding: Sequence[int], axes: int) -> bool:
    return any(p >= s for s, p in zip(_each(stride, axes), _each(output_padding, axes), strict=True))


def _each(given: Sequence[int], axes: int) -> list[int]:
    return list(given) * (axes // len(given))


def conv_transpose(axes: int) -> Callable[..., Any]:
    """The composition for so many axes."""

    def applies(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,),
        padding: Any = (0,),
        output_padding: Any = (0,),
        groups: int = 1,
        dilation: Any = (1,),
    ) -> bool:
        return _beyond(stride, output_padding, axes)

    @only_where(applies)
    def composition(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,),
        padding: Any = (0,),
        output_padding: Any = (0,),
        groups: int = 1,
        dilation: Any = (1,),
    ) -> Any:
        return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)

    return composition


@composes("aten::convolution.default")
@only_where(
    lambda input, weight, bias, stride, padding, dilation, transposed, output_padding, groups: (
        transposed and _beyond(stride, output_padding, weight.dim() - 2)
    )
)
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)


# aten::conv1d, 2d, 3d with a padding that varies
#
#     zeros around the input, and the convolution without padding
#
# The padding is an attribute in ONNX, which has to be a number.


def _is_open_padding(input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, *_: Any) -> bool:
    return isinstance(padding, (list, tuple)) and any(isinstance(p, torch.SymInt) for p in padding)


@composes("aten::conv1d.default", "aten::conv2d.default", "aten::conv3d.default")
@only_where(_is_open_padding)
def conv(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    dilation: Any = (1,),
    groups: int = 1,
) -> Any:
    axes = weight.dim() - 2
    around = [amount for amount in reversed(_each(padding, axes)) for _ in range(2)]
    convolve = getattr(torch.ops.aten, f"conv{axes}d")
    steps = (_each(stride, axes), [0] * axes, _each(dilation, axes))
    return convolve(functional.pad(input, around), weight, bias, *steps, groups)


# aten::convolution_backward
#
#     by the input: the transposed convolution of the output's gradient, cut to the input's size; of a transposed one
#     the convolution. By the bias: the sum of the output's gradient.
#
# A stride may leave numbers at the end of the input untouched, up to a step less one: zeros.


@composes("aten::convolution_backward.default")
def convolution_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    if output_mask[1]:
        raise NotImplementedError("a gradient by the weights of a convolution has no translation")
    axes = weight.dim() - 2
    by_bias = grad_output.sum([0, *range(2, axes + 2)]) if output_mask[2] else None
    if not output_mask[0]:
        return None, None, by_bias
    if transposed:
        plain = (*(_each(part, axes) for part in (stride, padding, dilation)), False, [0] * axes, groups)
        return torch.ops.aten.convolution(grad_output, weight, None, *plain), None, by_bias
    steps = _each(stride, axes)
    whole = (steps, [0] * axes, _each(dilation, axes), True, [0] * axes, groups)
    found = torch.ops.aten.convolution(grad_output, weight, None, *whole)
    found = functional.pad(found, [end for step in reversed(steps) for end in (0, step - 1)])
    for axis, pad in enumerate(_each(padding, axes), start=2):
        found = found.narrow(axis, pad, input.shape[axis])
    return found, None, by_bias


def _transposed(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> Any:
    axes = weight.dim() - 2
    plain: Any = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[axes - 1]
    y = plain(input, weight, None, _each(stride, axes), 0, 0, groups, _each(dilation, axes))
    for axis, (cut, more) in enumerate(zip(_each(padding, axes), _each(output_padding, axes), strict=True)):
        place = y.dim() - axes + axis
        size = y.shape[place] - 2 * cut + more
        if more > cut:
            zeros = y.new_zeros([more - cut if a == place else n for a, n in enumerate(y.shape)])
            y = torch.cat([y, zeros], place)
        y = y.narrow(place, cut, size)
    return y if bias is None else y + bias.reshape(-1, *[1] * axes)


composes("aten::conv_transpose1d.default")(conv_transpose(1))
composes("aten::conv_transpose2d.input")(conv_transpose(2))
composes("aten::conv_transpose3d.input")(conv_transpose(3))


# torchvision::deform_conv2d as ONNX's DeformConv, which came in opset 19.
#
# torch's exporter has this mapping only while torchvision can be imported; the operator may be there without it, from a
# library of the user's with torchvision's schema. Source of truth: DeformConv's specification, and PyTorch's answers.

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


# aten::im2col of a batch of none
#
#     output = nothing, in the shape of what there would be
#
# Torch's translation ends in a Reshape with a size left open, which ONNX does not allow where another one is zero.
#
# Source of truth: PyTorch's answers.


@composes("aten::im2col.default")
@only_where(
    lambda self, kernel_size, dilation, padding, stride: (
        self.dim() == 4 and isinstance(self.shape[0], int) and self.shape[0] == 0
    )
)
def im2col(
    self: Any, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    each = zip(self.shape[-2:], kernel_size, dilation, padding, stride, strict=True)
    windows = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, d, p, s in each]
    return self.new_zeros((0, self.shape[1] * math.prod(kernel_size), math.prod(windows)))
