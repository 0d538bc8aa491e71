"""How inputs are written on the command line.

x=float32[1,3,224,224]     standard normal numbers
x=float32[8]@-1..1         uniform between -1 and 1
ids=int64[2,8]@0..99       integers, both ends included; without a range 0 and 1, legal as index and as mask
x=bool[2]   x=float32[]    booleans; a tensor of no dimensions
float32[1,3]               without a name: the next positional argument
x=a.npy  x=a.npz:key  x=a.pt   a tensor from a file
a.npz  a.pt                every array by its own name; what `torch.save` was given
scale=2.0  n=3  flag=true  mask=none  mode='text'
batch.x=float32[2,4]  items.0=…    inside a dict; inside a list
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Sequence

import numpy as np

from torchport.errors import InputError, close_names
from torchport.tensors import COMPLEX, DTYPES, FLOATS, INTEGERS, numpy_dtype

_EXAMPLE = "x=float32[1,3,224,224]"
_MOST_ELEMENTS = 1 << 40
_MOST_DIMS = 64  # numpy has no more
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_FLOAT = re.compile(rf"{_NUMBER}|[0-9]+\.|[+-]?inf|nan")
_TENSOR = re.compile(r"(?P<dtype>[^\[\]@=/\\.]*)\[(?P<dims>[^\]]*)\](?:@(?P<range>.*))?", re.DOTALL)
_FILE = re.compile(r"(?P<path>.*\.(?:npy|pt|pth))|(?P<npz>.*?\.npz)(?::(?P<key>.+))?", re.DOTALL | re.IGNORECASE)
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


@dataclasses.dataclass(frozen=True)
class Random:
    """A tensor of random numbers; without `low` and `high` those of the dtype's default."""

    dtype: str
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"{self.dtype}[{dims}]" + (f"@{self.low!r}..{self.high!r}" if self.low is not None else "")


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a file holds, or one array of it."""

    path: str
    key: str | None = None

    def __str__(self) -> str:
        return self.path if self.key is None else f"{self.path}:{self.key}"


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A Python value that is no tensor."""

    value: str | int | float | bool | None

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'" + self.value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return str(self.value).lower() if self.value is None or isinstance(self.value, bool) else repr(self.value)

    def __eq__(self, other: object) -> bool:
        """As written: 1, 1.0 and True are three different inputs."""
        return isinstance(other, Scalar) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """One `--input`. `str` of it is written as it would be on the command line."""

    name: str | None
    value: Random | Stored | Scalar

    @classmethod
    def tensor(cls, name: str | None, dtype: str, shape: Sequence[int]) -> InputSpec:
        """Random numbers of the dtype's default, for callers that know the shape already."""
        if dtype not in DTYPES:
            raise InputError(
                f"input '{name}' has the dtype {dtype}, of which no example can be made",
                next_step="give the input as a file: --input name=file.npy",
            )
        return cls(name, Random(dtype, tuple(shape)))

    def __str__(self) -> str:
        return str(self.value) if self.name is None else f"{self.name}={self.value}"


def parse_input(text: str, names: Collection[str] = ()) -> InputSpec:
    """Read one `--input`.

    Args:
        text: as it stands on the command line.
        names: the inputs of an ONNX model. They may be called anything: ``input:0``, ``/conv/x``, ``a=b``.

    Raises:
        InputError: it cannot be meant; says at which character, and gives the right form.

    Example:
        >>> parse_input("ids=int64[2,8]@0..99").value
        Random(dtype='int64', shape=(2, 8), low=0, high=99)
    """
    name, start = _known_name(text, names) or _name(text, is_free=bool(names))
    value = text[start:]
    if not value:
        raise _fault(text, start, "there is nothing after the name" if start else "it is empty")
    for form in (_scalar, _tensor, _stored):
        if (found := form(text, start)) is not None:
            return InputSpec(name, found)
    raise _fault(text, start, f"'{_short(value)}' is neither a tensor, a file nor a value")


def _fault(text: str, position: int, reason: str, example: str = _EXAMPLE) -> InputError:
    return InputError(
        f"input '{_short(text)}' cannot be read: {reason}",
        where=f"--input {_short(text)}, character {position + 1}",
        next_step=f"write it like {example}",
    )


def _short(text: str) -> str:
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= 80 else shown[:79] + "…"


def _known_name(text: str, names: Collection[str]) -> tuple[str, int] | None:
    """Return the longest name that the text begins with, and where the value begins."""
    found = [name for name in names if text.startswith(f"{name}=")]
    return (max(found, key=len), len(max(found, key=len)) + 1) if found else None


def _name(text: str, *, is_free: bool = False) -> tuple[str | None, int]:
    """The name, and where the value begins. An = that belongs to a path or a text makes no name."""
    name, equals, _ = text.partition("=")
    if not equals or re.search(r"""[/\\'"\[]""", name):
        return None, 0
    if is_free:
        return name, len(name) + 1  # whoever knows the inputs says that there is none of that name
    first, *others = name.split(".")
    if not first.isidentifier():
        raise _fault(text, 0, f"'{_short(name)}' is no name of an argument")
    for part in others:
        if not _is_key(part):
            raise _fault(
                text,
                name.find("." + part) + 1,
                f"'{_short(part)}' is no key or index",
                "batch.x=… or items.0=…",
            )
    return name, len(name) + 1


def is_name(name: str) -> bool:
    """Whether a name that came from elsewhere, a file, could have been written here."""
    first, *others = name.split(".")
    return first.isidentifier() and all(map(_is_key, others))


def _is_key(part: str) -> bool:
    return part.isidentifier() or re.fullmatch(r"0|[1-9][0-9]{0,5}", part) is not None


def _scalar(text: str, start: int) -> Scalar | None:
    value = text[start:]
    if value.lower() in _WORDS:
        return Scalar(_WORDS[value.lower()])
    if value[0] in "'\"":
        return Scalar(_quoted(text, start))
    if _INTEGER.fullmatch(value):
        return Scalar(int(value))
    return Scalar(float(value)) if _FLOAT.fullmatch(value) else None


def _quoted(text: str, start: int) -> str:
    quote, body = text[start], text[start + 1 :]
    found = re.fullmatch(rf"((?:[^\\{quote}]|\\.)*){quote}", body, re.DOTALL)
    if not found:
        raise _fault(text, start, "the quotes do not close at the end", "mode='text'")
    return re.sub(r"\\([\\'\"])", r"\1", found[1])


def _tensor(text: str, start: int) -> Random | None:
    found = _TENSOR.fullmatch(text, start)
    if not found:
        if re.match(r"\w+\[[^\]]*$", text[start:]):
            raise _fault(text, len(text), "the bracket does not close")
        return None
    dtype = _dtype(text, start, found["dtype"])
    shape = _shape(text, found.start("dims"), found["dims"])
    if found["range"] is None:
        return Random(dtype, shape)
    return Random(dtype, shape, *_range(text, found.start("range"), dtype))


def _dtype(text: str, start: int, dtype: str) -> str:
    if dtype in DTYPES:
        return dtype
    close = close_names(dtype, DTYPES, most=2, cutoff=0.6)
    meant = f" (did you mean {' or '.join(close)}?)" if close else ""
    raise _fault(text, start, f"there is no dtype '{_short(dtype)}'{meant}; known are {', '.join(DTYPES)}")


def _shape(text: str, start: int, dims: str) -> tuple[int, ...]:
    shape: list[int] = []
    position = start
    for part in dims.split(",") if dims.strip() else []:
        if not re.fullmatch(r"[0-9]{1,18}", part.strip(" ")):
            raise _fault(text, position, f"'{_short(part)}' is no size; a size is a number of 0 or more")
        shape.append(int(part))
        position += len(part) + 1
    if len(shape) > _MOST_DIMS:
        raise _fault(text, start, f"{len(shape)} dimensions are more than {_MOST_DIMS}")
    if math.prod(size for size in shape if size) > _MOST_ELEMENTS:
        raise _fault(text, start, f"the tensor would have more than {_MOST_ELEMENTS:,} elements")
    return tuple(shape)


def _range(text: str, start: int, dtype: str) -> tuple[float, float]:
    found = _RANGE.fullmatch(text, start)
    if dtype == "bool" or dtype in COMPLEX:
        raise _fault(text, start, f"a {dtype} tensor takes no range", f"x={dtype}[2]")
    example = f"x={dtype}[2,8]@0..99" if dtype in INTEGERS else f"x={dtype}[2,8]@-1..1"
    if not found:
        raise _fault(text, start, f"'{_short(text[start:])}' is no range", example)
    ends = [_end(text, found.start(i), found[i], dtype, example) for i in (1, 2)]
    if ends[0] > ends[1]:
        raise _fault(text, start, "the range ends before it begins", example)
    return ends[0], ends[1]


def _end(text: str, start: int, number: str, dtype: str, example: str) -> float:
    """One end of a range, which the dtype must be able to hold."""
    if dtype in FLOATS:
        value, limits = float(number), _float_limits(dtype)
    elif _INTEGER.fullmatch(number):
        value, limits = int(number), (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    else:
        raise _fault(text, start, f"'{_short(number)}' is no whole number", example)
    if not limits[0] <= value <= limits[1]:
        raise _fault(text, start, f"{dtype} cannot hold {_short(number)}", example)
    return value


def _float_limits(dtype: str) -> tuple[float, float]:
    import ml_dtypes

    most = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    return -most, most


def _stored(text: str, start: int) -> Stored | None:
    found = _FILE.fullmatch(text, start)
    if not found:
        return None
    return Stored(found["path"]) if found["path"] is not None else Stored(found["npz"], found["key"])
