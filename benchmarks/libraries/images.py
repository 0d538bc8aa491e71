"""Encoders of pictures, restoration, text in pictures, optical flow."""

from __future__ import annotations

from typing import Any

from registry import add, feature, image
from spec import Input, Several
from torch import Tensor, nn

BATCH = {"batch": (2, 1, 3)}
SQUARE = {"height": 32, "width": 32}
FREE = {"batch": (2, 1, 3), "height": (32, 40, 24), "width": (40, 24, 56)}


@add("spandrel/swinir", image(), **{**FREE, "height": (16, 24, 20), "width": (16, 12, 32)})
def swinir() -> nn.Module:
    from spandrel.architectures.SwinIR import SwinIR

    return SwinIR(
        img_size=16, window_size=4, depths=[2, 2], embed_dim=12, num_heads=[2, 2], upscale=2, upsampler="pixelshuffle"
    )


@add("spandrel/rrdbnet", image(), **FREE)
def rrdbnet() -> nn.Module:
    from spandrel.architectures.ESRGAN import ESRGAN

    return ESRGAN(num_filters=8, num_blocks=1, scale=2)


@add("spandrel/hat", image(), batch=(1, 2, 1), height=(16, 24, 32), width=(16, 16, 24))
def hat() -> nn.Module:
    from spandrel.architectures.HAT import HAT

    return HAT(img_size=16, window_size=8, depths=[2], embed_dim=12, num_heads=[2], upscale=2, squeeze_factor=4)


@add("spandrel/nafnet", {"inp": image()["x"]}, **FREE)
def nafnet() -> nn.Module:
    from spandrel.architectures.NAFNet import NAFNet

    return NAFNet(width=8, middle_blk_num=1, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1])


@add("spandrel/dat", image(), batch=(1, 2, 1), height=(16, 24, 32), width=(16, 16, 24))
def dat() -> nn.Module:
    from spandrel.architectures.DAT import DAT

    return DAT(img_size=16, split_size=[4, 8], depth=[2], embed_dim=32, num_heads=[2], upscale=2)


VIT: dict[str, Any] = {"num_classes": 5, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32}


@add("vit-pytorch/simple-vit", image("img"), batch=(2, 1, 3), height=(32, 48, 24), width=(48, 24, 56))
def simple_vit() -> nn.Module:
    """Its position embeddings are computed from the grid of patches."""
    from vit_pytorch.simple_vit import SimpleViT, posemb_sincos_2d

    class AnySize(SimpleViT):
        def forward(self, img: Tensor) -> Tensor:
            rows, columns = img.shape[-2] // 8, img.shape[-1] // 8
            x = self.to_patch_embedding(img)
            x = x + posemb_sincos_2d(rows, columns, x.shape[-1]).to(x.device)
            return self.linear_head(self.to_latent(self.transformer(x).mean(dim=1)))

    return AnySize(image_size=32, patch_size=8, **VIT)


@add("vit-pytorch/max-vit", image("x", height=64, width=64), **BATCH)
def max_vit() -> nn.Module:
    from vit_pytorch.max_vit import MaxViT

    return MaxViT(num_classes=5, dim=8, depth=(1, 1), dim_head=4, window_size=4)


@add("vit-pytorch/cct", image("x", height=32, width=32), **BATCH)
def cct() -> nn.Module:
    from vit_pytorch.cct import CCT

    return CCT(img_size=32, embedding_dim=16, n_conv_layers=1, num_layers=2, num_heads=2, mlp_ratio=2, num_classes=5)


@add("vit-pytorch/twins-svt", image("x"), batch=(2, 1, 3), height=(64, 128, 64), width=(64, 64, 128))
def twins() -> nn.Module:
    from vit_pytorch.twins_svt import TwinsSVT

    stages = {f"s{i}_{k}": v for i in range(1, 5) for k, v in {"emb_dim": 8, "depth": 1, "global_k": 2}.items()}
    patches = {f"s{i}_patch_size": 2 for i in range(1, 5)} | {f"s{i}_local_patch_size": 2 for i in range(1, 4)}
    patches["s4_local_patch_size"] = 1
    return TwinsSVT(num_classes=5, **stages, **patches)


@add(
    "open_clip_torch/clip",
    {"image": image(**SQUARE)["x"], "text": Input(("batch", 12), high=99)},
    **BATCH,
)
def clip() -> nn.Module:
    from open_clip.model import CLIP

    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
    text = {"context_length": 12, "vocab_size": 99, "width": 32, "heads": 2, "layers": 2}
    return CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)


@add("facenet-pytorch/inception-resnet", image("x", height=96, width=96), **BATCH, random=True)
def facenet() -> nn.Module:
    from facenet_pytorch import InceptionResnetV1

    return InceptionResnetV1(pretrained=None)


@add("efficientnet-pytorch/b0", image("inputs"), batch=(2, 1, 3), height=(64, 96, 80), width=(64, 80, 112), random=True)
def efficientnet() -> nn.Module:
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-b0", num_classes=5)


@add("perceiver-pytorch/perceiver", {"data": Input(("batch", "height", "width", 3))}, **FREE)
def perceiver() -> nn.Module:
    from perceiver_pytorch import Perceiver

    small = {"num_latents": 8, "latent_dim": 16, "latent_heads": 2, "latent_dim_head": 8, "cross_dim_head": 8}
    return Perceiver(input_channels=3, num_freq_bands=4, max_freq=8.0, depth=2, num_classes=5, **small)


@add(
    "perceiver-pytorch/perceiver-io",
    {**feature("data", "batch", "length", 16), "queries": Input((4, 16))},
    batch=(2, 1, 3),
    length=(20, 33, 7),
)
def perceiver_io() -> nn.Module:
    from perceiver_pytorch import PerceiverIO

    small = {"num_latents": 8, "latent_dim": 16, "latent_heads": 2, "latent_dim_head": 8, "cross_dim_head": 8}
    return PerceiverIO(dim=16, queries_dim=16, depth=2, logits_dim=5, **small)


@add("python-doctr/db-mobilenet", image(), batch=(2, 1, 3), height=(64, 96, 128), width=(96, 64, 128), random=True)
def text_detection() -> nn.Module:
    from doctr.models.detection import db_mobilenet_v3_large

    return db_mobilenet_v3_large(pretrained=False, pretrained_backbone=False, exportable=True)


@add("python-doctr/crnn", image(height=32, width="width"), batch=(2, 1, 3), width=(128, 64, 160), random=True)
def text_recognition() -> nn.Module:
    from doctr.models.recognition import crnn_mobilenet_v3_small

    return crnn_mobilenet_v3_small(pretrained=False, pretrained_backbone=False, exportable=True)


@add("python-doctr/parseq", image(height=32, width=128), **BATCH)
def parseq() -> nn.Module:
    from doctr.models.recognition import parseq as build

    return build(pretrained=False, pretrained_backbone=False, exportable=True)


FLOW = {"height": (128, 136, 160), "width": (160, 128, 136)}


@add(
    "torchvision/raft",
    {"image1": image()["x"], "image2": image()["x"]},
    batch=(2, 1, 1),
    **FLOW,
    fixed={"num_flow_updates": 2},
)
def raft() -> nn.Module:
    from torchvision.models.optical_flow import raft_small

    return raft_small(weights=None)


@add("torchvision/swin", image(), batch=(2, 1, 3), height=(64, 80, 56), width=(96, 64, 72))
def swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], embed_dim=12, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=5)


@add(
    "torchvision/swin3d",
    feature("x", "batch", 3, "frames", "height", "width"),
    batch=(2, 1, 1),
    frames=(8, 6, 10),
    height=(32, 48, 40),
    width=(48, 32, 56),
)
def swin_video() -> nn.Module:
    from torchvision.models.video import SwinTransformer3d

    return SwinTransformer3d(
        patch_size=[2, 4, 4], embed_dim=12, depths=[2, 1], num_heads=[2, 4], window_size=[2, 4, 4], num_classes=5
    )


@add(
    "torchvision/resnet3d",
    feature("x", "batch", 3, "frames", "height", "width"),
    batch=(2, 1, 1),
    frames=(8, 6, 10),
    height=(32, 48, 40),
    width=(48, 32, 56),
    random=True,
)
def resnet_video() -> nn.Module:
    from torchvision.models.video import r3d_18

    return r3d_18(weights=None, num_classes=5)


def boxes(shape: list[int], generator: Any) -> Any:
    """Corners inside a picture of 16 by 16, the first above and left of the second."""
    import torch

    return 16 * torch.rand(shape, generator=generator).sort(dim=-1).values


@add(
    "torchvision/roi-align",
    {"input": feature("x", 1, 4, "height", "width")["x"], "rois": Several({"0": Input(("boxes", 4), make=boxes)})},
    height=(24, 32, 20),
    width=(32, 24, 40),
    boxes=(3, 1, 7),
)
def roi_align() -> nn.Module:
    from torchvision.ops import RoIAlign

    return RoIAlign(4, 1.0, 2)
