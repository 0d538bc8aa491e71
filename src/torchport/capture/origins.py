"""The user's own line behind a failure, a guard or a node, and the origin that is written on each ONNX node."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING

import onnx_ir as ir

from torchport.irtools.metadata import CALL, MODULE, OPERATOR, SOURCE, write_folded
from torchport.irtools.traversal import all_nodes
from torchport.results import Origin
from torchport.torch_compat.exporter import FOLDED_NODES

if TYPE_CHECKING:
    import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple({sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")})
_FRAMEWORKS = tuple(
    os.sep + os.path.join("site-packages", name) + os.sep
    for name in ("torch", "sympy", "onnx", "onnxscript", "onnx_ir", "onnxruntime", "click")
)


def is_user_file(path: str) -> bool:
    """Whether a source file is the user's (or a model library's), not the machinery's."""
    if not path or path.startswith("<") or is_own_file(path):
        return False
    if any(part in path for part in _FRAMEWORKS):
        return False
    return not path.startswith(_LIBRARIES) or "site-packages" in path


def is_own_file(path: str) -> bool:
    """Check that a source file is one of torchport's."""
    return path.startswith(_PACKAGE + os.sep)


def place(path: str, line: int | None) -> str:
    """``model.py:12``, relative where the file lies below the working folder."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return f"{path if relative.startswith('..') else relative}:{line}"


def line_of_error(error: BaseException) -> str:
    """The innermost line of the user's code an exception came through, with its text; empty if none."""
    found = _in_text(str(error))
    if found:
        return found
    chain: BaseException | None = error
    while chain is not None:
        found = _in_traceback(chain.__traceback__)
        if found:
            return found
        chain = chain.__cause__ or chain.__context__
    return ""


def _in_traceback(tb: TracebackType | None) -> str:
    return _last_user_frame(traceback.extract_tb(tb))


def _last_user_frame(frames: traceback.StackSummary) -> str:
    for frame in reversed(frames):
        if is_user_file(frame.filename):
            code = f": {frame.line}" if frame.line else ""
            return place(frame.filename, frame.lineno) + code
    return ""


def site_of_error(error: BaseException) -> Site | None:
    """The innermost place in the user's code an exception came through."""
    chain: BaseException | None = error
    while chain is not None:
        frames = [(f.f_code, line) for f, line in traceback.walk_tb(chain.__traceback__)]
        site = _site(reversed(frames))
        if site is not None:
            return site
        chain = chain.__cause__ or chain.__context__
    return None


def site_of_stack(frame: FrameType) -> Site | None:
    """The innermost place in the user's code that is running."""
    return _site((f.f_code, line) for f, line in traceback.walk_stack(frame))


def line_of_frame(frame: FrameType) -> str:
    """The innermost line of the user's code that is running, with its text; empty if none."""
    return _last_user_frame(traceback.extract_stack(frame))


def place_of_frame(frame: FrameType | None) -> str:
    """Return the user's line that a frame was called from, ``model.py:12``; empty if there is none."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


def _site(frames: Iterable[tuple[CodeType, int]]) -> Site | None:
    own = [(code, line) for code, line in frames if is_user_file(code.co_filename)]
    return Site(tuple(code for code, _ in own), own[0][1]) if own else None


_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)(?:, in [^\n]*)?(?:\n +([^\n]+))?')


def _in_text(text: str) -> str:
    """torch quotes the user's stack in some messages."""
    for path, line, code in reversed(_FILE_LINE.findall(text)):
        if is_user_file(path):
            return place(path, int(line)) + (f": {code.strip()}" if code else "")
    return ""


def line_of_stack(stack: str) -> str:
    """The user's line in a quoted stack, as ``file.py:12``."""
    for path, line, _ in reversed(_FILE_LINE.findall(stack)):
        if is_user_file(path):
            return place(path, int(line))
    for path, line in re.findall(r"(?m)^(\S+?)\((\d+)\): ", stack):
        if is_user_file(path):
            return place(path, int(line))
    return ""


# A place in the user's code.


@dataclasses.dataclass(frozen=True)
class Site:
    """A line, and the code of the user's functions that led there, the innermost first."""

    codes: tuple[CodeType, ...]
    line: int


# The origin of each node, in a few short entries of its metadata. torch's routes leave a stack trace, scopes and the
# operator in forms of their own, some of them kilobytes a node. They are read once and replaced.


_TORCH = "pkg.torch.onnx."
# torch names a Python function by its repr, which holds an address: <function sym_float at 0x7f...>
_FUNCTION = re.compile(r"<(?:built-in )?function ([\w.]+)(?: at 0x[0-9a-f]+)?>")
_PART = re.compile(r"_split_\d+$")  # what torch's optimizer calls the parts of a tensor
_NO_MODULE = "_empty_nn_module_stack"  # what torch writes where it does not know


def complete_metadata(model: ir.Model, program: torch.export.ExportedProgram) -> None:
    """Give what torch leaves on nodes to those that its optimizer made, told by the names of their outputs."""
    calls = {node.name: node for node in program.graph.nodes if node.op == "call_function"}
    for node in all_nodes(model):
        if _TORCH + "name_scopes" in node.metadata_props:
            continue
        names = [_PART.sub("", str(v.name)) for v in node.outputs]
        call = next((calls[name] for name in names if name in calls), None)
        if call is not None:
            modules = [path for path, _ in call.meta.get("nn_module_stack", {}).values()]
            node.metadata_props[_TORCH + "name_scopes"] = repr([*modules, call.name])
            node.metadata_props[_TORCH + "class_hierarchy"] = repr([str(call.target)])
            node.metadata_props[_TORCH + "stack_trace"] = call.meta.get("stack_trace") or ""


def write_origins(model: ir.Model) -> None:
    """Replace what the routes left on every node by torchport's entries."""
    for node in all_nodes(model):
        origin = _from_metadata(node) or _from_doc(node)
        folded = _folded(node, origin)
        node.doc_string = None
        for key in [k for k in node.metadata_props if k.startswith(_TORCH) or k == "namespace"]:
            del node.metadata_props[key]
        for key, text in ((MODULE, origin.module), (SOURCE, origin.source), (OPERATOR, origin.operator)):
            if text:
                node.metadata_props[key] = text
        if folded:
            write_folded(node, folded)
    for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    for key in [k for k in model.graph.metadata_props if k.startswith(_TORCH)]:
        del model.graph.metadata_props[key]


def _from_metadata(node: ir.Node) -> Origin | None:
    """What the `export` route leaves: ``['', 'model', 'model.fc', 'linear']`` and the classes beside it."""
    scopes = node.metadata_props.get(_TORCH + "name_scopes")
    if scopes is None:
        return None
    node.metadata_props[CALL] = ast.literal_eval(scopes)[-1]
    return _origin(node.metadata_props)


def _origin(left: Mapping[str, str]) -> Origin:
    path = ast.literal_eval(left.get(_TORCH + "name_scopes", "[]"))
    classes = ast.literal_eval(left.get(_TORCH + "class_hierarchy", "[]"))
    module = _without_prefix(path[-2]) if len(path) > 1 and not path[-2].startswith(_NO_MODULE) else ""
    stack = left.get(_TORCH + "stack_trace", "")
    return Origin(module, line_of_stack(stack), _FUNCTION.sub(r"\1", classes[-1]) if classes else "")


def _folded(node: ir.Node, own: Origin) -> list[tuple[str, Origin]]:
    """Return the operators and origins of the nodes that torch's optimizer made this one of, if they have several."""
    entries = json.loads(node.metadata_props.get(FOLDED_NODES, "[]"))
    found = list(dict.fromkeys((op_type, _origin(left)) for op_type, left in entries))
    return found if any(origin != own for _, origin in found) else []


def _from_doc(node: ir.Node) -> Origin:
    """What the TorchScript routes leave: a node name that is a path, the stack as its doc string."""
    parts = (node.name or "").split("/")
    # "/model/layer/layer.0/Conv": each part repeats the ones above it, the last is the operator.
    module = ""
    for part in parts[1:-1]:
        module = part if not module or part.startswith(module + ".") else f"{module}.{part}"
    return Origin(_without_prefix(module), line_of_stack(node.doc_string or ""), "")


def _without_prefix(module: str) -> str:
    return "" if module == "model" else module.removeprefix("model.")
