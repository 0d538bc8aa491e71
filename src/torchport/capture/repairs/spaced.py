"""`torch.linspace` and `torch.logspace` with a number of steps that comes from a value, or from a size that varies.

torch.export asks whether there is one step or none, which only the running model knows. The form of torchport's
library does not ask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.overrides import TorchFunctionMode

from torchport.capture.blame import line_of_error
from torchport.capture.repairs.repair import capture_repair
from torchport.operators import registration
from torchport.operators.library.shapes import is_open, linspace, logspace
from torchport.operators.registration import replaces

replaces("torch.linspace")(linspace)
replaces("torch.logspace")(logspace)


def _needs_spaced(error: Exception) -> bool:
    where = f"{line_of_error(error)} {getattr(error, 'where', '')}"
    return ("data-dependent" in str(error) or "was fixed to" in str(error)) and "space(" in where


@capture_repair("linspace with as many steps as the values say", after=_needs_spaced)
@contextlib.contextmanager
def spaced(target: Any) -> Iterator[bool]:
    with _Spaced():
        yield True


class _Spaced(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._instead = registration.found(registration.registered_in(__name__))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return (self._instead[func] if func in self._instead and is_open(*args, **kwargs) else func)(*args, **kwargs)
