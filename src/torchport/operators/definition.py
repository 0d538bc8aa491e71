"""An operator defined once: its PyTorch implementation, shapes, ONNX lowering and kernel in one object.

    @tp.operator("mylib::my_add")
    def my_add(a: Tensor, b: Tensor, alpha: float = 3.0) -> Tensor:
        return a * alpha + b

    my_add.onnx("mylib::MyAdd")
    my_add.kernel("my_add.cc")

Everything that handles models asks here: exports how to write it, sessions how to run it.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from torchport.engines.custom_operators import register_provider
from torchport.engines.onnxruntime import kernel_libraries
from torchport.errors import CaptureError, OptionError, SaveError, first_line
from torchport.operators import fake_shapes, pytorch_calls
from torchport.torch_compat import registries

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_NODE = re.compile(r"[A-Za-z_][\w.]*::[A-Za-z_]\w*")
_TEXTS = re.compile(r"([Ll]ist|Sequence)\[str\]")
TAKEN = ("aten", "prims", "prim", "onnx", "torchport", "")

_defined: dict[str, Operator] = {}
_from_python: set[str] = set()  # these may be defined again, as in a notebook

Function = Callable[..., Any]


def operator(name: str, *, schema: str | None = None) -> Any:
    """Define an operator, or take over one that a C++ extension has defined with TORCH_LIBRARY.

    Args:
        name: ``mylib::my_add``.
        schema: ``"(Tensor a, Tensor b, float alpha=3.0) -> Tensor"`` for functions without annotations.

    Returns:
        A decorator for the PyTorch implementation; the `Operator` itself if torch knows the operator already.

    Example:
        >>> @tp.operator("mylib::my_add")
        ... def my_add(a: Tensor, b: Tensor, alpha: float = 3.0) -> Tensor:
        ...     return a * alpha + b
        >>> loaded = tp.operator("mylib::from_cpp")        # after torch.ops.load_library(...)
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise OptionError(f"'{name}' names no operator", next_step='write it as "domain::name": "mylib::my_add"')
    check_words(name)
    space = name.partition("::")[0]
    if space in TAKEN:
        raise OptionError(
            f"'{space}' is not yours to define operators in",
            next_step='take a domain of your own; @tp.symbolic("aten::...") maps an operator that is there',
        )
    known = registries.overloads(name)
    if known and name not in _from_python:
        if schema is not None:
            raise OptionError(f"torch knows {name} already, with its own schema", next_step="leave schema out")
        if "default" not in known:
            raise OptionError(f"{name} has overloads only: {', '.join(known)}", next_step="name it without a dot")
        return Operator(name, known["default"], None)

    def define(function: Function) -> Operator:
        return Operator(name, _registered(name, function, schema), function)

    return define


def check_words(name: str) -> None:
    """torch writes calls of operators as Python code, where a keyword is no name."""
    for word in name.split("::"):
        if keyword.iskeyword(word):
            raise OptionError(f"'{word}' is a keyword of Python, no name for an operator", next_step=f"try '{word}_op'")


def _registered(name: str, function: Function, schema: str | None) -> Any:
    """The function as an operator of torch's."""
    if not callable(function):
        raise OptionError(f"{name} wants a function, not {function!r}")
    try:
        text = schema if schema is not None else _schema_of(function)
        torch.library.custom_op(name, function, mutates_args=(), schema=text)
        _from_python.add(name)
    except (ValueError, RuntimeError, TypeError) as error:
        raise OptionError(
            f"{name} cannot be defined: {first_line(error)}",
            where=_place(function),
            next_step="annotate every parameter and the result (Tensor, Optional[Tensor], Sequence[Tensor], int, "
            'float, bool, str, Sequence[int], ...), or give schema="(Tensor a, float alpha=3.0) -> Tensor"',
        ) from error
    return registries.overloads(name)["default"]


def _schema_of(function: Function) -> str:
    """The schema, from annotations. torch knows no defaults that are lists, and no lists of texts; its schemas do."""
    signature = inspect.signature(function)
    lists = {n: p.default for n, p in signature.parameters.items() if isinstance(p.default, (list, tuple))}
    texts = [n for n, p in signature.parameters.items() if _TEXTS.search(str(p.annotation))]
    plain = types.FunctionType((lambda: None).__code__, getattr(function, "__globals__", {}))  # for annotations
    changed = [
        p.replace(
            default=inspect.Parameter.empty if n in lists else p.default,
            annotation=Sequence[bool] if n in texts else p.annotation,
        )
        for n, p in signature.parameters.items()
    ]
    plain.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        changed, return_annotation=signature.return_annotation, __validate_parameters__=False
    )
    text = torch.library.infer_schema(plain, mutates_args=())
    for name in texts:
        text = re.sub(rf"bool\[\] {name}\b", f"str[] {name}", text)
    for name, default in lists.items():
        written = ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in default)
        text = re.sub(rf"(\[\]\??) {name}(?=[,)])", rf"\1 {name}=[{written}]", text)
    return text


class Operator:
    """One operator. Call it like a function."""

    def __init__(self, name: str, overload: Any, function: Function | None) -> None:
        self.name = name
        self._overload = overload
        self.function = function
        self.node: str | None = None
        self.lowering: Any = None
        self._sources: tuple[Path, ...] = ()
        self._flags: tuple[str, ...] = ()
        self._library: Path | None = None
        self._samples: Callable[[], Iterable[tuple[Any, ...]]] | None = None
        _defined[name] = self
        self._register_fake()

    @property
    def overload(self) -> Any:
        """The operator in torch. A file that is imported twice defines it twice: torch frees the first definition."""
        return _defined.get(self.name, self)._overload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Operator({self.schema})"

    @property
    def schema(self) -> str:
        return str(registries.schema(self.overload))

    @property
    def arguments(self) -> list[Any]:
        return list(registries.schema(self.overload).arguments)

    def shape(self, function: Function) -> Function:
        """Say the outputs' shapes and types: takes the operator's arguments, gives empty tensors.

        Needed only where the implementation cannot take fake tensors and the sizes are no sums of the inputs'.
        """
        torch.library.register_fake(self.name, function, allow_override=True)
        return function

    def backward(self, function: Function, *, setup_context: Function | None = None) -> Function:
        """Make it differentiable, as `torch.library.register_autograd` has it."""
        torch.library.register_autograd(self.name, function, setup_context=setup_context)
        return function

    def onnx(self, lowering: Any) -> Any:
        """Say what it is in ONNX. May be given twice: the node's name, and what the node is made of.

        Args:
            lowering: a text, ``"mylib::MyAdd"``: a node of that name, with the tensors as inputs and all else as
                attributes. A function: a symbolic ``(g, a, b, alpha)``, an onnxscript function, or a Python function
                that calls onnxscript's operators. A function alone is written out in the graph; with a node or a
                kernel it becomes the node's body, a local function that runs where the kernel is not there.
        """
        if isinstance(lowering, str):
            if _NODE.fullmatch(lowering) is None or lowering.partition("::")[0] in ("ai.onnx", "onnx", "aten"):
                raise OptionError(
                    f"'{lowering}' names no node of a domain of your own", next_step='write it as "mylib::MyAdd"'
                )
            self._check_is_a_node()
            self.node = lowering
        elif callable(lowering):
            self.lowering = lowering
        else:
            raise OptionError(f"a lowering is a function or a node's name, not {lowering!r}")
        return lowering

    def kernel(
        self, *sources: str | os.PathLike[str], flags: Sequence[str] = (), library: str | os.PathLike[str] | None = None
    ) -> None:
        """Give it a kernel for ONNX Runtime, compiled when first needed and then kept.

        Args:
            sources: C++ files, from the folder of the calling file.
            flags: for the compiler.
            library: a library that is built already, instead of sources; from the folder of the calling file too.
        """
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        here = Path(caller.f_code.co_filename).parent if caller is not None else Path()
        if bool(sources) == (library is not None):
            raise OptionError(
                f"{self.name}: a kernel is one or more C++ files, or a library",
                next_step='pass kernel="file.cc", or kernel= a built library',
            )
        self._check_is_a_node()
        self._sources = tuple(here / s for s in sources)
        self._flags = tuple(flags)
        self._library = here / library if library is not None else None

    def _check_is_a_node(self) -> None:
        """A node has as many outputs for every call, and of its inputs only the last may be a list."""
        if any("List" in str(r.type) for r in registries.schema(self.overload).returns):
            raise OptionError(
                f"{self.name} gives a list of tensors; a node of ONNX has the same outputs in every call",
                next_step="give a tuple: -> tuple[Tensor, Tensor]; or leave the node out, and it is traced through",
            )
        tensors = [a for a in self.arguments if "Tensor" in str(a.type)]
        for place, argument in enumerate(tensors):
            kind = str(argument.type)
            if "List" in kind and (kind != "List[Tensor]" or place != len(tensors) - 1):
                raise OptionError(
                    f"argument '{argument.name}' of {self.name} ({kind}) is no input of a node: only the last tensor "
                    "argument may be a list, of tensors none of which is left out",
                    next_step="put the list last among the tensors, or make two operators of it",
                )

    def samples(self, function: Callable[[], Iterable[tuple[Any, ...]]]) -> Callable[[], Iterable[tuple[Any, ...]]]:
        """Say what `torchport ops test` tries it with: yields tuples of arguments."""
        self._samples = function
        return function

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    @property
    def has_kernel(self) -> bool:
        return bool(self._sources or self._library)

    @property
    def node_name(self) -> str | None:
        """The ONNX node it is written as; None when it is written out."""
        return self.node or (self.name if self.has_kernel else None)

    def library(self, *, include: str | os.PathLike[str] | None = None, again: bool = False) -> Path | None:
        """The kernel's library, built if need be; None without a kernel."""
        if self._library is not None or not self._sources:
            return self._library
        return kernel_libraries.build(self._sources, flags=self._flags, include=include, again=again)

    def sample_inputs(self) -> list[tuple[Any, ...]]:
        """What to try it with: what the user gave, else random tensors of one shape for each input, at three sizes."""
        if self._samples is not None:
            return [tuple(s) if isinstance(s, (list, tuple)) else (s,) for s in self._samples()]
        shapes_tried = ((2, 3), (5, 4), (1, 7))
        return [tuple(_sample(a, shape) for a in self.arguments) for shape in shapes_tried]

    def _register_fake(self) -> None:
        """Shapes as the implementation gives them, until the user says otherwise."""
        if self.function is None and registries.has_shapes(self.overload):
            return
        names = [a.name for a in self.arguments]
        plain = fake_shapes.by_position(self.function, names) if self.function is not None else self.overload

        def fake(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *(kwargs[n] for n in names[len(args) :] if n in kwargs)]
            return fake_shapes.inferred(plain, given, self.name)

        torch.library.register_fake(self.name, fake, allow_override=True)


def libraries(
    operators: Sequence[Operator], *, include: str | os.PathLike[str] | None = None, again: bool = False
) -> list[Path]:
    """The libraries of their kernels: ONNX Runtime takes one for a domain, so sources of one domain go into one."""
    found: list[Path] = []
    together: dict[str, dict[Path, Operator]] = {}
    for op in operators:
        domain = str(op.node_name).partition("::")[0]
        if op._library is not None:
            found.append(op._library)
        else:
            together.setdefault(domain, {}).update(dict.fromkeys(op._sources, op))
    for sources in together.values():
        flags = dict.fromkeys(flag for op in sources.values() for flag in op._flags)
        found.append(kernel_libraries.build(sorted(sources), flags=list(flags), include=include, again=again))
    return list(dict.fromkeys(found))


def defined() -> dict[str, Operator]:
    """Every operator defined in this process."""
    return dict(_defined)


def by_node(domain: str, op_type: str) -> Operator | None:
    """The operator that is written as this node."""
    return next((op for op in _defined.values() if op.node_name == f"{domain}::{op_type}"), None)


def forget(name: str) -> None:
    """Torchport no longer knows it; torch does."""
    _defined.pop(name, None)


def _sample(argument: Any, shape: tuple[int, ...]) -> Any:
    kind = str(argument.type)
    if kind == "Tensor":
        return torch.randn(shape)
    if kind in ("List[Tensor]", "Tensor[]"):
        return [torch.randn(shape), torch.randn(shape)]
    if argument.has_default_value():
        return argument.default_value
    plain: dict[str, Any] = {"float": 0.5, "int": 1, "bool": True, "str": "", "number": 1.5, "List[int]": [0]}
    if kind.startswith("Optional"):
        return None
    if kind in plain:
        return plain[kind]
    raise CaptureError(
        f"nothing to try argument '{argument.name}' ({kind}) with", next_step="say it with @my_operator.samples"
    )


def _place(function: Function) -> str | None:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None


class _Provider:
    """Gives engines the kernels and the PyTorch calls of operators that were defined in this process."""

    def knows(self, node: ir.Node) -> bool:
        return by_node(node.domain, node.op_type) is not None

    def has_kernel(self, node: ir.Node) -> bool:
        own = by_node(node.domain, node.op_type)
        return own is not None and own.has_kernel

    def library(self, node: ir.Node) -> Path | None:
        own = by_node(node.domain, node.op_type)
        return own.library() if own is not None else None

    def libraries(self, nodes: Sequence[ir.Node]) -> list[Path]:
        own = [by_node(node.domain, node.op_type) for node in nodes]
        return libraries(list({op.name: op for op in own if op is not None}.values()))

    def call(self, node: ir.Node) -> pytorch_calls.Call | None:
        marked = pytorch_calls.remembered(node)
        own = by_node(node.domain, node.op_type)
        if marked is not None or own is None:
            return marked
        return pytorch_calls.from_attributes(own, node)

    def lacking(self, node: ir.Node) -> Sequence[str]:
        return pytorch_calls.lacking(node)


register_provider(_Provider())


# The files of a new operator.

_STARTER = Path(__file__).parent / "starter"
_FILES = {"operator.py.txt": "{file}.py", "kernel.cc.txt": "{file}.cc", "test.py.txt": "test_{file}.py"}

# a file or a function of such a name would stand before something the starter uses
_NOT_FOR_FILES = frozenset(
    {*sys.stdlib_module_names, *dir(builtins), "_", "torch", "Tensor", "tp", "Net", "example_inputs"}
    | {"torchport", "numpy", "onnx", "onnxruntime", "onnxscript", "pytest"}
)


def write_starter(name: str, folder: Path) -> list[Path]:
    """Write a working starter for an operator: PyTorch implementation, lowering, kernel, test.

    Args:
        name: ``mylib::my_op``.
        folder: where to; made if it is not there. Files that are there are not overwritten.
    """
    if _NAME.fullmatch(name) is None:
        raise OptionError(f"'{name}' names no operator", next_step='write it as "domain::name": mylib::my_op')
    check_words(name)
    domain, _, own = name.partition("::")
    if domain in TAKEN:
        raise OptionError(f"'{domain}' is not yours to define operators in", next_step="take a domain of your own")
    node = f"{domain}::{''.join(part[:1].upper() + part[1:] for part in own.split('_')) or own}"
    python = f"{own}_op" if own in _NOT_FOR_FILES else own
    words = {"name": name, "own": python, "file": python, "node": node}
    targets = {source: folder / target.format(**words) for source, target in _FILES.items()}
    there = [t for t in targets.values() if t.exists()]
    if there:
        raise SaveError(f"'{there[0]}' is there already", next_step="take another folder with --folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in targets.items():
        target.write_text((_STARTER / source).read_text().format(**words))
    return list(targets.values())
