"""Every model by name, `package/model`. Nothing is built here: that takes the model's library."""

from __future__ import annotations

import importlib

import torch
from registry import SPECS
from spec import Spec

FAMILIES = ("detection", "segmentation", "images", "generation", "sound", "text", "graphs", "series", "operations")
for family in FAMILIES:
    importlib.import_module(family)


def names() -> list[str]:
    return list(SPECS)


def packages() -> set[str]:
    return {name.partition("/")[0] for name in SPECS}


def allow_torchaudio() -> None:
    """PyPI's torchaudio is built for another CUDA than its torch, and says so while it is imported. On the CPU that
    does not matter."""
    torch.version.cuda, before = None, torch.version.cuda
    try:
        import torchaudio  # noqa: F401 - imported for the packages that need it
    finally:
        torch.version.cuda = before


def find(name: str) -> Spec:
    allow_torchaudio()
    return SPECS[name]
