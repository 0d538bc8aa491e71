"""Operations on pictures, losses and metrics that users export by themselves or before a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from registry import add, image
from spec import Input
from torch import Tensor, nn

FREE = {"batch": (2, 1, 3), "height": (32, 41, 24), "width": (40, 24, 57)}


class Call(nn.Module):
    """A function of a library as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def near_identity(shape: list[int], generator: Any) -> Any:
    """Homographies as an estimate of them would be."""
    import torch

    return torch.eye(shape[1])[: shape[1]].repeat(shape[0], 1, 1) + 0.02 * torch.rand(shape, generator=generator)


def gray_levels(shape: list[int], generator: Any) -> Any:
    """Pictures of 256 levels, each in the middle of its bin: a histogram does not depend on rounding then."""
    import torch

    return (torch.randint(0, 256, shape, generator=generator) + 0.5) / 256


@add("kornia/warp-perspective", {**image(), "homography": Input(("batch", 3, 3), make=near_identity)}, **FREE)
def warp_perspective() -> nn.Module:
    from kornia.geometry import warp_perspective

    class Warp(nn.Module):
        def forward(self, x: Tensor, homography: Tensor) -> Tensor:
            return warp_perspective(x, homography, (x.shape[-2], x.shape[-1]))

    return Warp()


@add("kornia/warp-affine", {**image(), "angle": Input(("batch",), between=(-20.0, 20.0))}, **FREE)
def rotate() -> nn.Module:
    from kornia.geometry import rotate

    class Rotate(nn.Module):
        def forward(self, x: Tensor, angle: Tensor) -> Tensor:
            return rotate(x, angle)

    return Rotate()


@add("kornia/canny", image("input"), **FREE)
def canny() -> nn.Module:
    from kornia.filters import Canny

    return Canny(hysteresis=False)


@add(
    "kornia/clahe",
    {"x": Input(("batch", 3, "height", "width"), make=gray_levels)},
    batch=(2, 1, 3),
    height=(32, 48, 64),
    width=(48, 32, 64),
)
def clahe() -> nn.Module:
    from kornia.enhance import equalize_clahe

    return Call(lambda x: equalize_clahe(x, grid_size=(4, 4)))


@add("kornia/lab", image("image"), **FREE)
def lab() -> nn.Module:
    from kornia.color import RgbToLab

    return RgbToLab()


@add(
    "kornia/normalize-keypoints",
    {"x": Input(("batch", "points", 2), between=(0.0, 30.0))},
    batch=(2, 1, 3),
    points=(5, 9, 1),
)
def homography() -> nn.Module:
    from kornia.geometry.conversions import convert_points_to_homogeneous, normalize_pixel_coordinates

    return Call(lambda x: convert_points_to_homogeneous(normalize_pixel_coordinates(x, 32, 40)))


@add("kornia/hardnet", {"input": Input(("patches", 1, 32, 32), between=(0.0, 1.0))}, patches=(4, 1, 7), random=True)
def hardnet() -> nn.Module:
    from kornia.feature import HardNet

    return HardNet(pretrained=False)


@add("kornia/disk", {"images": image()["x"]}, batch=(2, 1, 3), height=(64, 96, 80), width=(80, 64, 112))
def disk() -> nn.Module:
    """The heat map and the descriptors, before the keypoints are picked."""
    from kornia.feature import DISK

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.disk = DISK(desc_dim=16)

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return self.disk.heatmap_and_dense_descriptors(images)

    return Dense()


@add("kornia/harris", image("input", channels=1), **FREE)
def harris() -> nn.Module:
    from kornia.feature import CornerHarris

    return CornerHarris(0.04)


PAIR = {"x": image()["x"], "y": image()["x"]}


@add("pytorch-msssim/ssim", {"X": PAIR["x"], "Y": PAIR["y"]}, **FREE)
def ssim() -> nn.Module:
    from pytorch_msssim import SSIM

    return SSIM(data_range=1.0, size_average=False)


@add(
    "pytorch-msssim/ms-ssim",
    {"X": PAIR["x"], "Y": PAIR["y"]},
    batch=(2, 1, 3),
    height=(192, 208, 176),
    width=(176, 192, 201),
)
def ms_ssim() -> nn.Module:
    from pytorch_msssim import MS_SSIM

    return MS_SSIM(data_range=1.0, size_average=False)


@add(
    "lpips/alex",
    {"in0": PAIR["x"], "in1": PAIR["y"]},
    batch=(2, 1, 3),
    height=(64, 81, 96),
    width=(80, 64, 97),
    random=True,
)
def perceptual() -> nn.Module:
    import lpips

    return lpips.LPIPS(net="alex", pretrained=False, pnet_rand=True, verbose=False)


@add("piqa/gmsd", PAIR, **FREE)
def gmsd() -> nn.Module:
    from piqa import GMSD

    return GMSD(reduction="none")


@add("torchmetrics/psnr", {"preds": PAIR["x"], "target": PAIR["y"]}, **FREE)
def psnr() -> nn.Module:
    from torchmetrics.functional.image import peak_signal_noise_ratio

    class Metric(nn.Module):
        def forward(self, preds: Tensor, target: Tensor) -> Tensor:
            return peak_signal_noise_ratio(preds, target, data_range=1.0)

    return Metric()


@add(
    "kornia/focal-loss",
    {"pred": Input(("batch", 4, "height", "width")), "target": Input(("batch", "height", "width"), high=4)},
    **FREE,
)
def focal() -> nn.Module:
    from kornia.losses import FocalLoss

    return FocalLoss(alpha=0.5, gamma=2.0, reduction="mean")


@add(
    "monai/dice-loss",
    {"input": Input(("batch", 3, "height", "width")), "target": Input(("batch", 1, "height", "width"), high=3)},
    **FREE,
)
def dice() -> nn.Module:
    from monai.losses import DiceLoss

    return DiceLoss(to_onehot_y=True, softmax=True)
