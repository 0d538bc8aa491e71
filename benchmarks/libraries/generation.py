"""Diffusion networks, autoencoders and flows."""

from __future__ import annotations

from typing import Any

from registry import add, feature, image
from spec import Input
from torch import Tensor, nn

STEP = {"timestep": Input(("batch",), high=1000)}
LATENT = {"batch": (2, 1, 3), "height": (16, 24, 8), "width": (24, 16, 32)}
BLOCKS: dict[str, Any] = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
NO_DICT = {"return_dict": False}


@add("diffusers/unet", {**image("sample"), **STEP}, **LATENT, fixed=NO_DICT)
def unet() -> nn.Module:
    from diffusers import UNet2DModel

    types = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return UNet2DModel(sample_size=16, **BLOCKS, **types, attention_head_dim=4)


@add(
    "diffusers/unet-condition",
    {
        **feature("sample", "batch", 4, "height", "width"),
        **STEP,
        "encoder_hidden_states": Input(("batch", "length", 16)),
    },
    **LATENT,
    length=(7, 5, 11),
    fixed=NO_DICT,
)
def unet_condition() -> nn.Module:
    from diffusers import UNet2DConditionModel

    types = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    return UNet2DConditionModel(sample_size=16, **BLOCKS, **types, cross_attention_dim=16, attention_head_dim=2)


@add("denoising-diffusion-pytorch/unet", {**image(), "time": STEP["timestep"]}, **LATENT)
def ddpm_unet() -> nn.Module:
    from denoising_diffusion_pytorch import Unet

    return Unet(dim=8, dim_mults=(1, 2), flash_attn=False, attn_dim_head=8, attn_heads=2)


AUTOENCODER = {
    **BLOCKS,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}


class Decode(nn.Module):
    """The half of an autoencoder that users export."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, z: Tensor) -> Tensor:
        return self.autoencoder.decode(z, return_dict=False)[0]


@add("diffusers/autoencoder-kl", image("sample"), **LATENT, fixed=NO_DICT)
def autoencoder() -> nn.Module:
    from diffusers import AutoencoderKL

    return AutoencoderKL(**AUTOENCODER)


@add("diffusers/autoencoder-kl-decode", feature("z", "batch", 4, "height", "width"), **LATENT)
def decoder() -> nn.Module:
    return Decode(autoencoder())


@add(
    "diffusers/dit",
    {
        **feature("hidden_states", "batch", 4, 16, 16),
        **STEP,
        "class_labels": Input(("batch",), high=10),
    },
    batch=(2, 1, 3),
    fixed=NO_DICT,
)
def dit() -> nn.Module:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        out_channels=8,
        num_layers=1,
        sample_size=16,
        num_embeds_ada_norm=10,
    )
