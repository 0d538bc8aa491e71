"""C++ source for one model: its inputs and outputs as structs, with names that C++ takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torchport.errors import EngineError
from torchport.numerics.tolerance import Tolerance
from torchport.results import TensorInfo

# dtype: the C++ type of a number, and the name in torchport::DType
_TYPES = {
    "bool": ("bool", "boolean"),
    **{
        f"{sign}int{bits}": (f"std::{sign}int{bits}_t", f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float16": ("torchport::Float16", "float16"),
    "bfloat16": ("torchport::BFloat16", "bfloat16"),
    "float32": ("float", "float32"),
    "float64": ("double", "float64"),
    "string": ("std::string", "string"),
}
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default
    delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq"""
# macros that look like names, and names that the project has itself
_TAKEN = """
    NULL EOF errno stdin stdout stderr NAN INFINITY MODEL_FOLDER linux unix assert major minor std torchport main test
    test_golden all clean install help"""
_RESERVED = frozenset([*_KEYWORDS.split(), *_TAKEN.split()])


def identifiers(names: Iterable[str], otherwise: str) -> list[str]:
    """Return a C++ identifier for each name, all of them different.

    Example:
        >>> identifiers(["input.1", "class", "input_1", "größe"], "input")
        ['input_1', 'class_', 'input_1_2', 'gr_e']
    """
    found: list[str] = []
    for name in names:
        # an underscore at the start, or two in a row, are the compiler's own
        plain = re.sub(r"_+", "_", re.sub(r"[^0-9A-Za-z]+", "_", name)).strip("_")[:60] or otherwise
        plain = f"{otherwise}_{plain}" if plain[0].isdigit() else plain
        plain += "_" if plain in _RESERVED else ""
        unique, number = plain, 2
        while unique in found:
            unique, number = f"{plain.rstrip('_')}_{number}", number + 1
        found.append(unique)
    return found


def literal(text: str) -> str:
    """Return a text as a C++ string literal; everything but plain ASCII as the bytes of UTF-8."""
    plain = {byte: chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in '"\\?'}
    return '"' + "".join(plain.get(byte, f"\\{byte:03o}") for byte in text.encode(errors="replace")) + '"'


def comment(info: TensorInfo) -> str:
    """Return an input or output for a comment of one line. A name may have line ends, and code after them."""
    text = "".join(c if c.isprintable() and c != "\\" else "?" for c in str(info))
    return text[:100]


def number_type(info: TensorInfo) -> str:
    """Return the C++ type of an input's or output's numbers.

    Raises:
        EngineError: C++ has no tensors of that kind here.
    """
    if info.dtype not in _TYPES:
        raise EngineError(
            f"'{info.name}' is {info.dtype}, which the C++ library has no type for",
            where=str(info),
            next_step="cast it inside the model, or take the tensors out of a sequence there: torchport edit",
        )
    return _TYPES[info.dtype][0]


def model_source(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], libraries: Sequence[str]
) -> dict[str, str]:
    """Return the parts of ``model.hpp`` by the names that its template has for them."""
    own = {
        "input": identifiers([i.name for i in inputs], "input"),
        "output": identifiers([o.name for o in outputs], "output"),
    }
    return {
        "INPUT_MEMBERS": _members(inputs, own["input"]),
        "OUTPUT_MEMBERS": _members(outputs, own["output"]),
        "INPUT_INFOS": _lines(8, map(_info, inputs), end=","),
        "OUTPUT_INFOS": _lines(8, map(_info, outputs), end=","),
        "RUN": _run(inputs, outputs, own["input"]),
        "LIBRARIES": _lines(
            4, (f"options.libraries.push_back(folder + {literal('/libraries/' + n)});" for n in libraries)
        )
        or "    static_cast<void>(folder);",
        "AND_LIBRARIES": " and libraries/" if libraries else "",
        "READ_INPUTS": _lines(6, (f"{_array(i)}(read.at({literal(i.name)}))," for i in inputs))
        or "      // the model has no inputs",
        "NAMED_OUTPUTS": _lines(
            6, (f"{{{literal(o.name)}, outputs.{n}}}," for o, n in zip(outputs, own["output"], strict=True))
        ),
    }


def tolerance_source(limits: Mapping[str, Tolerance]) -> str:
    """Return the entries of a map from outputs to tolerances."""
    return _lines(6, (f"{{{literal(name)}, {{{t.rtol!r}, {t.atol!r}}}}}," for name, t in limits.items()))


def _lines(indent: int, lines: Iterable[str], end: str = "") -> str:
    return "\n".join(" " * indent + line + end for line in lines)


def _array(info: TensorInfo) -> str:
    return f"torchport::Array<{number_type(info)}>"


def _members(infos: Sequence[TensorInfo], names: Sequence[str]) -> str:
    pairs = zip(infos, names, strict=True)
    return _lines(2, (f"{_array(info)} {name};  // {comment(info)}" for info, name in pairs)) or "  // none"


def _info(info: TensorInfo) -> str:
    dims = ", ".join(_dim(d) for d in info.shape or ())
    known = "true" if info.shape is not None else "false"
    return f"{{{literal(info.name)}, torchport::DType::{_TYPES[info.dtype][1]}, {{{dims}}}, {known}}}"


def _dim(dim: int | str | None) -> str:
    return f"std::int64_t{{{dim}}}" if isinstance(dim, int) else literal(dim or "")


def _run(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], names: Sequence[str]) -> str:
    given = ", ".join(f"&inputs.{name}.tensor()" for name in names)
    unused = [] if inputs else ["static_cast<void>(inputs);"]
    count = len(inputs)
    return _lines(
        4,
        [
            *unused,
            f"const std::array<const torchport::Tensor*, {count}> given{{{given}}};",
            "std::vector<torchport::Tensor> computed = session_.run_in_order(given.data(), given.size());",
            "return {",
            *(f"    {_array(o)}(std::move(computed[{n}]))," for n, o in enumerate(outputs)),
            "};",
        ],
    )
