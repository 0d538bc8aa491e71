"""as_strided, view and slices whose sizes or strides differ in a capture."""

from __future__ import annotations

import contextlib
import linecache
import math
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import onnx_ir as ir
import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.origins import is_user_file
from torchport.capture.repairs.repair import capture_repair, program_repair
from torchport.irtools.traversal import all_nodes
from torchport.torch_compat import tracing
from torchport.torch_compat.error_texts import says
from torchport.torch_compat.parts import part
from torchport.torch_compat.shape_env import guard_or_false

# `x.as_strided(size, stride)`, by which models cut overlapping windows, and `x.stride()`, from which they compute it.
#
# A graph has values and no storage: torch's translation takes the values in the order of the axes for the storage,
# which is wrong for a transposed tensor, and has no word for a stride. While this repair holds, the axes are first put
# into the order the storage has them in, the values taken by their places, and a stride is the product of the sizes it
# counts.
#
# A tensor that does not fill its storage, as `x[:, ::2]`, is left to torch; so is what is written to such a view later.


@capture_repair("strided views by places")
@contextlib.contextmanager
def strided_views(target: Any) -> Iterator[list[str]]:
    used: list[str] = []
    if not _mentioned(target):
        yield used
        return
    for name in ("TensorBase.stride", "guard_or_false", "_get_tracing_state", "_set_tracing_state"):
        part(name)
    as_strided, stride = torch.Tensor.as_strided, torch.Tensor.stride

    def by_places(
        tensor: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
    ) -> torch.Tensor:
        order = _order(tensor) if _called_by_user() else None
        if order is None:
            return as_strided(tensor, size, stride, storage_offset)
        used.append("as_strided")
        offset = 0 if storage_offset is None else storage_offset - tensor.storage_offset()
        return tensor.permute(order).reshape(-1)[_places(size, stride, offset, tensor.device)]

    def by_sizes(tensor: torch.Tensor, dim: Any = None) -> Any:
        found = stride(tensor)
        if all(isinstance(s, int) for s in found) or not _called_by_user():
            return found if dim is None else found[dim]
        order = _order(tensor)
        if order is not None:
            found = tuple(math.prod(_sizes_after(tensor, order, axis)) for axis in range(tensor.dim()))
        return found if dim is None else found[dim]

    patches: list[tuple[Any, str, Any]] = [
        (torch, "as_strided", lambda *args, **kwargs: by_places(*args, **kwargs)),  # torch tells its own two apart
        (torch.Tensor, "as_strided", by_places),
        (torch.Tensor, "stride", by_sizes),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, ours in patches:
            stack.enter_context(_patched(owner, name, ours))
        yield used


@contextlib.contextmanager
def _patched(owner: Any, name: str, ours: Any) -> Iterator[None]:
    own, theirs = name in vars(owner), getattr(owner, name)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, theirs)
        else:
            delattr(owner, name)  # it was inherited


def _mentioned(target: Any) -> bool:
    """Whether a file that a class of the model stands in speaks of such views."""
    parts = target.modules() if isinstance(target, torch.nn.Module) else [target]
    kinds = {kind for part in parts for kind in type(part).__mro__}
    files = {getattr(sys.modules.get(kind.__module__), "__file__", None) or "" for kind in kinds}
    files |= {getattr(getattr(target, "__code__", None), "co_filename", "")}
    return any("as_strided" in "".join(linecache.getlines(f)) for f in files if is_user_file(f))


def _called_by_user() -> bool:
    """Torch's own Python asks for strides too."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is not None and is_user_file(frame.f_code.co_filename)


def _order(tensor: torch.Tensor) -> list[int] | None:
    """The axes as the storage has them, slowest first; None if the tensor does not fill it without gaps."""
    with tracing.without_tracing_state():
        strides = tracing.strides(tensor)
        hints = [_hint(s) for s in strides]
        order = list(range(tensor.dim()))
        if all(h is not None for h in hints):
            order.sort(key=lambda axis: (-hints[axis], _hint(tensor.shape[axis]) == 1))
        for axis in order:
            filled = math.prod(_sizes_after(tensor, order, axis))
            if not (guard_or_false(strides[axis] == filled) or guard_or_false(tensor.shape[axis] == 1)):
                return None
        return order


def _hint(number: Any) -> Any:
    """The example's value of a size, where it has one."""
    if isinstance(number, int):
        return number
    return number.node.hint if number.node.has_hint() else None


def _sizes_after(tensor: torch.Tensor, order: list[int], axis: int) -> list[Any]:
    return [tensor.shape[later] for later in order[order.index(axis) + 1 :]]


def _places(size: Sequence[Any], stride: Sequence[Any], offset: Any, device: torch.device) -> torch.Tensor:
    places = torch.full((), offset, dtype=torch.int64, device=device)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(length, device=device) * step
        places = places + along.reshape([-1 if a == axis else 1 for a in range(len(size))])
    return places


# A `view` of a tensor whose strides are others in the capture than in the model.
#
# `nn.MultiheadAttention(...)(x, x, x)[0].view(b, -1)` is fine in PyTorch, whose fast path lays its answer out row by
# row. torch.export takes another path with another layout, and then says "Cannot view a tensor with shape ... and
# strides ...". ONNX has no strides: a reshape says the same, and is never refused.
#
# The same words come from torch.onnx.export for T5, BEiT and every model with a learned attention bias: it runs the
# program again with gradients, which choose another kernel. torchport captures and translates without gradients.


def _needs_views_as_reshapes(error: Exception) -> bool:
    return says(error, "view of fake tensor", "view in kernel")


@capture_repair("views as reshapes", after=_needs_views_as_reshapes)
@contextlib.contextmanager
def views_as_reshapes(target: Any) -> Iterator[bool]:
    with _Reshapes():
        yield True


class _Reshapes(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.view and not _is_dtype(args, kwargs):
            return torch.Tensor.reshape(*args, *kwargs.values())
        if func is torch.Tensor.view_as:
            return torch.Tensor.reshape_as(*args, **kwargs)
        return func(*args, **kwargs)


def _is_dtype(args: Any, kwargs: Any) -> bool:
    """`x.view(torch.int32)` reads the same bytes as another type, and is no matter of shape."""
    return any(isinstance(given, torch.dtype) for given in (*args, *kwargs.values()))


# A slice whose length was unknown when it was captured, and is known when the program is run again.
#
# `x[:n]` with an `n` from a value gives a size torch has no name for yet. Once it has learned more of `n`, from
# `torch.arange(n)` a line later, say, running the program anew gives ``Min(s0, n)`` there, and torch.export stops with
# "should have been constant" because the size it had noted is gone. Nothing depends on the note: without it the program
# is run anew with the new size.
#
# torch 2.13; `rebind_unbacked` in torch/fx/experimental/symbolic_shapes.py.


@program_repair("sizes of slices that became known")
def settled_slices(program: torch.export.ExportedProgram, error: Exception) -> torch.export.ExportedProgram | None:
    if not says(error, "slice became known"):
        return None
    noted = [
        n for n in program.graph.nodes if n.target is torch.ops.aten.slice.Tensor and "unbacked_bindings" in n.meta
    ]
    for node in noted:
        del node.meta["unbacked_bindings"]
    return program if noted else None


# `x.squeeze()` where a size that varies may be 1.
#
# PyTorch then gives a tensor of fewer dimensions, and so does ONNX's Squeeze without axes. A model that asks for the
# number of dimensions and brings the batch back, as ``if y.squeeze().dim() == 1``, was captured at larger sizes, where
# nothing is brought back: there the squeeze must leave all sizes that vary.


def settled_squeezes(model: ir.Model) -> ir.Model | None:
    """Return a copy of a model whose squeezes without axes take the dimensions of size 1 and none that varies; None if
    it has no such squeeze."""
    copy = model.clone()
    found = [n for n in all_nodes(copy) if n.op_type == "Squeeze" and n.domain in ("", "ai.onnx") and _may_lose_more(n)]
    for number, node in enumerate(found):
        axes = [axis for axis, size in enumerate(_shape_of(node)) if size == 1]
        if copy.opset_imports.get("", 0) < _AXES_AS_INPUT:
            node.attributes["axes"] = ir.AttrInt64s("axes", axes)
            continue
        tensor = ir.tensor(axes, name=f"{node.name}_axes_{number}", dtype=ir.DataType.INT64)
        shape = ir.Shape([len(axes)])
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        copy.graph.register_initializer(value)
        node.resize_inputs(2)
        node.replace_input_with(1, value)
    return copy if found else None


_AXES_AS_INPUT = 13  # the opset in which Squeeze takes its axes as an input


def _may_lose_more(squeeze: ir.Node) -> bool:
    if len(squeeze.inputs) > 1 or "axes" in squeeze.attributes:
        return False
    sizes = _shape_of(squeeze)
    return 1 in sizes and not all(isinstance(size, int) for size in sizes)


def _shape_of(squeeze: ir.Node) -> list[Any]:
    value = squeeze.inputs[0]
    return [] if value is None or value.shape is None else list(value.shape)
