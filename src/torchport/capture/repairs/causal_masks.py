"""nn.TransformerEncoder and nn.TransformerDecoder compare a mask with the causal one, to use a shorter way if it is.

The comparison is a branch on values, which stops a capture or is frozen by it. The mask is applied as it is on both
ways, so during a capture the answer is no, unless the caller said yes.

Source of truth: `_detect_is_causal_mask` in torch/nn/modules/transformer.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import transformer

from torchport.capture.repairs.repair import capture_repair


@capture_repair("no search for causal masks")
@contextlib.contextmanager
def causal_masks(target: Any) -> Iterator[bool]:
    modules = target.modules() if isinstance(target, nn.Module) else ()
    stacks = [m for m in modules if isinstance(m, (nn.TransformerEncoder, nn.TransformerDecoder))]
    detect = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield bool(stacks)
    finally:
        transformer._detect_is_causal_mask = detect
