"""What models are wrapped in for training and compiling: DataParallel, DistributedDataParallel, torch.compile.

Such a wrapper calls the module inside and gives what that gives, so the module can stand for it; unless the user put
something on the wrapper itself. Hooks move to a plain module around the one inside. A wrapper with a `forward` of the
user's own is a model like any other.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def unwrapped(model: Any) -> Any:
    """The model without wrappers, as far as they do nothing to its answers."""
    inner = _inside(model)
    if inner is None:
        return model
    below = unwrapped(inner)
    return _Hooked(model, below) if any(getattr(model, name) for name in _HOOKS) else below


def is_wrapper(model: Any) -> bool:
    """Whether `unwrapped` gives something else."""
    return _inside(model) is not None


def _inside(model: Any) -> nn.Module | None:
    """The module in a wrapper that does nothing but call it."""
    if type(model) in (nn.DataParallel, DistributedDataParallel) and "forward" not in model.__dict__:
        return model.module
    if isinstance(model, nn.Module) and isinstance(getattr(model, "_orig_mod", None), nn.Module):
        return model._orig_mod  # type: ignore[return-value]  # torch.compile's wrapper
    return None


class _Hooked(nn.Module):
    """The hooks of a wrapper around the module inside."""

    def __init__(self, wrapper: nn.Module, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner
        self.training = inner.training
        for name in _HOOKS:
            setattr(self, name, getattr(wrapper, name))

        @functools.wraps(inner.forward)  # its signature names the inputs
        def forward(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        self.forward = forward
