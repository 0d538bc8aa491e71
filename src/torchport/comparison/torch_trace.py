"""What a PyTorch model computes while it runs: each operator's output, with its module and line.

The operators are those below autograd (`addmm`, `native_layer_norm`), which is as fine as PyTorch can be watched from
outside without being exported.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from torchport.capture.origins import is_user_file, place
from torchport.torch_compat.parts import part
from torchport.torch_compat.tracing import tree_leaves

TorchDispatchMode: Any = part("TorchDispatchMode")


@dataclasses.dataclass(frozen=True)
class Event:
    """One tensor that an operator gave."""

    order: int
    operator: str
    module: str
    source: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator} in {self.module or 'the model'}, {self.source}"


Seen = Callable[[Event, torch.Tensor], None]


@contextmanager
def watched(root: torch.nn.Module | None, seen: Seen) -> Iterator[None]:
    """While active, `seen` is called with each tensor an operator gives, at the moment it is made.

    A tensor may be written to later: who wants to keep it must copy it. PyTorch's fused attention is off meanwhile: it
    shows nothing of what is inside. So is compiling, which `torch.cond` would do around each call: what was compiled
    while being watched would fail later, unwatched.
    """
    modules = _Modules(root)
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager"), modules.followed(), _Watch(modules, seen):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


class _Modules:
    """Which module is running."""

    def __init__(self, root: torch.nn.Module | None) -> None:
        self._paths = {id(m): name for name, m in root.named_modules()} if root is not None else {}
        self._stack: list[str] = []

    @property
    def now(self) -> str:
        return self._stack[-1] if self._stack else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        before = register_module_forward_pre_hook(lambda module, _: self._enter(module))
        after = register_module_forward_hook(lambda module, _, __: self._leave(), always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: torch.nn.Module) -> None:
        self._stack.append(self._paths.get(id(module), self.now))

    def _leave(self) -> None:
        self._stack.pop()


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True  # torch.cond and the like count as one operator; inside nobody can look

    def __init__(self, modules: _Modules, seen: Seen) -> None:
        super().__init__()
        self._modules = modules
        self._seen = seen
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        source = _running_line(sys._getframe(1))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                dtype = str(tensor.dtype).removeprefix("torch.")
                event = Event(self._count, str(func), self._modules.now, source, tuple(tensor.shape), dtype)
                self._seen(event, tensor)
                self._count += 1
        return outputs


def _running_line(frame: FrameType | None) -> str:
    while frame is not None:
        if _is_user_file(frame.f_code.co_filename):
            return place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


@functools.cache
def _is_user_file(path: str) -> bool:
    return is_user_file(path)
