"""Networks that answer with a picture of the input's size: U-Nets and others, in two and three dimensions."""

from __future__ import annotations

from registry import add, feature, image, spread
from torch import nn

FLAT = {"batch": (2, 1, 3), "height": (64, 96, 32), "width": (96, 64, 128)}
VOLUME = feature("x", "batch", 1, "depth", "height", "width")
VOLUME_SIZES = {"batch": (2, 1, 1), "depth": (32, 64, 32), "height": (64, 32, 32), "width": (32, 32, 96)}
CHANNELS = {"in_channels": 1, "out_channels": 2, "spatial_dims": 3}


@add("monai/unet", VOLUME, **VOLUME_SIZES)
def unet() -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(**CHANNELS, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)


@add(
    "monai/swin-unetr",
    {"x_in": VOLUME["x"]},
    batch=(1, 2, 1),
    depth=(64, 64, 32),
    height=(64, 32, 64),
    width=(32, 64, 64),
)
def swin_unetr() -> nn.Module:
    from monai.networks.nets import SwinUNETR

    return SwinUNETR(**CHANNELS, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))


@add("monai/swin-unetr-2d", {"x_in": feature("x", "batch", 1, "height", "width")["x"]}, **FLAT)
def swin_unetr_flat() -> nn.Module:
    from monai.networks.nets import SwinUNETR

    return SwinUNETR(
        in_channels=1, out_channels=2, spatial_dims=2, feature_size=12, depths=(2, 2, 1, 1), num_heads=(1, 2, 4, 8)
    )


@add("monai/segresnet", VOLUME, **VOLUME_SIZES)
def segresnet() -> nn.Module:
    from monai.networks.nets import SegResNet

    return SegResNet(**CHANNELS, init_filters=8, blocks_down=(1, 1, 1), blocks_up=(1, 1))


@add("monai/dynunet", VOLUME, **VOLUME_SIZES)
def dynunet() -> nn.Module:
    from monai.networks.nets import DynUNet

    settings = {"kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2), "filters": (4, 8, 8)}
    return DynUNet(**CHANNELS, **settings)


@add("monai/unetr", {"x_in": feature("x", "batch", 1, 32, 32, 32)["x"]}, batch=(2, 1, 3))
def unetr() -> nn.Module:
    from monai.networks.nets import UNETR

    small = {"feature_size": 4, "hidden_size": 24, "mlp_dim": 32, "num_heads": 2}
    return UNETR(in_channels=1, out_channels=2, img_size=(32, 32, 32), **small)


def smp(architecture: str, encoder: str = "resnet18") -> nn.Module:
    import segmentation_models_pytorch

    made = getattr(segmentation_models_pytorch, architecture)
    return made(encoder, encoder_weights=None, classes=3)


add("segmentation-models-pytorch/unet", image(), **FLAT, random=True)(lambda: smp("Unet"))
add("segmentation-models-pytorch/deeplabv3-plus", image(), **FLAT, random=True)(
    lambda: smp("DeepLabV3Plus", "mobilenet_v2")
)
add("segmentation-models-pytorch/segformer", image(), **FLAT, random=True)(lambda: smp("Segformer", "mit_b0"))
PAN = {"batch": (2, 1, 3), "height": (128, 160, 192), "width": (160, 128, 128)}
add("segmentation-models-pytorch/pan", image(), **PAN, random=True)(lambda: smp("PAN"))
add("segmentation-models-pytorch/pspnet", image(), **FLAT, random=True)(lambda: smp("PSPNet"))


@add("torchvision/deeplabv3-mobilenet", image(), batch=(2, 1, 3), height=(64, 97, 40), width=(96, 65, 128))
def deeplab() -> nn.Module:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    return spread(deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4), "linear")
