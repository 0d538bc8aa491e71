"""Writes a model so that a crash, a full disk or a second writer leaves the old one or the new, never a mix.

Everything is written and flushed in a hidden folder beside the target (the same disk, so moving is atomic).
Then the data file, named by its content, is moved into place, where nothing refers to it yet; then the
`.onnx`, the one moment the new model begins to exist. Weights pass tensor by tensor and are never held twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import mmap
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from torchport.errors import SaveError
from torchport.graph.external import tensors

try:
    import fcntl
except ImportError:  # Windows: os.replace alone keeps each file whole there
    fcntl = None  # type: ignore[assignment]

PROTOBUF_LIMIT = 2**31 - 1
_SMALL = 1024  # smaller weights stay in the .onnx: shape arguments and scalars, which tools like to see
_PAGE_FROM = 64 * 1024
_CHUNK = 1 << 20
_SUFFIX = ".torchport"
_LOCK_SECONDS = 60.0


_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Sink(Protocol):
    """What bytes are written to."""

    def write(self, data: Any, /) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Draft:
    """A model written in full, not yet where it belongs."""

    onnx: Path
    data: Path | None


# Weights


def pour(tensor: ir.TensorProtocol, sink: Sink) -> None:
    """Write a tensor's bytes piece by piece, copying none that can be written from where they are.

    Raises:
        ValueError: the tensor holds another number of bytes than its shape and type say.
    """
    counted = _Counted(sink)
    if isinstance(tensor, ir.ExternalTensor) and tensor.raw is None:
        tensor.tofile(counted)  # reads a megabyte at a time, and maps nothing
    else:
        view = _view(tensor)
        for start in range(0, len(view), _CHUNK):
            counted.write(view[start : start + _CHUNK])
    if counted.bytes != tensor.nbytes:
        raise ValueError(f"tensor '{tensor.name}' holds {counted.bytes} bytes and should hold {tensor.nbytes}")


class _Counted:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bytes = 0

    def write(self, data: Any, /) -> None:
        self._sink.write(data)
        self.bytes += len(data)


def _view(tensor: ir.TensorProtocol) -> memoryview:
    if isinstance(tensor, ir.ExternalTensor) and tensor.raw is not None:
        start = tensor.offset or 0
        return memoryview(tensor.raw)[start : start + tensor.nbytes]
    if tensor.dtype.bitwidth >= 8 and not isinstance(tensor, ir.serde.TensorProtoTensor):
        array = tensor.numpy()
        if array.flags.c_contiguous and array.dtype.newbyteorder("<") == array.dtype:
            return array.reshape(-1).view(np.uint8).data
    return memoryview(tensor.tobytes())


class _DataFile:
    """An external data file: aligned, equal tensors once, and named by its own sha256.

    64 bytes suit every vector instruction; large tensors start on a page, so that engines can map them.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._tensor_hash = hashlib.sha256()
        self._places: dict[bytes, int] = {}

    def add(self, tensor: ir.TensorProtocol) -> int:
        """Write the tensor, unless the same bytes are there already, and say at which offset they are."""
        end, before = self._file.tell(), self._hash.copy()
        self.write(bytes(-end % (4096 if tensor.nbytes >= _PAGE_FROM else 64)))
        offset = self._file.tell()
        self._tensor_hash = hashlib.sha256()
        pour(tensor, self)
        place = self._places.setdefault(self._tensor_hash.digest(), offset)
        if place != offset:
            self._file.seek(end)
            self._file.truncate()
            self._hash = before
        return place

    def write(self, data: Any, /) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._tensor_hash.update(data)

    def name(self, stem: str) -> str:
        return f"{stem}.{self._hash.hexdigest()[:16]}.data"


# Drafts


def draft_outside(model: ir.Model, folder: Path, target: Path) -> Draft:
    """Write the weights into a data file and the rest into an `.onnx` that refers to it."""
    large = {id(t): t for t in weights(model) if _streams(t) and t.nbytes >= _SMALL}
    data, offsets = _write_data(large, folder, target.stem) if large else (None, {})

    def place(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if data is None or id(tensor) not in offsets:
            return _settled(tensor)
        return _reference(tensor, data.name, offsets[id(tensor)])

    proto = _to_proto(_ModelView(model, place, place))
    path = folder / target.name
    _write_file(path, [_serialized(proto)])
    return Draft(path, data)


def _write_data(large: dict[int, ir.TensorProtocol], folder: Path, stem: str) -> tuple[Path, dict[int, int]]:
    path = folder / "data"
    with path.open("xb") as file:
        data = _DataFile(file)
        offsets = {key: data.add(tensor) for key, tensor in large.items()}
        _sync(file)
    return path.rename(folder / data.name(stem)), offsets


def draft_inside(model: ir.Model, folder: Path, target: Path) -> tuple[Draft, Path]:
    """Write the whole model into one file.

    Returns:
        The draft, and a file for the checker: the same model whose weights are references into the draft, so
        that checking does not take the memory of the weights twice over.
    """
    path, skeleton = folder / target.name, folder / "check.onnx"
    proto, held = _skeleton(model, target.name)
    skeleton.write_bytes(_serialized(proto))
    _write_file(path, _inline(proto, held))
    return Draft(path, None), skeleton


def write_inside(model: ir.Model, sink: Sink) -> None:
    """Write the model as one protobuf message, its weights streamed."""
    for part in _inline(*_skeleton(model, "")):
        _write_part(part, sink)


def weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The initializers of the model, of its subgraphs and of those in its functions."""
    roots: list[ir.Graph] = [model.graph, *(function.graph for function in model.functions.values())]
    for root in roots:
        for graph in (root, *root.subgraphs()):
            yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)


def _to_proto(view: _ModelView) -> ModelProto:
    return ir.serde.serialize_model(view)  # type: ignore[arg-type]  # a view has all a model has


def _streams(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING


def _skeleton(model: ir.Model, location: str) -> tuple[ModelProto, list[ir.TensorProtocol]]:
    """The model without the weights of its main graph, and these."""
    held: list[ir.TensorProtocol] = []

    def hold(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not _streams(tensor):
            return tensor
        held.append(tensor)
        return _reference(tensor, location, 0)

    return _to_proto(_ModelView(model, hold, _settled)), held


def _inline(proto: ModelProto, held: list[ir.TensorProtocol]) -> list[bytes | ir.TensorProtocol]:
    """The protobuf message of `proto` with `held` put back, as pieces to be written one after the other.

    protobuf's own serializer wants all weights in memory, and then makes a second copy of them. Its format is
    simple enough (a key, a length, the content) to put the weights between the pieces it writes.
    """
    rest = iter(held)
    pieces: list[bytes | ir.TensorProtocol] = []
    for tensor in proto.graph.initializer:
        pieces.extend(_initializer(tensor, rest))
    del proto.graph.initializer[:]
    graph = _serialized(proto.graph)
    proto.ClearField("graph")
    size = len(graph) + sum(len(p) if isinstance(p, bytes) else p.nbytes for p in pieces)
    head = _serialized(proto) + _field(ModelProto, "graph", size) + graph
    if len(head) + size > PROTOBUF_LIMIT:
        raise _too_large(len(head) + size)
    return [head, *pieces]


def _initializer(proto: TensorProto, rest: Iterator[ir.TensorProtocol]) -> list[bytes | ir.TensorProtocol]:
    if proto.data_location != TensorProto.EXTERNAL:
        content = _serialized(proto)
        return [_field(GraphProto, "initializer", len(content)) + content]
    tensor = next(rest)
    proto.ClearField("data_location")
    proto.ClearField("external_data")
    content = _serialized(proto) + _field(TensorProto, "raw_data", tensor.nbytes)
    return [_field(GraphProto, "initializer", len(content) + tensor.nbytes) + content, tensor]


def _field(message: Any, name: str, length: int) -> bytes:
    """The key of a length-delimited field and the length, as protobuf encodes them."""
    return _varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _serialized(message: Any) -> bytes:
    try:
        return bytes(message.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        raise _too_large(PROTOBUF_LIMIT + 1) from error


def _too_large(size: int) -> SaveError:
    return SaveError(
        f"the model takes {size:,} bytes or more without a data file, protobuf allows {PROTOBUF_LIMIT:,}",
        next_step="save with external=True; large constants must be initializers for it to help",
    )


def _write_file(path: Path, pieces: list[Any]) -> None:
    with path.open("xb") as file:
        for piece in pieces:
            _write_part(piece, file)
        _sync(file)


def _write_part(piece: bytes | ir.TensorProtocol, sink: Sink) -> None:
    if isinstance(piece, bytes):
        sink.write(piece)
    else:
        pour(piece, sink)


def _reference(tensor: ir.TensorProtocol, location: str, offset: int) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location,
        offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _settled(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor in memory: one in a file of its own would be written as a reference to that file.

    A tensor from a protobuf would get its metadata a second time (onnx-ir 1.1), so it is made anew as well.
    """
    proto = isinstance(tensor, ir.serde.TensorProtoTensor)
    if not isinstance(tensor, ir.ExternalTensor) and not (proto and tensor.metadata_props):
        return tensor
    return ir.Tensor(
        tensor.numpy(),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


# Views: the model as it is to be written, the caller's left as it is. (Cloning takes longer than writing.)

_Place = Callable[[ir.TensorProtocol], ir.TensorProtocol]
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


class _View:
    """Another object, but for what a subclass overrides."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __len__(self) -> int:
        return len(self._of)


class _ModelView(_View):
    def __init__(self, model: ir.Model, place: _Place, nested: _Place) -> None:
        super().__init__(model)
        self.graph = _GraphView(model.graph, place, nested)
        self.functions = {key: _BodyView(f, nested) for key, f in model.functions.items()}


class _BodyView(_View):
    """A function or graph whose nodes have their tensors and subgraphs placed."""

    def __init__(self, body: Any, nested: _Place) -> None:
        super().__init__(body)
        self._nested = nested

    def __iter__(self) -> Iterator[Any]:
        for node in self._of:
            placed = any(a.type in _GRAPHS or a.type in _TENSORS for a in node.attributes.values())
            yield _NodeView(node, self._nested) if placed else node


class _GraphView(_BodyView):
    def __init__(self, graph: Any, place: _Place, nested: _Place) -> None:
        super().__init__(graph, nested)
        self.initializers = {
            name: value if value.const_value is None else _ValueView(value, place(value.const_value))
            for name, value in graph.initializers.items()
        }


class _ValueView(_View):
    def __init__(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        super().__init__(value)
        self.const_value = tensor


class _NodeView(_View):
    def __init__(self, node: ir.Node, nested: _Place) -> None:
        super().__init__(node)
        self.attributes = {name: _placed(a, nested) for name, a in node.attributes.items()}


def _placed(attribute: Any, nested: _Place) -> Any:
    if attribute.is_ref() or attribute.type not in (*_GRAPHS, *_TENSORS):
        return attribute
    one: Any = _settled if attribute.type in _TENSORS else lambda graph: _GraphView(graph, nested, nested)
    several = attribute.type in (ir.AttributeType.GRAPHS, ir.AttributeType.TENSORS)
    value = [one(v) for v in attribute.value] if several else one(attribute.value)
    return ir.Attr(attribute.name, attribute.type, value, doc_string=attribute.doc_string)


# Places


def check_target(path: str | os.PathLike[str]) -> Path:
    """Say early, before long work, whether a file can be written at `path`.

    Raises:
        SaveError: the folder is missing or cannot be written, or something that is no file is in the way.
    """
    target = Path(path)
    try:
        folder = os.stat(target.parent).st_mode
        writable = os.access(target.parent, os.W_OK | os.X_OK)
        in_the_way = not target.name or _in_the_way(target)
    except (OSError, ValueError) as error:
        raise SaveError(
            f"the folder '{target.parent}' cannot be used: {getattr(error, 'strerror', error)}",
            where=str(target),
            next_step="create the folder, or give another path",
        ) from error
    if not stat.S_ISDIR(folder) or in_the_way:
        raise SaveError("no file can be written here", where=str(target), next_step="give a path such as model.onnx")
    if not writable:
        raise SaveError(
            f"the folder '{target.parent}' cannot be written to",
            where=str(target),
            next_step="change its permissions, or give another path",
        )
    return target


def _in_the_way(target: Path) -> bool:
    """Whether a folder or device has the name; a link is replaced, never written through."""
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or target.is_dir()


def check_space(target: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    if shutil.disk_usage(target.parent).free < needed:
        raise _full(target, needed)


def explain(error: OSError, target: Path, needed: int) -> SaveError:
    """What the operating system's refusal means to someone saving a model."""
    if error.errno in _FULL:
        return _full(target, needed)
    writable = "change its permissions, or give another path" if error.errno in _NOT_WRITABLE else "give another path"
    return SaveError(
        f"cannot be written: {error.strerror or error}",
        where=str(target),
        next_step=f"{writable}; nothing was changed",
    )


def _full(target: Path, needed: int) -> SaveError:
    free = shutil.disk_usage(target.parent).free
    return SaveError(
        f"not enough space: {needed:,} bytes are needed, {free:,} are free",
        where=str(target),
        next_step="free some space or a quota, or give a path on another disk; nothing was changed",
    )


# Committing


@contextlib.contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target` to work in, gone afterwards whatever happens.

    It is locked while in use. One without a lock was left by a process that was killed, and is removed.
    """
    prefix = f".{target.name}."
    with _locked(target.parent):
        _sweep(target.parent, prefix)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=prefix, suffix=_SUFFIX))
        handle = _open_folder(folder)
        _try_lock(handle)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _close_folder(handle)


def commit(draft: Draft, target: Path, *, before_removal: Callable[[Path], None]) -> None:
    """Move a draft to where it belongs, and remove the data file only the model it replaces needed.

    Args:
        draft: the model, flushed to disk.
        target: where its `.onnx` goes; the data file goes beside it.
        before_removal: called with each old data file before it is removed.
    """
    with contextlib.suppress(FileNotFoundError):
        shutil.copymode(target, draft.onnx)
    with _locked(target.parent):
        old = _data_names(target)
        _move(draft, target)
        for name in sorted(old - {draft.data.name if draft.data else ""}):
            with contextlib.suppress(OSError):  # the new model is there; what is left over harms nobody
                if not _mentioned(name, target):
                    before_removal(target.parent / name)
                    os.unlink(target.parent / name)


def _move(draft: Draft, target: Path) -> None:
    fresh = None
    try:
        if draft.data is not None:
            data = target.parent / draft.data.name
            fresh = None if os.path.lexists(data) else data
            os.replace(draft.data, data)
            _sync_folder(target.parent)
        os.replace(draft.onnx, target)
    except BaseException:
        if fresh is not None and draft.onnx.exists():  # not committed: nothing refers to the data
            fresh.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _data_names(target: Path) -> set[str]:
    """The data files of the model at `target` that bear the names given here, if there is such a model."""
    ours = re.compile(re.escape(target.stem) + r"\.[0-9a-f]{16}\.data")
    present = {entry.name for entry in os.scandir(target.parent) if ours.fullmatch(entry.name)}
    if not present or not target.is_file() or target.stat().st_size > PROTOBUF_LIMIT:
        return set()
    try:
        proto = ModelProto.FromString(target.read_bytes())
    except DecodeError:
        return set()
    outside = (t for t in tensors(proto) if isinstance(t, TensorProto) and t.data_location == TensorProto.EXTERNAL)
    return present & {e.value for t in outside for e in t.external_data if e.key == "location"}


def _mentioned(name: str, target: Path) -> bool:
    """Whether another model in the folder, a copy of the old one say, still needs the data file."""
    others = [p for p in target.parent.glob("*.onnx") if p.name != target.name and p.is_file()]
    return any(_holds(other, name.encode()) for other in others)


def _holds(path: Path, text: bytes) -> bool:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0


# Locks and flushing. Windows can do neither with folders; os.replace keeps each file whole there anyway.


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one writer at a time change what is in the folder; the lock ends with the process that holds it."""
    handle = _open_folder(folder)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise SaveError(
                    f"another program has kept the folder locked for {_LOCK_SECONDS:.0f} s",
                    where=str(folder),
                    next_step="end that program, or give a path in another folder",
                )
            time.sleep(0.01)
        yield
    finally:
        _close_folder(handle)


def _try_lock(handle: int | None) -> bool:
    """Whether the lock was free, or the file system has none."""
    if handle is None or fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _sweep(folder: Path, prefix: str) -> None:
    if fcntl is None:
        return
    for entry in list(os.scandir(folder)):
        left = entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX)
        if left and entry.is_dir(follow_symlinks=False):
            handle = _open_folder(Path(entry.path))
            if _try_lock(handle):
                shutil.rmtree(entry.path, ignore_errors=True)
            _close_folder(handle)


def _open_folder(folder: Path) -> int | None:
    return None if os.name == "nt" else os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def _close_folder(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = _open_folder(folder)
    if handle is not None:
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
