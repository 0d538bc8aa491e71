"""`torchvision::deform_conv2d` in plain PyTorch, under torchvision's schema, for machines without its binary."""

import contextlib

import torch
from torch import Tensor

with contextlib.suppress(ImportError, RuntimeError):  # not installed, or built for another torch
    import torchvision  # noqa: F401 - before the operator is looked for: imported later it would define it twice

SCHEMA = (
    "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, int stride_h, int stride_w, int pad_h, "
    "int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups, bool use_mask) -> Tensor"
)


def deform_conv2d(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor,
    stride_h: int, stride_w: int, pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
    groups: int, offset_groups: int, use_mask: bool,
) -> Tensor:  # fmt: skip
    """A convolution that looks at places moved by `offset`: sampled between pixels, zero outside of the picture."""
    n, c, h, w = input.shape
    out_c, _, kh, kw = weight.shape
    out_h, out_w = offset.shape[2:]
    moved = offset.reshape(n, offset_groups, kh * kw, 2, out_h, out_w)
    rows = torch.arange(out_h).view(1, out_h, 1) * stride_h - pad_h
    columns = torch.arange(out_w).view(1, 1, out_w) * stride_w - pad_w
    taps_y = (torch.arange(kh) * dilation_h).repeat_interleave(kw).view(-1, 1, 1)
    taps_x = (torch.arange(kw) * dilation_w).repeat(kh).view(-1, 1, 1)
    y = moved[:, :, :, 0] + (rows + taps_y)
    x = moved[:, :, :, 1] + (columns + taps_x)
    sampled = _between(input.reshape(n, offset_groups, c // offset_groups, h * w), y, x, h, w)
    if use_mask:
        sampled = sampled * mask.reshape(n, offset_groups, 1, kh * kw, out_h, out_w)
    sampled = sampled.reshape(n, groups, (c // groups) * kh * kw, out_h * out_w)
    weights = weight.reshape(1, groups, out_c // groups, -1)
    return (weights @ sampled).reshape(n, out_c, out_h, out_w) + bias.view(1, -1, 1, 1)


def _between(flat: Tensor, y: Tensor, x: Tensor, h: int, w: int) -> Tensor:
    """Values at fractional places, for every channel of the group."""
    top, left = y.floor(), x.floor()
    total = torch.zeros(())
    for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = top + dy, left + dx
        share = (1 - (y - row).abs()) * (1 - (x - column).abs())
        inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        place = row.clamp(0, h - 1).long() * w + column.clamp(0, w - 1).long()
        n, g, k, oh, ow = place.shape
        index = place.reshape(n, g, 1, -1).expand(-1, -1, flat.shape[2], -1)
        value = flat.gather(3, index).reshape(n, g, flat.shape[2], k, oh, ow)
        total = total + value * (share * inside).unsqueeze(2)
    return total


if not hasattr(torch.ops.torchvision, "deform_conv2d"):
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define(f"deform_conv2d{SCHEMA}")
    library.impl("deform_conv2d", deform_conv2d, "CompositeExplicitAutograd")

    @torch.library.register_fake("torchvision::deform_conv2d", lib=library)
    def _(input, weight, offset, *rest):
        return input.new_empty(input.shape[0], weight.shape[0], offset.shape[2], offset.shape[3])


class Net(torch.nn.Module):
    """The notes' model: a convolution gives the offsets of a deformable one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 18, 3)
        self.weight = torch.nn.Parameter(torch.randn(3, 3, 3, 3) * 0.3)
        self.bias = torch.nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        offset = self.conv1(x)
        mask = x.new_zeros(x.shape[0], 1)  # not used; torchvision wants one row for each picture
        arguments = (x, self.weight, offset, mask, self.bias, 1, 1, 0, 0, 1, 1, 1, 1, False)
        result: Tensor = torch.ops.torchvision.deform_conv2d(*arguments)
        return result


def example_inputs() -> tuple[Tensor]:
    return (torch.rand(1, 3, 10, 10),)
