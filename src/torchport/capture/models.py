"""Models that can be exported, brought to one interface, with their training wrappers taken off."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from torchport.capture.structure import Call
from torchport.errors import ForwardError, InputError, SourceError
from torchport.facade import shown
from torchport.tensors import FLOATS, dtype_name


@dataclasses.dataclass(frozen=True)
class Subject:
    """The model to export.

    Attributes:
        model: the module, TorchScript module or function without wrappers, or the ExportedProgram.
        target: what to call for PyTorch's own answer.
    """

    model: Any
    target: Any

    @property
    def program(self) -> torch.export.ExportedProgram | None:
        return self.model if isinstance(self.model, torch.export.ExportedProgram) else None


def subject(model: Any) -> Subject:
    """Recognize the model, taking off what only matters for training or compilation."""
    model = unwrapped(model)
    if isinstance(model, torch.export.ExportedProgram):
        return Subject(model, model.module(check_guards=False))
    if isinstance(model, type) or not callable(model):
        raise SourceError(
            f"{shown(model)} is no model"
            if not isinstance(model, type)
            else f"{model.__name__} is a class, not a model",
            next_step=_model_advice(model)
            if not isinstance(model, type)
            else f"give an instance: {model.__name__}(...)",
        )
    return Subject(model, model)


def _model_advice(given: Any) -> str:
    if isinstance(given, Mapping) and given and all(isinstance(v, torch.Tensor) for v in given.values()):
        return "these are weights only: make the model, model.load_state_dict(...) them, and give the model"
    if isinstance(given, str) and ":" in given:
        return f"give the object itself; on the command line: torchport export {given}"
    return "give an nn.Module, a function, a TorchScript module or an ExportedProgram"


def example_arguments(
    given: Subject, args: Any, kwargs: dict[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example inputs; an ExportedProgram brings its own."""
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise InputError(
            f"args is a {type(args).__name__}, not a tuple of inputs",
            next_step="give args=(x,), and inputs by name as kwargs={...}",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"kwargs is a {type(kwargs).__name__}, not a dict", next_step='give kwargs={"name": tensor}')
    args, kwargs = tuple(args), dict(kwargs or {})
    if not args and not kwargs and given.program is not None and given.program.example_inputs is not None:
        own_args, own_kwargs = given.program.example_inputs
        return tuple(own_args), dict(own_kwargs)
    return args, kwargs


def call(given: Subject, args: Any, kwargs: dict[str, Any] | None = None) -> Call:
    """The model with its example. A last dict may be the named inputs, as `torch.onnx.export` has it."""
    args, kwargs = example_arguments(given, args, kwargs)
    _make_weights(given.target, args, kwargs)
    try:
        return Call(given.target, args, kwargs)
    except InputError:
        if kwargs or not args or not isinstance(args[-1], dict):
            raise
        return Call(given.target, args[:-1], args[-1])


def _make_weights(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a model with lazy layers on the example: they get their weights there, as in a first call by the user."""
    if not isinstance(target, nn.Module) or isinstance(target, torch.jit.ScriptModule):
        return
    if not any(is_lazy(tensor) for tensor in (*target.parameters(), *target.buffers())):
        return
    modes = [(module, module.training) for module in target.modules()]
    try:
        with torch.no_grad():
            target.eval()(*args, **kwargs)
    except Exception as error:
        raise ForwardError(
            f"the lazy layers of the model get no weights: it raises {type(error).__name__} on the example: {error}",
            next_step="run model(*inputs) in PyTorch until it works",
        ) from error
    finally:
        for module, training in modes:
            module.training = training


def check_devices(call: Call) -> None:
    """All on one device that holds values, or an error that says what lies where."""
    places: dict[str, str] = {}
    for name, tensor in _tensors(call):
        places.setdefault(tensor.device.type, name)
    if "meta" in places:
        raise InputError(
            f"'{places['meta']}' is on the meta device and has no values",
            next_step="load the weights first, e.g. model.to_empty(device='cpu') and load_state_dict",
        )
    if len(places) > 1:
        raise InputError(
            "the model and its inputs are on different devices",
            where=", ".join(f"'{name}' on {device}" for device, name in places.items()),
            next_step="move all of it to one: model.to('cpu'), x.to('cpu')",
        )


def precision(call: Call) -> str | None:
    """The coarsest float dtype among weights and inputs."""
    order = ("bfloat16", "float16", "float32", "float64")
    present = {dtype_name(t.dtype) for _, t in _tensors(call)} & set(FLOATS)
    return next((name for name in order if name in present), None)


def _tensors(call: Call) -> Iterator[tuple[str, torch.Tensor]]:
    yield from zip(call.names, call.tensors, strict=True)
    if isinstance(call.target, torch.nn.Module):
        yield from call.target.named_parameters()
        yield from call.target.named_buffers()


# What models are wrapped in for training and compiling: DataParallel, DistributedDataParallel, torch.compile.
#
# Such a wrapper calls the module inside and gives what that gives, so the module can stand for it; unless the user put
# something on the wrapper itself. Hooks move to a plain module around the one inside. A wrapper with a `forward` of the
# user's own is a model like any other.

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
