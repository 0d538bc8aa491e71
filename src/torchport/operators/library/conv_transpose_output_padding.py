"""aten::conv_transpose1d, 2d, 3d, aten::convolution with an output padding that is no smaller than the stride

    the whole result without padding, zeros after it as far as the output padding goes beyond it, cut; then the bias

PyTorch allows it if it is smaller than the dilation. ONNX Runtime does not.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from torchport.operators.composing import only_where
from torchport.operators.registering import composes


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
