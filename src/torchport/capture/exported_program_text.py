"""Is the text of a saved ExportedProgram only data?

`torch.export.load` turns parts of `models/model.json` into Python that is executed: names of nodes and
arguments go into generated source, symbolic sizes through `sympify`, guards through `exec`, operators
through `getattr` on torch, and tree specs may import modules. Each such place has a narrow legal form;
whatever does not have it is refused. The rules are an allow list: what a future torch adds is refused until
it is added here.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from torchport.torch_compat.saved_files import PROGRAM_FUNCTIONS

_NAME = re.compile(r"\w*")
_PATH = re.compile(r"[\w.\-]*")
_PLAIN = re.compile(r"[^'\"\\\x00-\x1f\x7f-\x9f\u2028\u2029{}]*")
_FREE = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]*")
_OVERLOAD = re.compile(r"torch\.ops\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?")
_TREES = {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.deque"}


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[\w.]+", text))


_PYTHON_OPERATORS = _words(
    """_operator.eq _operator.ne _operator.le _operator.ge _operator.lt _operator.gt _operator.neg
    _operator.pos _operator.mul _operator.add _operator.sub _operator.floordiv _operator.mod _operator.pow
    _operator.truediv _operator.and_ _operator.or_ _operator.lshift _operator.rshift _operator.getitem
    torch.sym_int torch.sym_float torch.sym_ite torch.sym_max torch.sym_min torch.sym_not torch.sym_sqrt
    torch.sym_sum math.trunc math.ceil math.floor math.sqrt"""
).union(PROGRAM_FUNCTIONS)

_POWERS = _words("Pow PowByNatural FloatPow LShift")
_FUNCTIONS = _POWERS | _words(
    """Symbol Integer Float Rational Add Mul Mod Max Min Abs And Or Not Eq Ne Gt Ge Lt Le Equality Unequality
    GreaterThan LessThan StrictGreaterThan StrictLessThan Piecewise ExprCondPair Tuple floor ceiling sqrt
    min max int float abs
    FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv RShift FloatTrueDiv
    IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat
    Identity"""
)
_METHODS = _words("size stride storage_offset")
_NODES = (
    ast.Expression | ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.Constant | ast.Name | ast.Load
    | ast.Tuple | ast.Call | ast.keyword | ast.Subscript | ast.Attribute
    | ast.operator | ast.unaryop | ast.boolop | ast.cmpop
)  # fmt: skip
_LONGEST = 20_000
_LARGEST = 1 << 64
_STEEPEST = 64


class Refusal(Exception):  # noqa: N818 -- not an error of the user's; the caller turns it into one
    """Why the text is not only data."""


def check_program(program: Any) -> list[str]:
    """Go through the program as torch's schema reads it: its field names say what each string is for.

    The JSON itself would not do: a mapping with keys of the file's choosing could pass for a record.

    Returns:
        The operators it names, for the caller to look up.

    Raises:
        Refusal: a string could become code.
    """
    operators: set[str] = set()
    for key, text in _strings(program, ""):
        _CHECKS.get(key, check_plain)(text)
        if key in ("target", "as_operator"):
            operators.add(text)
    return sorted(operators)


def _strings(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Each string with the name of the field that holds it."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield "metadata", name  # names in mappings are only looked up
            yield from _strings(item, key)
    elif dataclasses.is_dataclass(value):
        yield from _field_strings(value, key)


def _field_strings(record: Any, key: str) -> Iterator[tuple[str, str]]:
    fields = {f.name: record.__dict__.get(f.name) for f in dataclasses.fields(record)}
    if custom := [name for name, value in fields.items() if "custom_obj" in name and value]:
        raise Refusal(f"it holds objects of C++ classes ({custom[0]})")
    # a constant among the model's own inputs is pasted into a guard, as in: mode == '<text>'
    if key in ("inputs", "value") and isinstance(text := fields.get("as_string"), str):
        yield "constant input", text
    for name, value in fields.items():
        yield from _strings(value, name)


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not pattern.fullmatch(text):
            raise Refusal(f"{what} is not a plain one: {text[:80]!r}")

    return check


check_plain = _matching(_PLAIN, "a text")
check_name = _matching(_NAME, "a name")


def check_operator(text: str) -> None:
    """An operator is one of torch's registry or one of the few Python functions that compute sizes."""
    found = _OVERLOAD.fullmatch(text)
    if text not in _PYTHON_OPERATORS and (not found or any(p and p.startswith("__") for p in found.groups())):
        raise Refusal(f"it calls {text[:80]!r}, which is no operator of a saved program")


def check_expression(text: str) -> None:
    """A symbolic size or a guard: arithmetic on sizes, nothing else, that comes to an end."""
    if len(text) > _LONGEST or "\n" in text or "\r" in text:
        raise Refusal("an expression is too long or has several lines")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(f"an expression cannot be read: {text[:80]!r}") from error
    nodes = list(ast.walk(tree))
    if not all(_is_arithmetic(node) for node in nodes) or sum(map(_is_steep, nodes)) > 4:
        raise Refusal(f"an expression does more than arithmetic: {text[:80]!r}")


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return _is_small(node.value)
    if isinstance(node, ast.Name):
        return not node.id.startswith("__")
    if isinstance(node, ast.Attribute):
        return _is_known_attribute(node)
    if isinstance(node, ast.Call):
        return _is_known_call(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        return _is_gentle(node.right)
    return isinstance(node, _NODES)


def _is_small(value: object) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[\w .+-]*", value) is not None
    return value is None or (isinstance(value, bool | int | float) and abs(value) < _LARGEST)


def _is_known_call(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Attribute):
        return _is_known_attribute(node.func)
    if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
        return False
    return node.func.id not in _POWERS or (len(node.args) == 2 and _is_gentle(node.args[1]))


def _is_known_attribute(node: ast.Attribute) -> bool:
    """A size of a tensor, or `math.trunc`, `torch.sym_float` and their like."""
    owner = f"{node.value.id}." if isinstance(node.value, ast.Name) else ""
    return node.attr in _METHODS or owner + node.attr in _PYTHON_OPERATORS


def _is_gentle(exponent: ast.expr) -> bool:
    """`2**10**10` is a short text and a long computation, so exponents are small constants."""
    if isinstance(exponent, ast.Call) and len(exponent.args) == 1:
        exponent = exponent.args[0]
    if isinstance(exponent, ast.UnaryOp):
        exponent = exponent.operand
    return (
        isinstance(exponent, ast.Constant) and isinstance(exponent.value, int | float) and exponent.value <= _STEEPEST
    )


def _is_steep(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _POWERS
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift)


def check_tree(text: str) -> None:
    """A tree spec: Python's own containers with plain keys; for others torch would import modules."""
    try:
        _, schema = json.loads(text)
        _check_tree_node(schema)
        if schema["type"] == "builtins.tuple" and len(schema["children_spec"]) == 2:
            _check_keywords(schema["children_spec"][1])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise Refusal(f"a tree spec cannot be read: {text[:80]!r}") from error


def _check_tree_node(node: dict[str, Any]) -> None:
    kind, context = node["type"], node["context"]
    if kind is not None and kind not in _TREES:
        raise Refusal(f"its inputs or outputs are of a class of their own: {str(kind)[:80]!r}")
    for key in _keys(context):
        check_plain(key)
    for child in node["children_spec"]:
        _check_tree_node(child)


def _keys(context: object) -> list[str]:
    keys = json.loads(context) if isinstance(context, str) else context
    if keys is None or isinstance(keys, int):
        return []
    if not isinstance(keys, list) or not all(isinstance(k, str | int | float | bool) for k in keys):
        raise Refusal("a tree spec asks for objects that are no plain keys")
    return [k for k in keys if isinstance(k, str)]


def _check_keywords(node: dict[str, Any]) -> None:
    """The keyword arguments' names become parameters of generated source."""
    if node["type"] == "builtins.dict":
        for key in _keys(node["context"]):
            check_name(key)


_check_path = _matching(_PATH, "a name")
_check_free = _matching(_FREE, "a text")
_CHECKS: dict[str, Callable[[str], None]] = {
    **dict.fromkeys(("name", "as_name", "forward_arg_names"), check_name),
    **dict.fromkeys(("parameter_name", "buffer_name", "tensor_constant_name", "user_input_name"), _check_path),
    **dict.fromkeys(("fqn", "class_fqn"), _check_path),
    **dict.fromkeys(("target", "as_operator"), check_operator),
    **dict.fromkeys(("expr_str", "guards_code"), check_expression),
    **dict.fromkeys(("in_spec", "out_spec"), check_tree),
    # these are quoted by repr() wherever they are used; control characters could still end a comment
    **dict.fromkeys(("as_string", "as_strings", "metadata"), _check_free),
}
