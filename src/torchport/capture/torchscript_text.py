"""Does the TorchScript in a file call only what is harmless?

The source below `code/` is compiled by torch, and a `__setstate__` in it runs while the file is being opened.
It is read here as Python, of which it is a subset, so both readers have to see the same text: what Python and
torch could read differently (comments, continued lines, prefixes of strings, characters beyond printable ASCII)
is refused first. torch.jit.save writes none of it.

Then every name is resolved as torch would. `torch.x` is the operator `aten::x`, `ops.a.b` is `a::b`,
`__torch__.a.B` is a class or function of the file or one of torch's C++ classes, and `value.x`, whatever the
value is, may be an attribute or a method of the file's own or the operator `aten::x`. Each must be known:
`operator_safety` says which operators are. The rules are an allow list: what is not understood is refused.
"""

from __future__ import annotations

import ast
import pickletools
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchport.capture.exported_program_text import Refusal
from torchport.capture.operator_safety import (
    is_class_method,
    is_script_operator,
    may_use_class,
    script_operator_problem,
)
from torchport.torch_compat.saved_files import PICKLED_FUNCTIONS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PRINTABLE = re.compile(r"[\n\x20-\x7e]*")
# the closing quote may be missing, so that a text of many opened strings is not scanned to its end for each
_STRING = re.compile(r"""(?<![\w"'])(?:"(?:[^"\\\n]|\\[^\n])*("?)|'(?:[^'\\\n]|\\[^\n])*('?))""")
_READ_DIFFERENTLY = re.compile(r"""[#\\"'`$;]""")
_CONSTANT = re.compile(r"c[0-9]+")

_NODES = (
    ast.Module, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg, ast.Import, ast.alias,
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.Return, ast.Expr, ast.Pass, ast.Raise, ast.Assert,
    ast.If, ast.While, ast.For, ast.Break, ast.Continue, ast.With, ast.withitem,
    ast.Call, ast.keyword, ast.Attribute, ast.Subscript, ast.Slice, ast.Name, ast.Constant, ast.Starred,
    ast.Tuple, ast.List, ast.Dict, ast.IfExp, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip

# what these are called is all that tells an operator from a variable, so nothing may be bound to them
_ROOTS = frozenset({"torch", "ops", "CONSTANTS", "__torch__"})
_FORMS = frozenset({"getattr", "hasattr", "annotate", "unchecked_cast", "uninitialized", "fork", "isinstance"})
_TYPES = _words(
    """Tensor Optional List Dict Tuple Union Future Await Final Any NoneType Device Generator Stream Storage Layout
    QScheme ScalarType MemoryFormat Capsule InferredTensor InferredType number Scalar AnyEnumType AnyListType
    AnyTupleType AnyClassType Module NamedTuple Enum Interface ModuleInterface"""
)
_FUNCTIONS = _words(
    """print range len int float bool str complex list dict tuple set min max abs round sum all any sorted pow
    divmod hash hex oct bin chr ord zip enumerate reversed rangelist inf nan
    Exception ValueError RuntimeError AssertionError NotImplementedError KeyError IndexError TypeError"""
)
_UNKNOWN = "neither a class or function in the file nor a known class of PyTorch"
_BUILT_IN = _FORMS | _TYPES | _FUNCTIONS

# torch's C++ unpickler makes these out of data; every other global is looked up among the file's classes
_MADE_OF_DATA = frozenset(
    f"{module} {name}"
    for module, names in {
        **PICKLED_FUNCTIONS,
        "builtins": "complex",
        "collections": "OrderedDict",
    }.items()
    for name in names.split()
)
_ENUMS = re.compile(r"torch (?:[A-Z]\w*Storage|per_tensor_\w+|per_channel_\w+)")
_OPCODES = _words(
    """PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE EMPTY_LIST EMPTY_TUPLE
    EMPTY_DICT LIST DICT TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS BINPUT LONG_BINPUT BINGET
    LONG_BINGET GLOBAL NEWOBJ BUILD REDUCE BINPERSID"""
)


@dataclass
class _Script:
    """The names that the sources of one file define."""

    classes_and_functions: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)


def check_script(sources: Mapping[str, str], pickles: Mapping[str, bytes]) -> None:
    """Check that the sources call only harmless operators and that the pickles hold only objects of known classes.

    Args:
        sources: the text of each member below `code/`, by the member's name.
        pickles: the bytes of each pickle that torch will read, by the member's name.

    Raises:
        Refusal: naming the member and what in it is not known to be harmless.
        ValueError: a pickle is broken.
    """
    trees = {name: _parsed(name, text) for name, text in sources.items()}
    script = _defined(trees)
    for name, tree in trees.items():
        _Reader(name, tree, script).check()
    for name, data in pickles.items():
        _check_pickle(name, data, script)


def _parsed(name: str, text: str) -> ast.Module:
    if not _PRINTABLE.fullmatch(text) or _READ_DIFFERENTLY.search(_without_strings(text)):
        raise Refusal(f"{name} has characters that torch.jit.save does not write")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's about text that is not Python
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(f"{name} cannot be read as TorchScript") from error


def _without_strings(text: str) -> str:
    return _STRING.sub(lambda found: "0" if found[1] or found[2] else "'", text)


def _defined(trees: Mapping[str, ast.Module]) -> _Script:
    script = _Script()
    for name, tree in trees.items():
        prefix = name.removeprefix("code/").removesuffix(".py").replace("/", ".")
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef | ast.FunctionDef):
                script.classes_and_functions.add(f"{prefix}.{statement.name}")
            if isinstance(statement, ast.ClassDef):
                script.attributes.update(_members(statement))
    return script


def _members(definition: ast.ClassDef) -> Iterator[str]:
    """Yield the names of a class's attributes and methods, those in `__annotations__["0"]` too."""
    for statement in definition.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                yield str(target.slice.value)


class _Reader:
    """One source, with every name in it looked up."""

    def __init__(self, member: str, tree: ast.Module, script: _Script) -> None:
        self._member = member
        self._script = script
        self._nodes = list(ast.walk(tree))
        self._bound = {"__annotations__", *self._bindings()}
        self._checked: set[str] = set()
        self._resolved: set[int] = set()  # nodes inside a dotted name that was looked up as a whole

    def check(self) -> None:
        # parents come before children, so a dotted name is met at its outermost node
        for node in self._nodes:
            self._check_node(node)

    def _check_node(self, node: ast.AST) -> None:
        if not isinstance(node, _NODES):
            raise self._refusal(f"'{type(node).__name__}' is no part of TorchScript as it is saved")
        if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | complex | None):
            raise self._refusal("it has a constant that TorchScript does not have")
        if isinstance(node, ast.Attribute) and id(node) not in self._resolved:
            self._check_dotted(node)
        elif isinstance(node, ast.Call):
            self._check_call(node)
        elif isinstance(node, ast.Name) and id(node) not in self._resolved:
            self._check_name(node)
        elif isinstance(node, ast.alias) and node.name.partition(".")[0] != "__torch__":
            raise self._refusal(f"it imports {node.name[:80]!r}")

    def _bindings(self) -> Iterator[str]:
        """Yield every name that the source binds, none of which may change the meaning of another."""
        for node in self._nodes:
            name = ""
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                name = node.name
            elif isinstance(node, ast.alias):
                name = node.asname or ""
            if name in _ROOTS or name in _FORMS:
                raise self._refusal(f"it gives '{name}' another meaning")
            yield name

    def _check_name(self, node: ast.Name) -> None:
        if node.id not in self._bound and node.id not in _BUILT_IN:
            raise self._refusal(f"'{node.id[:80]}' is not known")

    def _check_call(self, node: ast.Call) -> None:
        if not isinstance(node.func, ast.Name | ast.Attribute):
            raise self._refusal("it calls something that has no name")
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            self._check_getattr(node)

    def _check_getattr(self, node: ast.Call) -> None:
        """Check `getattr(self, "0")`, with a name that is written as it is, without escapes."""
        name = node.args[1] if len(node.args) == 2 and not node.keywords else None
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            raise self._refusal("it calls getattr with a name that is not written out")
        width = (name.end_col_offset or 0) - name.col_offset
        if name.end_lineno != name.lineno or width != len(name.value) + 2:
            raise self._refusal("it calls getattr with a name that is not written out")
        self._check_attribute(name.value)

    def _check_dotted(self, node: ast.Attribute) -> None:
        parts: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            self._resolved.add(id(base))
            parts.insert(0, base.attr)
            base = base.value
        root = base.id if isinstance(base, ast.Name) else ""
        if root in _ROOTS:
            self._resolved.add(id(base))
            parts = self._after_root(root, parts)
        for part in parts:
            self._check_attribute(part)

    def _after_root(self, root: str, parts: list[str]) -> list[str]:
        """Look up what a dotted name begins with; return the attributes that follow."""
        if root == "__torch__":
            return self._after_class(parts)
        if root == "CONSTANTS":
            if not _CONSTANT.fullmatch(parts[0]):
                raise self._refusal(f"CONSTANTS.{parts[0][:80]} is no constant")
            return parts[1:]
        if root == "torch":
            self._check_operator(f"aten::{parts[0]}")
            return parts[1:]
        if len(parts) < 2:
            raise self._refusal(f"ops.{parts[0][:80]} is no operator")
        self._check_operator(f"{parts[0]}::{parts[1]}")
        return parts[2:]

    def _after_class(self, parts: list[str]) -> list[str]:
        for count in range(1, len(parts) + 1):
            if _is_known(".".join(["__torch__", *parts[:count]]), self._script):
                return parts[count:]
        raise self._refusal(f"'__torch__.{'.'.join(parts)[:80]}' is {_UNKNOWN}")

    def _check_operator(self, name: str) -> None:
        if name not in self._checked and (problem := script_operator_problem(name)):
            raise self._refusal(f"it calls {name[:80]}, which {problem}")
        self._checked.add(name)

    def _check_attribute(self, name: str) -> None:
        """Check what follows a value, which may be an attribute of the file's own or an operator on the value."""
        if name in self._checked:
            return
        problem = script_operator_problem(f"aten::{name}")
        if problem and is_script_operator(f"aten::{name}"):
            # refused even where the file has an attribute of that name: the value's type is not known here
            raise self._refusal(f"it calls aten::{name}, which {problem}")
        if problem and not self._is_attribute(name) and script_operator_problem(f"prim::{name}"):
            raise self._refusal(f"'.{name[:80]}' is neither an attribute in the file nor an operator of this PyTorch")
        self._checked.add(name)

    def _is_attribute(self, name: str) -> bool:
        return name in self._script.attributes or name == "__new__" or is_class_method(name)

    def _refusal(self, reason: str) -> Refusal:
        return Refusal(f"{self._member}: {reason}")


def _is_known(name: str, script: _Script) -> bool:
    if f"{name}.".startswith("__torch__.torch.classes."):
        return may_use_class(name)  # torch looks there first, whatever the file defines
    return name in script.classes_and_functions


def _check_pickle(member: str, data: bytes, script: _Script) -> None:
    """Check the classes that torch's C++ unpickler would make objects of."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in _OPCODES:
            raise Refusal(f"{member}: it has the instruction {opcode.name}, which torch.jit.save does not write")
        text = str(argument)
        if opcode.name != "GLOBAL" or text in _MADE_OF_DATA or _ENUMS.fullmatch(text):
            continue
        name = text.replace(" ", ".")
        if not _is_known(name, script):
            raise Refusal(f"{member}: '{name[:80]}' is {_UNKNOWN}")
