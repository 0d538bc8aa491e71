"""The three databases: PyTorch's modules, PyTorch's export examples, onnx-diagnostic's cases."""

from __future__ import annotations

import copy
import functools
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from cases import Call, Case
from sizes import with_declared_axes, with_every_axis, with_first_axis

SAMPLES = 8  # of each module: the losses have hundreds, which are much alike


def names() -> list[str]:
    """Every export, as database/entry/which."""
    return [*_module_names(), *_example_names(), *_diagnostic_names()]


def find(name: str) -> Iterator[Case]:
    database, entry, which = name.split("/")
    yield {"modules": _module, "examples": _example, "onnx-diagnostic": _diagnostic}[database](entry, which)


def _modules() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def _module_samples(info: Any) -> list[Any]:
    torch.manual_seed(0)
    given = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
    return list(itertools.islice(given, SAMPLES))


def _module_names() -> Iterator[str]:
    for name, info in _modules().items():
        yield from (f"modules/{name}/{number}" for number in range(len(_module_samples(info))))


def _module(entry: str, which: str) -> Case:
    """A module in eval mode, with a dynamic first axis where it takes one."""
    info = _modules()[entry]
    sample = _module_samples(info)[int(which)]
    built, given = sample.constructor_input, sample.forward_input
    torch.manual_seed(0)
    model = info.module_cls(*built.args, **built.kwargs).float().eval()
    call = Call(tuple(given.args), dict(given.kwargs))
    with torch.no_grad():
        model(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs))  # a lazy module gets its weights
    return with_first_axis(model, call)


def _examples() -> dict[str, Any]:
    from torch._export.db.examples import all_examples

    return dict(sorted(all_examples().items()))


def _example_names() -> Iterator[str]:
    """Each as it is given, and with a dynamic first axis and with dynamic axes where PyTorch lets them vary."""
    for name in _examples():
        yield f"examples/{name}/given"
        first, every = _example(name, "first"), _example(name, "every")
        if first.dynamic:
            yield f"examples/{name}/first"
        if every.dynamic and str(every.dynamic) != str(first.dynamic):
            yield f"examples/{name}/every"


def _example(entry: str, which: str) -> Case:
    example = _examples()[entry]
    model, call = example.model.eval(), Call(example.example_args, example.example_kwargs)
    if which == "given":
        return with_declared_axes(model, call, example.dynamic_shapes or {})
    return (with_first_axis if which == "first" else with_every_axis)(model, call)


@functools.cache
def _diagnostic_module() -> ModuleType:
    """The file with the cases alone: the package around it imports transformers, which no case needs."""
    package = importlib.util.find_spec("onnx_diagnostic")
    if package is None:
        raise ModuleNotFoundError("onnx-diagnostic is not installed: make bench-databases installs it")
    for name in ("onnx_diagnostic", "onnx_diagnostic.torch_export_patches", "onnx_diagnostic.helpers"):
        folder = ModuleType(name)
        (root,) = package.submodule_search_locations or ()
        folder.__path__ = ["/".join([root, *name.split(".")[1:]])]
        sys.modules.setdefault(name, folder)
    sys.modules["onnx_diagnostic.helpers"].string_type = repr  # type: ignore[attr-defined] # of error messages
    place = "onnx_diagnostic.torch_export_patches.eval"
    sys.modules.setdefault(place, ModuleType(place)).__path__ = [f"{root}/torch_export_patches/eval"]
    torch.manual_seed(0)
    return importlib.import_module(f"{place}.model_cases")


def _diagnostics() -> dict[str, Any]:
    found = vars(_diagnostic_module()).values()
    return {model.__name__: model for model in found if hasattr(model, "forward") and hasattr(model, "_inputs")}


def _diagnostic_names() -> Iterator[str]:
    for name in _diagnostics():
        yield from (f"onnx-diagnostic/{name}/static", f"onnx-diagnostic/{name}/dynamic")


def _diagnostic(entry: str, which: str) -> Case:
    kind = _diagnostics()[entry]
    given = kind._inputs if isinstance(kind._inputs, list) else [kind._inputs]
    torch.manual_seed(0)
    model, calls = kind().eval(), [Call(tuple(args)) for args in given]
    case = with_declared_axes(model, calls[0], kind._dynamic if which == "dynamic" else {})
    calls += [Call(tuple(args)) for args in getattr(kind, "_valid", ())]
    further = [call for call in calls[1:] if _may_follow(calls[0], call)] if which == "dynamic" else []
    return Case(model, case.example, case.dynamic or None, (*case.unseen, *further))


def _may_follow(example: Call, other: Call) -> bool:
    """A graph is asked for other tensors only: numbers, and how many tensors there are, are part of it."""
    shown = [[x.dtype if isinstance(x, torch.Tensor) else x for x in call.leaves()] for call in (example, other)]
    return shown[0] == shown[1]
