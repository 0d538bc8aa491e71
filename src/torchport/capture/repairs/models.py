"""Repairs of whole models and of their exported programs: wrappers, casts in forward, weights made of weights."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from torch.fx import Node
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from torchport.capture.models import is_wrapper, unwrapped
from torchport.capture.repairs.repair import capture_repair, program_repair
from torchport.capture.structure import FlatModule
from torchport.errors import CaptureError
from torchport.operators import fake_shapes, library
from torchport.operators.composition import applies_to
from torchport.torch_compat import exporter, registries
from torchport.torch_compat.error_texts import says
from torchport.torch_compat.parts import patched
from torchport.torch_compat.tracing import below_autograd

# DataParallel and DistributedDataParallel around a part of a model.
#
# Around the whole they are taken off before anything else (wrappers.py). Inside, they would spread the work over
# devices and processes, which no capture can follow; the part itself stands in their place while the model is captured.

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


# `self.router = self.router.to(self.dtype)` in forward, which torch.export cannot swap the weights of.
#
# The model was run before it is captured, so its layers have the type by now and the line has nothing to do. In a
# capture `Module.to` swaps each weight for itself all the same, and that fails.


def _needs_cast_layers(error: Exception) -> bool:
    return says(error, "weights not swapped")


@capture_repair("layers that are cast while the model runs", after=_needs_cast_layers)
@contextlib.contextmanager
def cast_layers(target: Any) -> Iterator[bool]:
    with patched("Module._apply", _unless_cast):
        yield True


def _unless_cast(original: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        tensors = itertools.chain(self.parameters(recurse), self.buffers(recurse))
        return self if all(fn(tensor) is tensor for tensor in tensors) else original(self, fn, recurse)

    return apply


# `nn.InstanceNorm2d` without weights, of channels that vary: it compares their number only to warn.


@capture_repair("instance norms of any number of channels")
@contextlib.contextmanager
def instance_norms(target: Any) -> Iterator[list[str]]:
    used: list[str] = []
    kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    modules = target.modules() if isinstance(target, nn.Module) else ()
    if not any(isinstance(module, kinds) for module in modules):
        yield used
        return
    with patched("_InstanceNorm.forward", lambda own: _without_comparison(own, used)):
        yield used


def _without_comparison(own: Callable[..., Any], used: list[str]) -> Callable[..., Any]:
    def forward(self: Any, input: torch.Tensor) -> Any:
        is_plain = not self.affine and not self.track_running_stats
        no_batch = {nn.InstanceNorm1d: 2, nn.InstanceNorm2d: 3, nn.InstanceNorm3d: 4}.get(type(self))
        if not is_plain or no_batch is None or not any(isinstance(n, torch.SymInt) for n in input.shape):
            return own(self, input)
        used.append("InstanceNorm")
        x = input.unsqueeze(0) if input.dim() == no_batch else input
        normal = nn.functional.instance_norm(x, use_input_stats=True, momentum=self.momentum or 0.0, eps=self.eps)
        return normal.squeeze(0) if input.dim() == no_batch else normal

    return forward


# Sparse tensors: a graph's adjacency as a buffer, or made of indices and values while the model runs.
#
# torch.export and ONNX have none. In a capture they are dense, and so are the results of functions that make them.

_LARGEST = 2**26  # numbers; more is no model any more that one would want to store


@capture_repair("sparse tensors made dense")
@contextlib.contextmanager
def sparse_weights(target: Any) -> Iterator[bool]:
    modules = list(target.modules()) if isinstance(target, nn.Module) else []
    tables: list[dict[str, Any]] = [table for m in modules for table in _tables(m)]
    found = [(table, name, value) for table in tables for name, value in table.items() if _is_sparse(value)]
    dense = [_dense(name, value) for _, name, value in found]
    with _Dense() if found else contextlib.nullcontext():
        try:
            for (table, name, _), value in zip(found, dense, strict=True):
                table[name] = value
            yield bool(found)
        finally:
            for table, name, value in found:
                table[name] = value


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    buffers: Any = module._buffers
    parameters: Any = module._parameters
    return [buffers, parameters, module.__dict__]


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout in _SPARSE


def _dense(name: str, value: torch.Tensor) -> torch.Tensor:
    if value.numel() > _LARGEST:
        raise CaptureError(
            f"'{name}' is a sparse tensor of shape {list(value.shape)}: ONNX has none, and dense it is too large",
            next_step="keep its indices and values, and write the product with index_add: "
            "out.index_add(0, rows, values[:, None] * x[columns])",
        )
    made = value.detach().to_dense()
    return nn.Parameter(made, requires_grad=False) if isinstance(value, nn.Parameter) else made


def _needs_sparse_functions(error: Exception) -> bool:
    return says(error, "sparse")


@capture_repair("functions of sparse tensors by dense ones", after=_needs_sparse_functions)
@contextlib.contextmanager
def sparse_functions(target: Any) -> Iterator[bool]:
    with _Dense():
        yield True


class _Dense(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _INSTEAD.get(func, func)(*args, **(kwargs or {}))


def _made_dense(indices: Any, values: Any, size: Any = None, **_: Any) -> Any:
    if size is None:
        raise CaptureError(
            "torch.sparse_coo_tensor without a size has a shape that its indices tell",
            next_step="give the size: torch.sparse_coo_tensor(indices, values, (rows, columns))",
        )
    return values.new_zeros(tuple(size)).index_put(tuple(indices.unbind(0)), values, accumulate=True)


def _same(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_INSTEAD: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.sparse.mm, torch.spmm, torch.hspmm, torch.dsmm), torch.mm),
    torch.sparse.addmm: torch.addmm,
    torch.sparse.sum: torch.sum,
    torch.sparse_coo_tensor: _made_dense,
    **dict.fromkeys((torch.Tensor.to_dense, torch.Tensor.coalesce, torch.Tensor.to_sparse), _same),
    **dict.fromkeys((torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_coo), _same),
}


# `with torch.no_grad():` beside a branch or a loop: torch.export loses the branch's graph as it groups what is in it.
#
# A capture computes no gradients, so the switches have nothing to do and need not be recorded.


def _needs_gradient_switches(error: Exception) -> bool:
    return says(error, "graph of branch lost")


@capture_repair("switching gradients on and off beside a branch", after=_needs_gradient_switches)
@contextlib.contextmanager
def gradient_switches(target: Any) -> Iterator[bool]:
    with patched("_set_grad_enabled", lambda own: lambda mode: None):
        yield True


# Gradients that a model takes while it runs: `torch.autograd.grad`, `energy.backward()`, `torch.func.jacrev`.
#
# torch.export records operators before autograd sees them, and so none of those that compute a gradient. Recorded below
# autograd first, the model is a graph of plain operators, which torch.export then takes.


def _takes_gradients(error: Exception) -> bool:
    return says(error, "gradient inside", "gradients off")


@capture_repair("gradients taken while the model runs", after=_takes_gradients)
@contextlib.contextmanager
def gradients(target: Any) -> Iterator[bool]:
    own = FlatModule.forward

    def forward(self: FlatModule, *tensors: torch.Tensor) -> Any:
        return below_autograd(lambda *given: own(self, *given), tensors)(*tensors)

    FlatModule.forward = forward  # type: ignore[method-assign]
    try:
        yield True
    finally:
        FlatModule.forward = own  # type: ignore[method-assign]


# Operators without an ONNX translation that see nothing but weights: their answers are computed now.
#
# A parametrization makes a weight of other weights, by a matrix exponential say, which ONNX has no word for. It gives
# the same weight whatever the input is.


@program_repair("weights made of weights computed beforehand")
def weights_alone(program: torch.export.ExportedProgram, error: Exception) -> torch.export.ExportedProgram | None:
    """A program in which all that sees nothing but weights is computed. None if there is no such thing.

    Which operators lack a translation is not asked: the error knows them by the names of their parts.
    """
    if not any(says(e, "no translation") for e in (error, error.__cause__) if e is not None):
        return None
    values = _folded(program)
    return _with_constants(program, values) if any(node.op == "call_function" for node in values) else None


def computed(
    program: torch.export.ExportedProgram, compositions: Mapping[Any, Callable[..., Any]]
) -> torch.export.ExportedProgram | None:
    """The same, where one of these operators, which make long graphs, sees nothing but weights."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and n.target in compositions]
    calls = [n for n in nodes if applies_to(compositions[n.target], n)]
    if not calls:
        return None
    values = _folded(program)
    return _with_constants(program, values) if any(call in values for call in calls) else None


def _weights(program: torch.export.ExportedProgram) -> dict[Node, Any]:
    """The placeholders that hold weights, without buffers that the model writes to."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = signature.inputs_to_lifted_tensor_constants
    found: dict[Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names and names[node.name] not in written:
            tensors = {**program.constants, **program.state_dict}
            found[node] = tensors[names[node.name]].detach()
        elif node.op == "placeholder" and node.name in constants:
            found[node] = program.constants[constants[node.name]]
    return found


def _folded(program: torch.export.ExportedProgram) -> dict[Node, Any]:
    """The weights, and what every node that sees weights alone gives. No tensor that the program writes to is among
    them: its numbers change, and those of a buffer are the model's own."""
    written = _written(program.graph)
    values = {node: value for node, value in _weights(program).items() if node not in written}
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op != "call_function" or node in written or _draws(node):
                continue
            if all(n in values for n in node.all_input_nodes):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                values[node] = node.target(*args, **kwargs)
    return values


def _written(graph: torch.fx.Graph) -> set[Node]:
    """The nodes that write to a tensor, those they write to, and those that these are views of."""
    found: set[Node] = set()
    for writer in graph.nodes:
        places = registries.written_places(writer.target) if writer.op == "call_function" else []
        waiting = [writer, *(writer.args[n] for n in places if n < len(writer.args))] if places else []
        while waiting:
            node = waiting.pop()
            if isinstance(node, Node) and node not in found:
                found.add(node)
                waiting += node.args[:1] if registries.gives_view(node.target) else ()
    return found


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _with_constants(program: torch.export.ExportedProgram, values: dict[Node, Any]) -> torch.export.ExportedProgram:
    """The program with constants in the place of computed nodes that others use."""
    graph, module = program.graph, program.graph_module
    computed = [n for n in graph.nodes if n.op == "call_function" and isinstance(values.get(n), torch.Tensor)]
    for number, node in enumerate(n for n in computed if any(user not in values for user in n.users)):
        name = f"weight_made_of_weights_{number}"
        setattr(module, name, values[node].contiguous())
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta = copy.copy(node.meta)
        node.replace_all_uses_with(constant, delete_user_cb=lambda user: user not in values)
    graph.eliminate_dead_code()
    exporter.lift_constants(program)
    module.recompile()
    return program


# Tensors written out inside a branch or a loop: `x.new_tensor(0.0)`, `torch.tensor([1, 2])`, `x[:, [2, 0]]`.
#
# In the graph of a branch torch.export keeps them as constants, and torch.onnx, which takes the program apart once
# more, makes fake tensors of those: ".numpy() is not supported for tensor subclasses". They become calls of
# torchport::literal, whose arguments are the numbers (operators/library/literal.py).
#
# torch 2.13.

WRITTEN_OUT = "tensors written out in branches"


def kept(program: torch.export.ExportedProgram) -> bool:
    """Put the numbers of such tensors into the graph; whether there were any."""
    found = False
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule) and part is not program.graph_module:
            found |= _kept_in(part)
    return found


def _kept_in(part: torch.fx.GraphModule) -> bool:
    constants = [(n, getattr(part, str(n.target), None)) for n in part.graph.find_nodes(op="get_attr")]
    written = [(n, tensor) for n, tensor in constants if isinstance(tensor, torch.Tensor) and not tensor.is_complex()]
    call_for: Any = library.file("own_operators").call_for if written else None
    for node, tensor in written:
        with part.graph.inserting_before(node):
            call = part.graph.call_function(*call_for(tensor))
        call.meta = node.meta
        node.replace_all_uses_with(call)
        part.graph.erase_node(node)
    for name in {str(node.target) for node, _ in written}:
        delattr(part, name)  # else it counts as a weight
    if written:
        part.recompile()
    return bool(written)


# Reshape of an empty tensor: torch's translation writes the sizes as they are, and ONNX takes 0 for "as it was".
#
# A size of 0 among constant sizes is meant, so the node is told so. Without -1 beside it: ONNX has no such form.


def mean_zero(model: ir.Model) -> None:
    """Sizes of 0 mean 0, in place."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
            continue
        sizes = ir.convenience.get_const_tensor(node.inputs[1]) if node.inputs[1] is not None else None
        if sizes is None:
            continue
        numbers = sizes.numpy().tolist()
        if 0 in numbers and -1 not in numbers:
            node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)


# Operators of a C++ library that came without a function for their shapes, which torch.export asks for.
#
# They are run on random numbers at a few sizes, and their shapes taken from that. What is learned so is registered with
# torch as the user could have done with `torch.library.register_fake`, and stays.

_OF_TORCH = ("aten", "prims", "prim", "torchport", "quantized", "quantized_decomposed", "higher_order")


def _needs_shapes_of_operators(error: Exception) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if says(seen, "no shape function"):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@capture_repair("shapes of operators learned from runs", after=_needs_shapes_of_operators)
@contextlib.contextmanager
def shapes_of_operators(target: Any) -> Iterator[list[str]]:
    learned: list[str] = []
    with _Learn(learned):
        yield learned


class _Learn(TorchFunctionMode):
    def __init__(self, learned: list[str]) -> None:
        super().__init__()
        self.learned = learned

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for overload in _overloads(func):
            name = registries.schema(overload).name
            if name.partition("::")[0] not in _OF_TORCH and not registries.has_shapes(overload):
                _register(overload)
                self.learned.append(name)
        return func(*args, **(kwargs or {}))


def _overloads(func: Any) -> list[Any]:
    if registries.is_packet(func):
        return [getattr(func, name) for name in func.overloads()]
    return [func] if registries.is_overload(func) else []


def _register(overload: Any) -> None:
    schema = registries.schema(overload)
    names = [a.name for a in schema.arguments]
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")

    def fake(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *(kwargs[n] for n in names[len(args) :] if n in kwargs)]
        return fake_shapes.inferred(overload, given, name)

    torch.library.register_fake(name, fake)
