"""Where a model turns tensors into Python values while it runs: lines a capture will stumble over, all at once."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.blame import site_of_stack
from torchport.capture.places import Site
from torchport.capture.state import preserved
from torchport.capture.structure import Call

_LOOKS = frozenset({"__bool__", "__float__", "__int__", "__index__"})


class _Looks(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[Any, Site] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _LOOKS:
            site = site_of_stack(sys._getframe(1))
            if site is not None:
                self.sites.setdefault((id(site.codes[0]), site.line), site)
        return func(*args, **(kwargs or {}))


def sites_looked_at(call: Call, tensors: tuple[torch.Tensor, ...]) -> list[Site]:
    """Run the model, and give the places where it looked at a tensor's value."""
    with preserved(call.target), _Looks() as looks:
        call(*(t.clone() for t in tensors))
    return list(looks.sites.values())
