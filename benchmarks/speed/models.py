"""The sixteen models of `make bench-speed`, with random weights: a function each, and example inputs by name.

A function is the source of a PyTorch model as torchport takes it: `models.py:resnet18`.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "shared"))
from spec import declare_torchvision_operators

IMAGE = (1, 3, 224, 224)
VOCABULARY = 30522


@functools.cache
def torchvision_operators() -> None:
    """Give torchvision its operators, which PyPI's file has for CUDA only; its non-maximum suppression in Python."""
    declare_torchvision_operators()
    torch.library.impl("torchvision::nms", "CPU")(_suppressed)


def _suppressed(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    corners = (torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:]))
    shared = (corners[1] - corners[0]).clamp(min=0).prod(2)
    overlaps = (shared / (areas[:, None] + areas - shared) > iou_threshold).triu(1).numpy()
    kept = np.ones(len(overlaps), bool)
    for n in range(len(overlaps)):
        if kept[n]:
            kept &= ~overlaps[n]
    return order[torch.from_numpy(kept)]


def _timm(name: str) -> nn.Module:
    torchvision_operators()
    import timm

    torch.manual_seed(0)
    return _with_statistics(timm.create_model(name, pretrained=False)).eval()


def _with_statistics(model: nn.Module) -> nn.Module:
    """Give batch norms statistics of their own: with those of a new layer, random weights blow numbers up or down."""
    images = torch.randn(4, *IMAGE[1:])
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if norms:
        for norm in norms:
            norm.momentum = None  # the mean over the batches
        model.train()
        with torch.no_grad():
            model(images)
    return model.eval()


def resnet18() -> nn.Module:
    return _timm("resnet18")


def resnet50() -> nn.Module:
    return _timm("resnet50")


def mobilenetv3() -> nn.Module:
    return _timm("mobilenetv3_large_100")


def efficientnet_b0() -> nn.Module:
    return _timm("efficientnet_b0")


def convnext_tiny() -> nn.Module:
    return _timm("convnext_tiny")


def vit_small() -> nn.Module:
    return _timm("vit_small_patch16_224")


def swin_tiny() -> nn.Module:
    return _timm("swin_tiny_patch4_window7_224")


def regnet() -> nn.Module:
    return _timm("regnety_008")


class Text(nn.Module):
    """An encoder of `transformers` that takes ids and a mask, and gives its last hidden state."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def _transformer(model: str, config: str, **settings: Any) -> nn.Module:
    torchvision_operators()
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()


def bert_base() -> nn.Module:
    return Text(_transformer("BertModel", "BertConfig", add_pooling_layer=False)).eval()


def distilbert() -> nn.Module:
    return Text(_transformer("DistilBertModel", "DistilBertConfig")).eval()


def t5_small_encoder() -> nn.Module:
    settings = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "d_kv": 64}
    return Text(_transformer("T5EncoderModel", "T5Config", **settings)).eval()


class Whisper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        settings = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
        self.encoder = _transformer("WhisperModel", "WhisperConfig", **settings).encoder

    def forward(self, input_features: Tensor) -> Tensor:
        return self.encoder(input_features).last_hidden_state


def whisper_tiny_encoder() -> nn.Module:
    return Whisper().eval()


class Gpt2Step(nn.Module):
    """One new token after a past that stands in the cache."""

    layers, heads, size = 12, 12, 64

    def __init__(self) -> None:
        super().__init__()
        self.decoder = _transformer("GPT2LMHeadModel", "GPT2Config")

    def forward(self, input_ids: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(self.layers):
            cache.update(past[layer, 0], past[layer, 1], layer)
        found = self.decoder(input_ids=input_ids, past_key_values=cache, use_cache=True)
        pairs = [torch.stack((entry.keys, entry.values)) for entry in found.past_key_values.layers]
        return found.logits, torch.stack(pairs)


def gpt2_small_step() -> nn.Module:
    return Gpt2Step().eval()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20000, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def lstm_tagger() -> nn.Module:
    torch.manual_seed(0)
    return Tagger().eval()


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.down = nn.ModuleList(self._block(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(self._block(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.head = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def _block(a: int, b: int) -> nn.Sequential:
        layers = [layer for c in (a, b) for layer in (nn.Conv2d(c, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for n, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if n else x)
            kept.append(x)
        for block, skip in zip(self.up, kept[-2::-1], strict=True):
            x = block(torch.cat((nn.functional.interpolate(x, scale_factor=2.0), skip), 1))
        return self.head(x)


def u_net() -> nn.Module:
    torch.manual_seed(0)
    return _with_statistics(UNet())


class Detector(nn.Module):
    """A small backbone, boxes and scores on a grid, and non-maximum suppression."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 128)
        layers = [
            layer
            for a, b in itertools.pairwise(widths)
            for layer in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.SiLU())
        ]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Conv2d(128, 5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        torchvision_operators()
        found = self.head(self.backbone(x)).flatten(2)[0].T
        centers, sizes = found[:, :2].sigmoid() * 224, found[:, 2:4].exp() * 16
        boxes = torch.cat((centers - sizes / 2, centers + sizes / 2), 1)
        scores = found[:, 4].sigmoid()
        scores, best = scores.topk(100)
        boxes = boxes[best]
        kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
        return boxes[kept], scores[kept]


def detector_with_nms() -> nn.Module:
    torch.manual_seed(0)
    model = Detector()
    model.backbone = _with_statistics(model.backbone)
    return model.eval()


def _image() -> dict[str, Tensor]:
    return {"x": torch.randn(IMAGE)}


def _text() -> dict[str, Tensor]:
    return {
        "input_ids": torch.randint(0, VOCABULARY, (1, 128)),
        "attention_mask": torch.ones(1, 128, dtype=torch.int64),
    }


def _past() -> dict[str, Tensor]:
    step = Gpt2Step
    past = torch.randn(step.layers, 2, 1, step.heads, 128, step.size)
    return {"input_ids": torch.randint(0, 50257, (1, 1)), "past": past}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Tensor]]]] = {
    **{
        build.__name__: (build, _image)
        for build in (resnet18, resnet50, mobilenetv3, efficientnet_b0, convnext_tiny, vit_small, swin_tiny, regnet)
    },
    **{build.__name__: (build, _text) for build in (bert_base, distilbert, t5_small_encoder)},
    "gpt2_small_step": (gpt2_small_step, _past),
    "whisper_tiny_encoder": (whisper_tiny_encoder, lambda: {"input_features": torch.randn(1, 80, 3000)}),
    "lstm_tagger": (lstm_tagger, lambda: {"tokens": torch.randint(0, 20000, (1, 64))}),
    "u_net": (u_net, _image),
    "detector_with_nms": (detector_with_nms, _image),
}


def inputs(name: str, seed: int) -> dict[str, Tensor]:
    """Return example inputs, the same for the same seed."""
    torch.manual_seed(seed)
    return MODELS[name][1]()


@functools.cache
def model(name: str) -> nn.Module:
    """Return a model."""
    return MODELS[name][0]()
