"""Opens ONNX files that may be broken or hostile, and saves models so that no crash can break one.

    >>> model = load("model.onnx")
    >>> save(model, "model.onnx")

A file is checked in full before a model is made of it; `onnx_ir` mends in silence what it can. `onnx.checker`
has its say when a model is saved, not when one is opened: it refuses models that run well (an unsorted graph,
a graph without a name, an operator it has no schema for).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import graphlib
import io
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from torchport.errors import FileError, SaveError, TorchportError, UnsafeFileError
from torchport.graph import atomic
from torchport.graph.atomic import PROTOBUF_LIMIT
from torchport.graph.atomic import check_target as check_target
from torchport.graph.external import check_external as check_external
from torchport.graph.external import scopes, subgraphs

INLINE_LIMIT = 3 * 2**29  # 1.5 GiB of weights: below protobuf's 2 GiB, with room for the graph

_MOST_NODES = 10_000_000  # once every function is written out at each place it is called
_BROKEN = "the file is broken; export the model again"
_FunctionId = tuple[str, str, str]

# How files begin that are given to us under the name of an ONNX file, and what to do about each
_OTHERS = {
    b"version https://git-lfs": ("a pointer of Git LFS", "run `git lfs pull` to get the file itself"),
    b"PK\x03\x04": ("a zip archive or PyTorch checkpoint", "export it: torchport export"),
    b"\x80\x02": ("a pickle", "export the PyTorch model: torchport export"),
    b"\x80\x03": ("a pickle", "export the PyTorch model: torchport export"),
    b"\x80\x04": ("a pickle", "export the PyTorch model: torchport export"),
    b"\x80\x05": ("a pickle", "export the PyTorch model: torchport export"),
    b"\x1f\x8b": ("a gzip archive", "unpack it first"),
    b"GGUF": ("a GGUF file", "give an ONNX file"),
    b"\x89HDF": ("an HDF5 file", "give an ONNX file"),
    b"{": ("JSON text", "give an ONNX file in protobuf format"),
    b"<": ("an HTML or XML page", "download the file itself, not the page about it"),
}


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Open an ONNX file, trusting nothing in it.

    Weights in a data file are mapped into memory when they are first read, and not before.

    Raises:
        FileError: the file is missing, broken, of another format, or needs a newer onnx.
        UnsafeFileError: it reaches outside its folder or lies about sizes.
    """
    source = Path(path)
    content = _read(source)
    try:
        proto = _parse(content, source)
        del content
        folder = source.parent.absolute()
        check_external(proto, folder, source=source)
        in_order = _check_structure(proto, str(source))
        return _to_model(proto, folder, in_order=in_order)
    except TorchportError:
        raise
    except Exception as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _first_line(error)
        raise FileError(f"cannot be read as a model: {reason}", where=str(source), next_step=_BROKEN) from error


def save(model: ir.Model, path: str | os.PathLike[str], *, external: bool | None = None, check: bool = True) -> Path:
    """Write a model to disk, whole or not at all; a model already there stays until the new one is complete.

    The data file, if any, is `<stem>.<first 16 digits of its sha256>.data`. The data file of the model it
    replaces is removed, but not one of another name or one that another model in the folder needs. A link at
    `path` is replaced, not followed. The model given is not changed.

    Args:
        model: what to save. It may be the model loaded from the very same path.
        path: where to.
        external: whether weights go into a data file; None for when they take more than 1.5 GiB.
        check: whether `onnx.checker` must agree.

    Returns:
        The path of the `.onnx`.

    Raises:
        SaveError: it cannot be written there, the disk is full, or it is no valid model.
    """
    target = check_target(path)
    size = weight_bytes(model)
    outside = size > INLINE_LIMIT if external is None else external
    if outside:  # where weights that are one object are written once
        size = sum(tensor.nbytes for tensor in {id(t): t for t in atomic.weights(model)}.values())
    with _explained(target, size):
        _check_sources(model)
        atomic.check_space(target, size)
        with atomic.staging(target) as folder:
            if outside:
                draft = atomic.draft_outside(model, folder, target)
                skeleton = draft.onnx
            else:
                draft, skeleton = atomic.draft_inside(model, folder, target)
            if check:
                _run_checker(skeleton, target)
            atomic.commit(draft, target, before_removal=lambda data: _keep_readable(model, data))
    return target


def to_bytes(model: ir.Model) -> bytes:
    """The model as one protobuf message, weights included; the same bytes each time.

    Raises:
        SaveError: it takes more than the 2 GiB protobuf allows.
    """
    out = io.BytesIO()
    with _explained(Path("memory"), weight_bytes(model)):
        atomic.write_inside(model, out)
    return out.getvalue()


def weight_bytes(model: ir.Model) -> int:
    """How many bytes the model's weights take; none is read to find out."""
    return sum(tensor.nbytes for tensor in atomic.weights(model))


# Loading


def _read(source: Path) -> bytes:
    """The file's content, if it is a plain file of a possible size. A pipe would have us wait for ever."""
    try:
        _check_kind(os.stat(source), source)
        handle = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            _check_kind(os.fstat(handle), source)  # it may have been exchanged meanwhile
            return file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileError(
            f"cannot be opened: {reason}", where=str(source), next_step="check the path and its permissions"
        ) from error


def _check_kind(status: os.stat_result, source: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FileError("not a file", where=str(source), next_step="give the path of an .onnx file")
    if not status.st_size:
        raise FileError("the file is empty", where=str(source), next_step="export or download it again")
    if status.st_size > PROTOBUF_LIMIT:
        raise FileError(
            f"the file has {status.st_size:,} bytes, protobuf allows {PROTOBUF_LIMIT:,}",
            where=str(source),
            next_step="export the model again with its weights in a data file",
        )


def _parse(content: bytes, source: Path) -> ModelProto:
    head = content[:64].lstrip()
    for start, (kind, advice) in _OTHERS.items():
        if head.startswith(start):
            raise FileError(f"{kind}, not an ONNX model", where=str(source), next_step=advice)
    try:
        return ModelProto.FromString(content)
    except DecodeError as error:
        raise FileError(
            "not an ONNX model, cut short, or nested too deeply",
            where=str(source),
            next_step="export or download it again",
        ) from error


def _to_model(proto: ModelProto, folder: Path, *, in_order: bool) -> ir.Model:
    model = ir.from_proto(proto)
    bodies = [model.graph, *(function.graph for function in model.functions.values())]
    for body in bodies:
        ir.external_data.set_base_dir(body, folder)
        if not in_order:
            body.sort()  # raises if there is a cycle
    return model


def _first_line(error: BaseException) -> str:
    """What the innermost cause says; `onnx_ir` wraps each error once a level of nesting."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


# Saving


@contextlib.contextmanager
def _explained(target: Path, size: int) -> Iterator[None]:
    """Turn what other libraries and the operating system raise into a `SaveError`."""
    try:
        yield
    except SaveError as error:
        error.where = error.where or str(target)
        raise
    except OSError as error:
        raise atomic.explain(error, target, size) from error
    except Exception as error:
        raise SaveError(
            f"the model cannot be written as ONNX: {_first_line(error)}",
            where=str(target),
            next_step="mend the model; nothing was changed",
        ) from error


def _check_sources(model: ir.Model) -> None:
    """Weights that lie in files must still be there, or the error would seem to be about the target."""
    for tensor in _outside_tensors(model):
        if tensor.raw is None and tensor.size and not os.path.isfile(tensor.path):
            raise SaveError(
                f"the weights of '{tensor.name}' are gone: '{tensor.path}' is missing",
                next_step="load the model again from where its data file is",
            )


def _outside_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for tensor in (*atomic.weights(model), *_attribute_tensors(model)):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor


def _attribute_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    bodies: list[ir.Graph] = [model.graph, *(function.graph for function in model.functions.values())]
    for body in bodies:
        for node in body.all_nodes():
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield attribute.as_tensor()
                elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                    yield from attribute.as_tensors()


def _run_checker(path: Path, target: Path) -> None:
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        raise SaveError(
            f"not a valid ONNX model: {str(error).strip()[:500]}",
            where=str(target),
            next_step="mend the model, or save with check=False; nothing was changed",
        ) from error


def _keep_readable(model: ir.Model, data: Path) -> None:
    """Map the caller's weights that lie in `data`: a mapping outlives the file's name."""
    for tensor in _outside_tensors(model):
        if tensor.raw is None and tensor.size and os.path.samefile(tensor.path, data):
            tensor.numpy()


# The structure of a file: versions known, every name made once and before it is used


def _check_structure(proto: ModelProto, where: str) -> bool:
    """Refuse what is no usable graph.

    Returns:
        Whether each node comes after what it needs. If not, the nodes must be sorted, which finds cycles.

    Raises:
        FileError: versions, names or functions make no sense, or need a newer onnx.
        UnsafeFileError: the functions unfold to more nodes than any model has.
    """
    _check_versions(proto, where)
    _check_support(proto, where)
    _check_functions(proto, where)
    imported = _domains(proto.opset_import)
    in_order = _check_names(proto.graph, imported, where)
    for function in proto.functions:
        in_order &= _check_names(function, _domains(function.opset_import), f"{where}, function '{function.name}'")
    return in_order


def _check_versions(proto: ModelProto, where: str) -> None:
    if not proto.HasField("graph") or proto.ir_version < 1 or not proto.opset_import:
        raise FileError("no complete ONNX model: graph, IR version or opset is missing", where=where, next_step=_BROKEN)
    if proto.ir_version > onnx.IR_VERSION:
        _refuse_newer(f"IR version {proto.ir_version}", onnx.IR_VERSION, where)
    for imports in (proto.opset_import, *(f.opset_import for f in proto.functions)):
        _check_opsets(imports, where)


def _check_opsets(imports: Iterable[OperatorSetIdProto], where: str) -> None:
    newest = _newest_opsets()
    seen: dict[str, int] = {}
    for opset in imports:
        domain = _domain(opset.domain)
        if opset.version < 1 or seen.setdefault(domain, opset.version) != opset.version:
            raise FileError(f"opset {opset.version} of '{domain}' makes no sense", where=where, next_step=_BROKEN)
        if opset.version > newest.get(domain, opset.version):
            _refuse_newer(f"opset {opset.version} of '{domain or 'ai.onnx'}'", newest[domain], where)


def _newest_opsets() -> dict[str, int]:
    """The newest opset of each of ONNX's own domains; other domains count as they like."""
    newest: tuple[Any, ...] = onnx.helper.VERSION_TABLE[-1]
    learning, training = newest[3:5]
    return {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": learning, "ai.onnx.training": training}


def _refuse_newer(what: str, newest: int, where: str) -> None:
    raise FileError(
        f"{what} is newer than the installed onnx {onnx.__version__} knows ({newest})",
        where=where,
        next_step="pip install --upgrade onnx, or export the model for an older opset",
    )


def _check_support(proto: ModelProto, where: str) -> None:
    """What `onnx_ir` would drop without a word must not be opened."""
    if proto.training_info:
        raise FileError(
            "training information is not supported",
            where=where,
            next_step="remove `training_info` from the model",
        )
    for scope in scopes(proto.graph, *proto.functions):
        sparse = isinstance(scope, GraphProto) and scope.sparse_initializer
        if sparse or any(a.HasField("sparse_tensor") or a.sparse_tensors for n in scope.node for a in n.attribute):
            raise FileError(
                "sparse tensors are not supported", where=where, next_step="store them dense and export again"
            )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _domains(imports: Iterable[OperatorSetIdProto]) -> set[str]:
    return {_domain(opset.domain) for opset in imports}


def _check_functions(proto: ModelProto, where: str) -> None:
    """Functions may call each other, but never in a circle, nor unfold like a chain letter."""
    functions: dict[_FunctionId, FunctionProto] = {}
    for function in proto.functions:
        key = (_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise FileError(f"function '{function.name}' is defined twice", where=where, next_step=_BROKEN)
        functions[key] = function
    calls = {key: _operators(function) for key, function in functions.items()}
    sizes: dict[_FunctionId, int] = {}
    for key in _callees_first(calls, where):
        sizes[key] = _unfolded(calls[key], sizes)
    if _unfolded(_operators(proto.graph), sizes) > _MOST_NODES:
        raise UnsafeFileError(
            f"its functions unfold to more than {_MOST_NODES:,} nodes",
            where=where,
            next_step="do not use this file; get it again from a source you trust",
        )


def _operators(scope: GraphProto | FunctionProto) -> collections.Counter[_FunctionId]:
    return collections.Counter(
        (_domain(node.domain), node.op_type, node.overload) for inner in scopes(scope) for node in inner.node
    )


def _callees_first(calls: dict[_FunctionId, collections.Counter[_FunctionId]], where: str) -> Iterator[_FunctionId]:
    order = graphlib.TopologicalSorter({key: [c for c in called if c in calls] for key, called in calls.items()})
    try:
        order.prepare()
    except graphlib.CycleError as error:
        names = " → ".join(name for _, name, _ in reversed(error.args[1]))
        raise FileError(f"functions call each other in a circle: {names}", where=where, next_step=_BROKEN) from error
    while order.is_active():
        ready = order.get_ready()
        yield from ready
        order.done(*ready)


def _unfolded(called: collections.Counter[_FunctionId], sizes: dict[_FunctionId, int]) -> int:
    return sum(times * sizes.get(operator, 1) for operator, times in called.items())


@dataclasses.dataclass(frozen=True, eq=False)
class _Scope:
    """A graph or function, where each of its values is made, and the node of the outer scope it is in."""

    body: GraphProto | FunctionProto
    made: dict[Any, int]
    outer: _Scope | None = None
    at: int = 0

    def before(self, name: Any, index: int) -> bool | None:
        """Whether `name` is made before node `index`; None if it is made nowhere in sight."""
        scope = self
        while name not in scope.made:
            if scope.outer is None:
                return None
            scope, index = scope.outer, scope.at
        return scope.made[name] < index


def _check_names(root: GraphProto | FunctionProto, imported: set[str], where: str) -> bool:
    in_order = True
    pending = [_Scope(root, _made(root, where))]
    while pending:
        scope = pending.pop()
        for index, node in enumerate(scope.body.node):
            _check_node(node, imported, where)
            in_order &= _check_inputs(node, scope, index, where)
            graphs = [g for attribute in node.attribute for g in subgraphs(attribute)]
            pending.extend(_Scope(g, _made(g, where), scope, index) for g in graphs)
        for output in scope.body.output:
            name = output if isinstance(scope.body, FunctionProto) else output.name
            if name not in scope.made:
                raise FileError(f"output '{name}' is made by no node", where=where, next_step=_BROKEN)
    return in_order


def _made(scope: GraphProto | FunctionProto, where: str) -> dict[Any, int]:
    """Where each value of this scope is made: by which node, or -1 if it is there from the start."""
    function = isinstance(scope, FunctionProto)
    inputs = list(scope.input) if function else [value.name for value in scope.input]
    initializers = [] if function else [tensor.name for tensor in scope.initializer]
    _refuse_twice(inputs, where)
    _refuse_twice(initializers, where)
    made = dict.fromkeys([*inputs, *initializers], -1)
    for index, node in enumerate(scope.node):
        for name in filter(None, node.output):
            if name in made:
                _refuse_twice([name, name], where)
            made[name] = index
    return made


def _refuse_twice(names: list[Any], where: str) -> None:
    twice = [name for name, times in collections.Counter(names).items() if times > 1 or not name]
    if twice:
        what = f"the name '{twice[0]}' is given to two values" if twice[0] else "an input or weight has no name"
        raise FileError(what, where=where, next_step=_BROKEN)


def _check_node(node: NodeProto, imported: set[str], where: str) -> None:
    if not isinstance(node.op_type, str) or not node.op_type:
        raise FileError(f"node '{node.name}' has no operator", where=where, next_step=_BROKEN)
    if _domain(node.domain) not in imported:
        raise FileError(
            f"the model does not import '{node.domain or 'ai.onnx'}', the domain of operator {node.op_type}",
            where=where,
            next_step="add the domain to the model's opset_import",
        )
    if len({attribute.name for attribute in node.attribute}) < len(node.attribute):
        raise FileError(f"node '{node.name}' has an attribute twice", where=where, next_step=_BROKEN)


def _check_inputs(node: NodeProto, scope: _Scope, index: int, where: str) -> bool:
    in_order = True
    for name in filter(None, node.input):
        before = scope.before(name, index)
        if before is None:
            raise FileError(
                f"node '{node.name}' ({node.op_type}) needs '{name}', which nothing makes",
                where=where,
                next_step=_BROKEN,
            )
        in_order &= before
    return in_order
