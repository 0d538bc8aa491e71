"""The PyTorch model as the reference: arrays in, arrays out, its state restored after each call."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.origins import line_of_frame
from torchport.capture.structure import Call, output_tensors
from torchport.tensors import Array, as_pairs, to_numpy, to_torch

_LARGEST_COPY = 1 << 29  # bytes of weights
Mode = Literal["eval", "train", "keep"]
MODES: tuple[Mode, ...] = ("eval", "train", "keep")


@contextlib.contextmanager
def preserved(target: Any, mode: Mode = "keep") -> Iterator[Snapshot]:
    """Put the model into `mode`, without gradients; restore everything afterwards.

    Yields a snapshot of the model in that mode, to be restored between calls of a model that changes itself.
    """
    found = Snapshot(target)
    generators = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    try:
        if mode != "keep" and isinstance(target, torch.nn.Module):
            _set_mode(target, mode)
        with torch.no_grad():
            yield Snapshot(target)
    finally:
        found.restore()
        torch.set_rng_state(generators[0])
        random.setstate(generators[1])
        np.random.set_state(generators[2])


def _set_mode(target: torch.nn.Module, mode: Mode) -> None:
    try:
        target.train(mode == "train")
    except NotImplementedError:
        return  # the module of an ExportedProgram has the one mode it was captured in


class Snapshot:
    """What a forward pass may change in a module: attributes, containers among them, and buffers' values.

    Weights are not copied (there may be gigabytes, and a forward pass does not write to them). Restoring costs next
    to nothing when nothing was written.
    """

    def __init__(self, target: Any) -> None:
        modules = list(target.modules()) if isinstance(target, torch.nn.Module) else []
        # A ScriptModule keeps its attributes in C++, out of Python's reach, but for its mode.
        self._modes = [(m, m.training) for m in modules if isinstance(m, torch.jit.ScriptModule)]
        plain = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self._attributes = [(m, dict(m.__dict__), _contents(m)) for m in plain]
        buffers = target.buffers() if isinstance(target, torch.nn.Module) else ()
        self._buffers = [(b, b.detach().clone()) for b in buffers if _is_plain(b)]
        weights = target.parameters() if isinstance(target, torch.nn.Module) else ()
        self._gradients = [(w, w.grad) for w in weights]  # a model that calls backward() adds to them

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in a buffer, and so would change with it when that is restored."""
        if tensor.layout != torch.strided:
            return False
        place = tensor.untyped_storage().data_ptr()
        return any(place == buffer.untyped_storage().data_ptr() for buffer, _ in self._buffers)

    def restore(self) -> None:
        for module, attributes, contents in self._attributes:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for container, saved in contents:
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(saved)
        for script, training in self._modes:
            script.training = training
        for weight, gradient in self._gradients:
            if weight.grad is not gradient:
                weight.grad = gradient
        self._restore_buffers()

    def _restore_buffers(self) -> None:
        with torch.no_grad():
            for buffer, copy in self._buffers:
                if not torch.equal(buffer, copy):  # batch norm writes without raising a tensor's version
                    buffer.copy_(copy)


def _is_plain(buffer: torch.Tensor) -> bool:
    """Check that a buffer has values in memory of its own; sparse ones have no storage, and nothing writes to them."""
    return buffer.device.type != "meta" and buffer.layout is torch.strided


def _contents(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """The module's containers with a copy of what is in them; a forward pass may even add hooks."""
    kinds = (dict, OrderedDict, list, set)
    return [(value, type(value)(value)) for value in module.__dict__.values() if type(value) in kinds]


# Where a model draws random numbers.


class RandomCalls(TorchFunctionMode):
    """Notes the calls of torch that draw random numbers, with the user's line: they move the generator's state."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.get_rng_state()):
            self.found.append((getattr(func, "__name__", str(func)), line_of_frame(sys._getframe(1))))
        return result


def random_call(run: Callable[[], object]) -> tuple[str, str]:
    """Return the function of torch that draws the first random numbers of a run, and its line; empty if none does."""
    with RandomCalls() as calls:
        run()
    return calls.found[0] if calls.found else ("", "")


# The PyTorch model as the reference: arrays in, arrays out, its state restored after each call.


class Reference:
    """Asks the PyTorch model. Raises whatever the model raises."""

    def __init__(self, call: Call, snapshot: Snapshot) -> None:
        self._call = call
        self._snapshot = snapshot
        self._devices = [t.device for t in call.tensors]
        self.output_names: list[str] = []
        self.complex_outputs: list[str] = []

    def restore(self) -> None:
        """Put the model back into the state it was opened in: a capture may leave caches behind."""
        self._snapshot.restore()

    def in_float64(self, arrays: Sequence[Array]) -> list[Array]:
        """Run a copy of the model in float64, to see how far off its own float32 is.

        Raises:
            MemoryError: the model is too large to be copied for that.
        """
        call = copy.copy(self._call)
        if isinstance(call.target, torch.nn.Module):
            if sum(p.nbytes for p in call.target.parameters()) > _LARGEST_COPY:
                raise MemoryError("the model is too large to be run in float64")
            call.target = copy.deepcopy(call.target).double()
        tensors = [to_torch(np.array(a)).to(d) for a, d in zip(arrays, self._devices, strict=True)]
        with torch.no_grad():
            _, outputs = output_tensors(call(*(t.double() if t.is_floating_point() else t for t in tensors)))
        return [as_pairs(to_numpy(o)) for o in outputs]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        # Copies, because a model may write to its inputs.
        tensors = [to_torch(np.array(a)).to(d) for a, d in zip(arrays, self._devices, strict=True)]
        try:
            with torch.no_grad():
                self.output_names, given = output_tensors(self._call(*tensors))
                outputs = [o.clone() if self._snapshot.holds(o) else o for o in given]
        finally:
            self._snapshot.restore()
        self.complex_outputs = [n for n, o in zip(self.output_names, outputs, strict=True) if o.is_complex()]
        return [as_pairs(to_numpy(o)) for o in outputs]
