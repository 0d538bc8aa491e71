"""flex_attention, padding in nn.TransformerEncoder, causal masks."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchport.capture.repairs.repair import capture_repair
from torchport.torch_compat.parts import patched

# torch's flex_attention, written out: ONNX has no operator that takes functions for scores and masks.
#
#     softmax(where(mask(b, h, q, k), score(Q·Kᵀ · scale, b, h, q, k), -∞)) · V
#
# PyTorch calls the two functions on single numbers, mapped over all of them. Here they get whole tensors, and the
# places b, h, q and k as ranges along their own axis, which comes to the same for functions of numbers.
#
# Source of truth: `math_attention` in torch/_higher_order_ops/flex_attention.py.

_MODULE = "torch.nn.attention.flex_attention"


@capture_repair("flex_attention written out")
@contextlib.contextmanager
def flex_attention(target: Any) -> Iterator[bool]:
    if _MODULE not in sys.modules:  # who does not use it has not imported it
        yield False
        return
    with patched("flex_attention_hop", lambda own: _attention), patched("flex_attention_debug", lambda own: True):
        yield _names_it(target)


def _names_it(target: Any) -> bool:
    """Whether a forward of the model calls it by its name. One that helpers call is written out all the same."""
    functions = [type(m).forward for m in target.modules()] if isinstance(target, torch.nn.Module) else [target]
    codes = [getattr(f, "__code__", None) for f in functions]
    return any(code is not None and "flex_attention" in (*code.co_names, *code.co_freevars) for code in codes)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """In the place of the operator: the output, the logarithm of the sums and the largest scores."""
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
    places = [
        torch.arange(n).reshape([-1 if a == axis else 1 for a in range(4)]) for axis, n in enumerate(scores.shape)
    ]
    allowed = block_mask[-1](*places, *mask_mod_other_buffers)
    scores = torch.where(allowed, score_mod(scores, *places, *score_mod_other_buffers), -math.inf)
    largest = scores.amax(-1)
    empty = (largest == -math.inf).unsqueeze(-1)
    weights = torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, scores), -1))
    sums = torch.logsumexp(scores, -1)
    return (weights.to(query.dtype) @ value).to(query.dtype), sums / math.log(2), largest / math.log(2)


# nn.TransformerEncoder answers padded positions with zeros, but only when nobody watches.
#
# In eval mode, with a padding mask whose padding is all at the end, the encoder packs the rows without their padding
# ("fast path"), and unpacks them with zeros. Under torch.export and while tracing it takes the plain way, in which
# padded positions hold numbers. A forward hook adds what the plain way lacks:
#
#     output = where(padded and every row's padding is at its end, 0, output)
#
# Source of truth: `TransformerEncoder.forward` in torch/nn/modules/transformer.py.


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


# nn.TransformerEncoder and nn.TransformerDecoder compare a mask with the causal one, to use a shorter way if it is.
#
# The comparison is a branch on values, which stops a capture or is frozen by it. The mask is applied as it is on both
# ways, so during a capture the answer is no, unless the caller said yes.
#
# Source of truth: `_detect_is_causal_mask` in torch/nn/modules/transformer.py.


@capture_repair("no search for causal masks")
@contextlib.contextmanager
def causal_masks(target: Any) -> Iterator[bool]:
    modules = target.modules() if isinstance(target, nn.Module) else ()
    stacks = [m for m in modules if isinstance(m, (nn.TransformerEncoder, nn.TransformerDecoder))]
    if not stacks:
        yield False
        return
    with patched("_detect_is_causal_mask", lambda own: lambda mask, is_causal=None, size=None: bool(is_causal)):
        yield True
