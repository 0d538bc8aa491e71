"""The models that faults are planted in, ResNet-50, a BERT of base size and ViT-B with random weights, and the names of
those that are left untouched."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
from spec import declare_torchvision_operators

UNTOUCHED = 20  # of each library

Made = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def resnet50() -> Made:
    import timm

    return timm.create_model("resnet50").eval(), {"x": torch.randn(2, 3, 224, 224)}


def vit_b() -> Made:
    import timm

    return timm.create_model("vit_base_patch16_224").eval(), {"x": torch.randn(1, 3, 224, 224)}


def bert() -> Made:
    import transformers

    model = transformers.BertModel(transformers.BertConfig(vocab_size=2000)).eval()
    ids = torch.randint(0, 2000, (2, 32))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


SUBJECTS: dict[str, Callable[[], Made]] = {"resnet50": resnet50, "bert": bert, "vit_b": vit_b}


def make(name: str) -> Made:
    """A model whose layers all matter: fresh norms and biases are ones and zeros, which hide what happens to them."""
    declare_torchvision_operators()
    torch.manual_seed(0)
    model, inputs = SUBJECTS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model, inputs


def nodes(model: Any) -> list[Any]:
    return [n for n in model.graph if n.op_type != "Constant"]


def untouched(only: str | None) -> list[str]:
    """Return the names of forty models of the zoo, spread over its two libraries. The zoo must be on the path.

    Args:
        only: a pattern that the names must match.
    """
    from models import names

    chosen: list[str] = []
    for library in ("timm/", "transformers/"):
        own = [n for n in names() if n.startswith(library) and (only is None or fnmatch.fnmatch(n, only))]
        chosen += own[:: max(1, len(own) // UNTOUCHED)][:UNTOUCHED]
    return chosen
