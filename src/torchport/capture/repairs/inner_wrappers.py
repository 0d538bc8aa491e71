"""DataParallel and DistributedDataParallel around a part of a model.

Around the whole they are taken off before anything else (wrappers.py). Inside, they would spread the work over devices
and processes, which no capture can follow; the part itself stands in their place while the model is captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchport.capture.repairs.repair import capture_repair
from torchport.capture.wrappers import is_wrapper, unwrapped

_PARALLEL = (nn.DataParallel, DistributedDataParallel)


@capture_repair("inner wrappers taken off")
@contextlib.contextmanager
def inner_wrappers(target: Any) -> Iterator[bool]:
    modules = list(target.modules()) if isinstance(target, nn.Module) else []
    parts = [(m, name, part) for m in modules for name, part in m._modules.items() if isinstance(part, _PARALLEL)]
    wrapped = [(m, name, part) for m, name, part in parts if is_wrapper(part)]
    for module, name, part in wrapped:
        module._modules[name] = unwrapped(part)
    try:
        yield bool(wrapped)
    finally:
        for module, name, part in wrapped:
            module._modules[name] = part
