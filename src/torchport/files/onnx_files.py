"""Opens ONNX files that may be broken or hostile, and saves models so that no crash can break one.

    >>> model = load("model.onnx")
    >>> save(model, "model.onnx")

A file is checked in full before a model is made of it. `onnx.checker` has its say when a model is saved, not
when one is opened: see `well_formed`.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import ModelProto, TensorProto

from torchport.errors import FileError, InputError, SaveError, TorchportError, first_line
from torchport.facade import shown
from torchport.files import reader, writer
from torchport.files.commit import commit, staging
from torchport.files.external_data import check_external
from torchport.files.filesystem import check_space, check_target, explain
from torchport.files.partial_load import narrowed
from torchport.files.protobuf import remember
from torchport.files.validation import BROKEN, check_well_formed
from torchport.files.writer import draft_inside, draft_outside
from torchport.irtools.metadata import unmarked
from torchport.irtools.names import own_tensor
from torchport.irtools.serialization import proto_tensors, state_ranks, unread_tensors, weights
from torchport.irtools.traversal import all_values, bodies
from torchport.process import uncollected

ModelLike = ir.Model | ModelProto | str | os.PathLike[str]
INLINE_LIMIT = 3 * 2**29  # 1.5 GiB of weights: below protobuf's 2 GiB, with room for the graph


def load(path: str | os.PathLike[str] | ModelProto) -> ir.Model:
    """Open an ONNX file, trusting nothing in it.

    Weights in a data file are mapped into memory when they are first read, and not before.

    Args:
        path: the file; or a message, which is checked in the same way, is not changed and keeps its weights.

    Raises:
        FileError: the file is missing, broken, of another format, or needs a newer onnx.
        UnsafeFileError: it reaches outside its folder or lies about sizes.
    """
    return _of_message(path) if isinstance(path, ModelProto) else _opened(path, reader.parse)


def as_model(given: ModelLike) -> ir.Model:
    """Return a model in memory as it is, and one in a file or message as `load` does.

    Raises:
        InputError: it is no model.
    """
    if isinstance(given, (ModelProto, str, os.PathLike)):
        return load(given)
    if not isinstance(given, ir.Model):
        raise InputError(
            f"{shown(given)} is no model",
            next_step="give the path of an ONNX file, an onnx_ir.Model or an onnx.ModelProto",
        )
    return given


def load_between(path: str | os.PathLike[str], inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """Open of a file what lies between some tensors, or a little more; as `load`, quicker if there are many nodes.

    Nodes and weights that are not needed are neither made nor checked.

    Args:
        path: the file.
        inputs: tensors or nodes to begin at; none for the model's inputs.
        outputs: tensors or nodes to end at; none for the model's outputs.

    Raises:
        FileError: as `load`.
    """

    def parse(content: bytes, source: Path) -> ModelProto:
        return narrowed(content, inputs, outputs) or reader.parse(content, source)

    return _opened(path, parse)


def _of_message(proto: ModelProto) -> ir.Model:
    """The model of a message, with tensors of its own: onnx_ir would rename those of the message with the model's."""
    source = Path("the ModelProto")
    outside = [
        t.name for t in proto_tensors(proto) if isinstance(t, TensorProto) and t.data_location == TensorProto.EXTERNAL
    ]
    if outside:
        raise FileError(
            f"the weights of '{outside[0]}' are in a data file, and a message does not say in which folder",
            next_step="give the path of the file; or load the data too, which onnx.load does",
        )
    with _readable(source):
        check_external(proto, Path(), source=source)
        model = _to_model(proto, None, in_order=check_well_formed(proto, str(source)))
    for value in (v for graph in model.graphs() for v in graph.initializers.values()):
        if value.const_value is not None:
            value.const_value = own_tensor(value.const_value, str(value.name))
    return model


@contextlib.contextmanager
def _readable(source: Path) -> Iterator[None]:
    """Turn what other libraries raise on a broken model into a `FileError`."""
    try:
        yield
    except TorchportError:
        raise
    except Exception as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else first_line(_innermost(error))
        raise FileError(f"cannot be read as a model: {reason}", where=str(source), next_step=BROKEN) from error


def _opened(path: str | os.PathLike[str], parse: Callable[[bytes, Path], ModelProto]) -> ir.Model:
    source = Path(path)
    content = reader.read(source)
    with _readable(source):
        proto = parse(content, source)
        del content
        folder = source.parent.absolute()
        check_external(proto, folder, source=source)
        in_order = check_well_formed(proto, str(source))
        return _to_model(proto, folder, in_order=in_order)


def _to_model(proto: ModelProto, folder: Path | None, *, in_order: bool) -> ir.Model:
    with uncollected():
        model = ir.from_proto(proto)
        remember(proto, model)
    for value in all_values(model):
        if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
            dims = [None if isinstance(d, int) and d < 0 else d for d in value.shape]
            value.shape = ir.Shape(dims)  # older programs write -1 for a size that may vary, and engines take it so
    for body in bodies(model):
        if folder is not None:
            ir.external_data.set_base_dir(body, folder)
        if not in_order:
            body.sort()  # raises if there is a cycle
    return model


def save(model: ModelLike, path: str | os.PathLike[str], *, external: bool | None = None, check: bool = True) -> Path:
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
    model, target = as_model(model), check_target(path)
    size = weight_bytes(model)
    outside = size > INLINE_LIMIT if external is None else external
    if outside:  # where weights that are one object are written once
        size = sum(tensor.nbytes for tensor in {id(t): t for t in weights(model)}.values())
    with _explained(target, size), unmarked(model):
        _check_sources(model)
        check_space(target, size)
        with staging(target) as folder:
            if outside:
                draft = draft_outside(model, folder, target)
                skeleton = draft.onnx
            else:
                draft, skeleton = draft_inside(model, folder, target)
            if check:
                _run_checker(skeleton, target)
            commit(draft, target, before_removal=lambda data: _keep_readable(model, data))
    return target


def to_bytes(model: ir.Model) -> bytes:
    """The model as one protobuf message, weights included; the same bytes each time.

    Raises:
        SaveError: it takes more than the 2 GiB protobuf allows.
    """
    out = io.BytesIO()
    with _explained(Path("memory"), weight_bytes(model)), unmarked(model):
        writer.write_inside(model, out)
    return out.getvalue()


def weight_bytes(model: ir.Model) -> int:
    """How many bytes the model's weights take; none is read to find out."""
    return sum(tensor.nbytes for tensor in weights(model))


@contextlib.contextmanager
def _explained(target: Path, size: int) -> Iterator[None]:
    """Turn what other libraries and the operating system raise into a `SaveError`."""
    try:
        yield
    except SaveError as error:
        error.where = error.where or str(target)
        raise
    except OSError as error:
        raise explain(error, target, size) from error
    except Exception as error:
        raise SaveError(
            f"the model cannot be written as ONNX: {first_line(_innermost(error))}",
            where=str(target),
            next_step="mend the model; nothing was changed",
        ) from error


def _check_sources(model: ir.Model) -> None:
    """Weights that lie in files must still be there, or the error would seem to be about the target."""
    for tensor in unread_tensors(model):
        if not os.path.isfile(tensor.path):
            raise SaveError(
                f"the weights of '{tensor.name}' are gone: '{tensor.path}' is missing",
                next_step="load the model again from where its data file is",
            )


def _run_checker(path: Path, target: Path) -> None:
    try:
        _check(path)
    except onnx.checker.ValidationError as error:
        raise SaveError(
            f"not a valid ONNX model: {str(error).strip()[:500]}",
            where=str(target),
            next_step="mend the model, or save with check=False; nothing was changed",
        ) from error


def _check(path: Path) -> None:
    """Have onnx check a model; a part of a model may have inputs and outputs of which nobody knows the rank."""
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError:
        proto = onnx.load(path, load_external_data=False)
        if not state_ranks(proto):
            raise
        onnx.save(proto, path.with_name("ranks.onnx"))
        onnx.checker.check_model(path.with_name("ranks.onnx"))


def _keep_readable(model: ir.Model, data: Path) -> None:
    """Map the caller's weights that lie in `data`: a mapping outlives the file's name."""
    for tensor in unread_tensors(model):
        if os.path.samefile(tensor.path, data):
            tensor.numpy()


def _innermost(error: BaseException) -> BaseException:
    """Return the first cause: `onnx_ir` wraps each error once a level of nesting."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
