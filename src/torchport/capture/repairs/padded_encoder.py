"""nn.TransformerEncoder answers padded positions with zeros, but only when nobody watches.

In eval mode, with a padding mask whose padding is all at the end, the encoder packs the rows without their padding
("fast path"), and unpacks them with zeros. Under torch.export and while tracing it takes the plain way, in which padded
positions hold numbers. A forward hook adds what the plain way lacks:

    output = where(padded and every row's padding is at its end, 0, output)

Source of truth: `TransformerEncoder.forward` in torch/nn/modules/transformer.py.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchport.capture.repairs.repair import capture_repair


@capture_repair("zeroed padding of nn.TransformerEncoder")
@contextlib.contextmanager
def padded_encoder(target: Any) -> Iterator[bool]:
    """Put the hook on every encoder that would take the fast path."""
    modules = target.modules() if isinstance(target, nn.Module) else ()
    encoders = [m for m in modules if isinstance(m, nn.TransformerEncoder) and _packs(m)]
    handles = [e.register_forward_hook(_zero_padding, with_kwargs=True) for e in encoders]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # a trace would take it, into operators ONNX has no word for
    try:
        yield bool(encoders)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


def _packs(encoder: nn.TransformerEncoder) -> bool:
    """The conditions that do not depend on the inputs."""
    return (
        bool(getattr(encoder, "use_nested_tensor", False))
        and not encoder.training
        and torch.backends.mha.get_fastpath_enabled()
    )


def _zero_padding(encoder: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> torch.Tensor:
    given = inspect.signature(encoder.forward).bind(*args, **kwargs).arguments
    mask = given.get("src_key_padding_mask")
    if mask is None or given["src"].dim() != 3 or given.get("mask") is not None:
        return output
    padding = (mask != 0).to(torch.int32)  # True marks padding, and so does any number but zero
    gaps = (padding[:, 1:] < padding[:, :-1]).to(torch.int32).sum()  # padding that a token follows
    zero = (gaps == 0) & (padding != 0)
    return torch.where(zero.unsqueeze(-1), torch.zeros((), dtype=output.dtype), output)
