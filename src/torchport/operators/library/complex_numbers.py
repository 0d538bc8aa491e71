"""Complex numbers as pairs of real ones: every operator that takes or gives them, in plain PyTorch.

    (a + bi)(c + di) = (ac - bd) + (ad + bc)i        any product: matmul, einsum, convolution
    f(a + bi)        = f(a) + f(b)i                  whatever moves, selects or adds up numbers

ONNX's operators take no complex numbers. Torch's exporter stores the two parts in a last axis and has translations of
some thirty operators in that form. Here a program's calls are replaced by calls on the parts, as a decomposition of the
program; a part that is only joined to be taken apart again is passed on as it is. What remains complex are
weights, and tensors that the model itself views as complex.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchport.errors import CaptureError
from torchport.operators import composition
from torchport.operators.composition import only_where
from torchport.operators.registration import replaces
from torchport.torch_compat import registries
from torchport.torch_compat.shape_env import surely

aten: Any = torch.ops.aten

Rule = Callable[..., Any]
_rules: dict[str, Rule] = {}
_AS_THEY_ARE = ("complex", "view_as_real", "view_as_complex", "lift_fresh_copy", "alias", "detach")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the form in parts of ``aten::<name>``, with all its overloads; it is given the overload first."""

    def register(function: Rule) -> Rule:
        _rules.update(dict.fromkeys(names, function))
        return function

    return register


def in_parts(program: torch.export.ExportedProgram, mapped: Mapping[Any, Any]) -> torch.export.ExportedProgram:
    """Return the program with its operators on complex numbers replaced; itself if it has none.

    Args:
        program: what torch.export gave.
        mapped: operators that the user maps; their calls are left as they are.
    """
    calls = [n for n in composition.operator_calls(program.graph_module) if _concerns(n)]
    if all(_own_name(n.target) in _AS_THEY_ARE for n in calls):
        return program
    table = {op: _Composition(op, function) for op, function in _known().items() if op not in mapped}
    others = {n.target for n in calls if n.target not in table and n.target not in mapped}
    table |= {op: _Composition(op, _taken_apart) for op in others if _own_name(op) not in _AS_THEY_ARE}
    program = program.run_decompositions(table)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _pass_parts_on(part)
    return program


def _known() -> dict[Any, Rule]:
    found: dict[Any, Rule] = {}
    for name, function in _rules.items():
        packet = getattr(aten, name, None)
        found |= {getattr(packet, o): function for o in packet.overloads()} if packet is not None else {}
    return {op: function for op, function in found.items() if not registries.schema(op).is_mutable}


def _own_name(operator: Any) -> str:
    return str(registries.schema(operator).name.partition("::")[2]).removesuffix("_")


def _concerns(node: torch.fx.Node) -> bool:
    values = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return _has_complex((values, node.meta.get("val")))


def _has_complex(value: Any) -> bool:
    if isinstance(value, dict):
        return _has_complex(list(value.values()))
    if isinstance(value, (list, tuple)):
        return any(_has_complex(v) for v in value)
    if isinstance(value, torch.dtype):
        return value.is_complex
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


class _Composition:
    """The decomposition of one overload: its rule where a number is complex, nothing where all are real."""

    def __init__(self, operator: Any, function: Rule) -> None:
        self.operator = operator
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        makes_complex = _own_name(self.operator) in _MAKING
        if not makes_complex and not _has_complex((args, kwargs)):
            return NotImplemented
        return self.function(self.operator, *args, **kwargs)


def _taken_apart(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Leave an operator without a rule to torch, which makes it of others; refuse it if torch does not."""
    try:
        return registries.made_of_others(operator, *args, **kwargs)
    except NotImplementedError as error:
        raise CaptureError(
            f"no ONNX translation for {operator} of complex numbers",
            next_step="compute with the real and the imaginary part: x.real, x.imag, torch.view_as_real(x)",
        ) from error


def _pass_parts_on(module: torch.fx.GraphModule) -> None:
    """Replace the parts of what was joined of parts by those, and drop the joints that nothing needs."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=aten.sym_size.int):
        _size_of_parts(node, *node.args)
    for node in list(graph.nodes):
        if node.target is aten.view_as_real.default and node.args[0].target is aten.view_as_complex.default:
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.select.int and node.args[0].target is aten.view_as_real.default:
            _pass_on(node, *node.args)
    graph.eliminate_dead_code()
    module.recompile()


def _size_of_parts(node: torch.fx.Node, of: torch.fx.Node, axis: int) -> None:
    """Ask the parts for a size of a complex tensor; a branch, or a condition on sizes, may ask for it."""
    value: Any = of.meta.get("val")
    if not _has_complex(value):
        return
    if of.target is aten.complex.default:
        node.args = (of.args[0], axis)
        return
    with node.graph.inserting_before(node):
        pair = node.graph.call_function(aten.view_as_real.default, (of,))
    pair.meta["val"] = aten.view_as_real.default(value)
    node.args = (pair, axis % value.dim())


def _pass_on(node: torch.fx.Node, pair: Any, axis: int, index: int) -> None:
    joint = pair.args[0]
    last = axis in (-1, pair.meta["val"].dim() - 1)
    if last and joint.target is aten.complex.default:
        node.replace_all_uses_with(joint.args[index])


# Parts


def parts(value: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part; the latter is None for a real number or tensor."""
    if isinstance(value, complex):
        return value.real, value.imag
    if not isinstance(value, torch.Tensor) or not value.is_complex():
        return value, None
    pair = aten.view_as_real.default(value)
    return aten.select.int(pair, -1, 0), aten.select.int(pair, -1, 1)


def joined(real: Any, imaginary: Any) -> Any:
    """Return the complex tensor of two parts, brought to one shape."""
    if not isinstance(real, torch.Tensor):
        real = torch.full_like(imaginary, real)
    if imaginary is None:
        imaginary = torch.zeros_like(real)
    elif not isinstance(imaginary, torch.Tensor):
        imaginary = torch.full_like(real, imaginary)
    same = real.dim() == imaginary.dim() and all(
        surely(a == b) for a, b in zip(real.shape, imaginary.shape, strict=True)
    )
    if not same:
        shape = torch.broadcast_shapes(real.shape, imaginary.shape)
        real, imaginary = real.expand(shape), imaginary.expand(shape)
    return aten.complex.default(real, imaginary)


def _real_type(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real()


def _cast(part: Any, dtype: torch.dtype) -> Any:
    return part.to(dtype) if isinstance(part, torch.Tensor) and part.dtype != dtype else part


def _operands(a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four parts of two operands, in the type of the result."""
    dtype = _real_type(torch.result_type(a, b))
    return tuple(_cast(part, dtype) for part in (*parts(a), *parts(b)))


def _sum(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _difference(a: Any, b: Any) -> Any:
    if b is None:
        return a
    return -b if a is None else a - b


def _product(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a * b


# Operators that move, select or add up numbers: the same for both parts.

_BOTH = (
    *(
        "_unsafe_view",
        "view",
        "reshape",
        "expand",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
    ),
    *("index", "index_select", "gather", "narrow", "split", "split_with_sizes", "unbind", "diagonal", "diag_embed"),
    *("unfold", "flip", "roll", "repeat", "repeat_interleave", "tril", "triu", "cat", "stack", "clone", "contiguous"),
    *("where", "masked_fill", "masked_select", "masked_scatter", "index_put", "index_add", "index_copy", "index_fill"),
    *(
        "scatter",
        "scatter_add",
        "slice_scatter",
        "select_scatter",
        "diagonal_scatter",
        "copy",
        "fill",
        "constant_pad_nd",
    ),
    *("pad", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "sum", "mean", "cumsum"),
    *("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full", "empty", "empty_like", "new_empty"),
    *("neg", "trace", "diff", "im2col", "col2im", "fft_fftshift", "fft_ifftshift", "take_along_dim", "scalar_tensor"),
    *("chunk", "tensor_split", "movedim", "flatten", "unflatten", "squeeze_copy", "_reshape_alias", "take", "zero"),
    *("as_strided", "nansum", "avg_pool1d", "avg_pool2d", "upsample_nearest1d", "upsample_nearest2d", "expand_as"),
    *("view_as", "reshape_as", "empty_permuted", "mT", "rot90", "fliplr", "flipud", "swapaxes", "hstack", "vstack"),
)
_MAKING = (  # complex numbers of real ones; and back
    *("polar", "stft", "istft", "_fft_r2c", "_fft_c2c", "_fft_c2r"),
    *(f"fft_{kind}fft{axes}" for kind in ("", "i", "r", "ir", "h", "ih") for axes in ("", "2", "n")),
)


@rule(*_BOTH)
def both(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator on the real parts and on the imaginary parts."""
    schema = registries.schema(operator)
    given = [(argument, value) for argument, value in zip(schema.arguments, args, strict=False)]
    named = {a.name: a for a in schema.arguments}
    results = []
    for index in (0, 1):
        placed = [_side(argument, value, index) for argument, value in given]
        rest = {name: _side(named[name], value, index) for name, value in kwargs.items()}
        results.append(operator(*placed, **rest))
    real, imaginary = results
    if isinstance(real, (list, tuple)):
        return type(real)(joined(a, b) for a, b in zip(real, imaginary, strict=True))
    return joined(real, imaginary)


def _side(argument: Any, value: Any, index: int) -> Any:
    """Return one part of an argument; places, masks and axes are the same for both."""
    if isinstance(value, (list, tuple)):
        return [_side(argument, v, index) for v in value]
    if isinstance(value, torch.dtype):
        return _real_type(value) if value.is_complex else value
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            return parts(value)[index]
        return torch.zeros_like(value) if index and value.is_floating_point() else value
    is_value = argument.name in ("value", "fill_value") or "number" in str(argument.type)
    if is_value and isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat)):
        return parts(value)[index] if isinstance(value, complex) else (0.0 if index else value)
    return value


@rule("ones", "ones_like", "new_ones", "eye")
def ones(operator: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs = {k: _real_type(v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()}
    real = operator(*[parts(a)[0] for a in args], **kwargs)
    return joined(real, torch.zeros_like(real))


@rule("_to_copy", "to")
def cast(operator: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    given = [v.dtype if isinstance(v, torch.Tensor) else v for v in (*args, *kwargs.values())]
    dtype = next((v for v in given if isinstance(v, torch.dtype)), self.dtype)
    real, imaginary = parts(self)
    if not dtype.is_complex:
        return real.to(dtype) if dtype is not torch.bool else (real != 0) | (imaginary != 0)
    wanted = _real_type(dtype)
    real = real.to(wanted)
    return joined(real, None if imaginary is None else imaginary.to(wanted))


@rule("to_dense", "resolve_conj", "resolve_neg", "lift_fresh", "expand_copy")
def same(operator: Any, self: Any, *_: Any, **__: Any) -> Any:
    return joined(*parts(self))


# Products


def _terms(operator: Callable[..., Any], operands: Sequence[Any]) -> tuple[Any, Any]:
    """Return the parts of an operator that is linear in each operand: the sum over its operands' parts."""
    dtype = _real_type(_type_of_product(operands))
    sides = [tuple(_cast(p, dtype) for p in parts(o)) for o in operands]
    real: Any = None
    imaginary: Any = None
    for indices in itertools.product((0, 1), repeat=len(sides)):
        chosen = [side[index] for side, index in zip(sides, indices, strict=True)]
        if any(part is None for part in chosen):
            continue
        term, power = operator(*chosen), sum(indices) % 4
        if power in (0, 2):
            real = _sum(real, term) if power == 0 else _difference(real, term)
        else:
            imaginary = _sum(imaginary, term) if power == 1 else _difference(imaginary, term)
    return real, imaginary


def _type_of_product(operands: Sequence[Any]) -> torch.dtype:
    """Return the type of a product of tensors."""
    dtype = operands[0].dtype
    for operand in operands[1:]:
        dtype = torch.promote_types(dtype, operand.dtype)
    return dtype


@rule("matmul", "mm", "bmm", "mv", "dot", "outer", "ger", "kron", "linalg_matmul", "inner")
def product(operator: Any, self: Any, other: Any) -> Any:
    return joined(*_terms(operator, (self, other)))


@rule("vdot", "linalg_vecdot")
def conjugate_product(operator: Any, self: Any, other: Any, *, dim: int = -1) -> Any:
    return aten.sum.dim_IntList(aten.mul.Tensor(aten.conj_physical.default(self), other), [dim])


@rule("einsum")
def einsum(operator: Any, equation: str, tensors: Sequence[Any], *, path: Any = None) -> Any:
    return joined(*_terms(lambda *given: operator(equation, list(given)), tensors))


@rule("linear")
def linear(operator: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    real, imaginary = _terms(lambda x, w: operator(x, w), (input, weight))
    return _with_bias(real, imaginary, bias)


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(operator: Any, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    real, imaginary = _terms(lambda x, w: operator(x, w, None, *args, **kwargs), (input, weight))
    if bias is not None:
        bias = aten.reshape.default(bias, [-1, *[1] * (weight.dim() - 2)])
    return _with_bias(real, imaginary, bias)


def _with_bias(real: Any, imaginary: Any, bias: Any) -> Any:
    if bias is None:
        return joined(real, imaginary)
    more = parts(bias)
    return joined(_sum(real, more[0]), _sum(imaginary, more[1]))


@rule("addmm", "baddbmm", "addmv", "addbmm")
def add_product(operator: Any, self: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return aten.add.Tensor(aten.mul.Tensor(self, beta), aten.mul.Tensor(aten.matmul.default(a, b), alpha))


@rule("addcmul")
def addcmul(operator: Any, self: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    return aten.add.Tensor(self, aten.mul.Tensor(aten.mul.Tensor(a, b), value))


# Arithmetic


@rule("mul", "multiply")
def mul(operator: Any, self: Any, other: Any) -> Any:
    a, b, c, d = _operands(self, other)
    return joined(_difference(_product(a, c), _product(b, d)), _sum(_product(a, d), _product(b, c)))


@rule("add")
def add(operator: Any, self: Any, other: Any, *, alpha: Any = 1) -> Any:
    a, b, c, d = _operands(self, other if alpha == 1 else other * alpha)
    return joined(a + c, _sum(b, d))


@rule("sub", "subtract")
def sub(operator: Any, self: Any, other: Any, *, alpha: Any = 1) -> Any:
    a, b, c, d = _operands(self, other if alpha == 1 else other * alpha)
    return joined(a - c, _difference(b, d))


@rule("rsub")
def rsub(operator: Any, self: Any, other: Any, alpha: Any = 1) -> Any:
    return sub(operator, other, self, alpha=alpha)


@rule("div", "divide", "true_divide")
def div(operator: Any, self: Any, other: Any) -> Any:
    a, b, c, d = _operands(self, other)
    if d is None:
        return joined(a / c, b / c)
    real, imaginary = _reciprocal(c, d)
    return joined(
        _difference(_product(a, real), _product(b, imaginary)), _sum(_product(a, imaginary), _product(b, real))
    )


@rule("reciprocal")
def reciprocal(operator: Any, self: Any) -> Any:
    return joined(*_reciprocal(*parts(self)))


def _reciprocal(real: Any, imaginary: Any) -> tuple[Any, Any]:
    square = real * real + imaginary * imaginary
    return real / square, -imaginary / square


@rule("conj", "_conj", "_conj_physical", "conj_physical", "adjoint", "mH")
def conj(operator: Any, self: Any) -> Any:
    real, imaginary = parts(self)
    made = joined(real, None if imaginary is None else -imaginary)
    return aten.transpose.int(made, -2, -1) if _own_name(operator) in ("adjoint", "mH") else made


@rule("real")
def real_part(operator: Any, self: Any) -> Any:
    return parts(self)[0]


@rule("imag")
def imaginary_part(operator: Any, self: Any) -> Any:
    return parts(self)[1]


@rule("abs", "absolute")
def magnitude(operator: Any, self: Any) -> Any:
    return _magnitude(*parts(self))


def _magnitude(real: Any, imaginary: Any) -> Any:
    return torch.sqrt(real * real + imaginary * imaginary)


@rule("angle")
def angle(operator: Any, self: Any) -> Any:
    real, imaginary = parts(self)
    return torch.atan2(imaginary, real)


@rule("polar")
def polar(operator: Any, abs: Any, angle: Any) -> Any:
    return joined(abs * torch.cos(angle), abs * torch.sin(angle))


@rule("sgn")
def sgn(operator: Any, self: Any) -> Any:
    real, imaginary = parts(self)
    length = _magnitude(real, imaginary)
    divisor = torch.where(length == 0, torch.ones_like(length), length)
    return joined(real / divisor, imaginary / divisor)


@rule("eq", "ne", "isnan", "isinf", "isfinite")
def compared(operator: Any, *given: Any) -> Any:
    """Return where both parts fulfill it; for `ne`, `isnan` and `isinf`, where one does."""
    sides = list(zip(*(parts(v) for v in given), strict=True))
    real = operator(*sides[0])
    imaginary = operator(*(0.0 if part is None else part for part in _tensor_first(sides[1], given)))
    return real & imaginary if _own_name(operator) in ("eq", "isfinite") else real | imaginary


def _tensor_first(side: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """The imaginary parts; a real tensor has zeros."""
    return [
        torch.zeros_like(value) if part is None and isinstance(value, torch.Tensor) else part
        for part, value in zip(side, given, strict=True)
    ]


@rule("any", "all")
def truth(operator: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    real, imaginary = parts(self)
    return operator((real != 0) | (imaginary != 0), *args, **kwargs)


# Functions


@rule("exp")
def exp(operator: Any, self: Any) -> Any:
    real, imaginary = parts(self)
    length = torch.exp(real)
    return joined(length * torch.cos(imaginary), length * torch.sin(imaginary))


@rule("expm1")
def expm1(operator: Any, self: Any) -> Any:
    return aten.sub.Tensor(exp(operator, self), 1.0)


@rule("log", "log2", "log10", "log1p")
def log(operator: Any, self: Any) -> Any:
    real, imaginary = parts(self)
    name = _own_name(operator)
    real = real + 1 if name == "log1p" else real
    scale = {"log2": 1 / math.log(2.0), "log10": 1 / math.log(10.0)}.get(name, 1.0)
    length, direction = torch.log(_magnitude(real, imaginary)), torch.atan2(imaginary, real)
    return joined(length, direction) if scale == 1.0 else joined(length * scale, direction * scale)


@rule("sqrt", "rsqrt")
def sqrt(operator: Any, self: Any) -> Any:
    """√z = √((|z| + a) / 2) ± √((|z| - a) / 2) i, with the sign of the imaginary part."""
    real, imaginary = parts(self)
    length = _magnitude(real, imaginary)
    sign = torch.where(imaginary < 0, -1.0, 1.0).to(real.dtype)
    root = torch.sqrt((length + real).clamp(min=0) / 2), sign * torch.sqrt((length - real).clamp(min=0) / 2)
    return joined(*(_reciprocal(*root) if _own_name(operator) == "rsqrt" else root))


@rule("square")
def square(operator: Any, self: Any) -> Any:
    return mul(operator, self, self)


@rule("pow", "float_power")
def power(operator: Any, self: Any, exponent: Any) -> Any:
    if isinstance(exponent, (int, float)) and float(exponent).is_integer() and 0 < abs(exponent) <= 8:
        result = self
        for _ in range(int(abs(exponent)) - 1):
            result = mul(operator, result, self)
        return result if exponent > 0 else reciprocal(operator, result)
    base = self if isinstance(self, torch.Tensor) else torch.full((), self, device=exponent.device)
    a, b = parts(base)
    if b is None:
        b = torch.zeros_like(a)
    logarithm = joined(torch.log(_magnitude(a, b)), torch.atan2(b, a))
    return exp(operator, mul(operator, logarithm, exponent))


@rule("sin", "cos", "sinh", "cosh")
def trigonometric(operator: Any, self: Any) -> Any:
    real, imaginary = parts(self)
    name = _own_name(operator)
    x, y = (real, imaginary) if name in ("sin", "cos") else (imaginary, real)
    if name == "sin":
        return joined(torch.sin(x) * torch.cosh(y), torch.cos(x) * torch.sinh(y))
    if name == "cos":
        return joined(torch.cos(x) * torch.cosh(y), -torch.sin(x) * torch.sinh(y))
    if name == "sinh":
        return joined(torch.cos(x) * torch.sinh(y), torch.sin(x) * torch.cosh(y))
    return joined(torch.cos(x) * torch.cosh(y), torch.sin(x) * torch.sinh(y))


@rule("tan", "tanh")
def tangent(operator: Any, self: Any) -> Any:
    """tanh(a + bi) = (tanh 2a + i sin 2b / cosh 2a) / (1 + cos 2b / cosh 2a); tan z = -i tanh iz."""
    real, imaginary = parts(self)
    x, y = (real, imaginary) if _own_name(operator) == "tanh" else (-imaginary, real)
    small = 1 / torch.cosh(2 * x)
    divisor = 1 + torch.cos(2 * y) * small
    first, second = torch.tanh(2 * x) / divisor, torch.sin(2 * y) * small / divisor
    return joined(first, second) if _own_name(operator) == "tanh" else joined(second, -first)


@rule("sigmoid")
def sigmoid(operator: Any, self: Any) -> Any:
    return reciprocal(operator, aten.add.Tensor(exp(operator, aten.neg.default(self)), 1.0))


# Reductions


@rule("prod", "cumprod")
def prod(operator: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Lengths multiply, angles add."""
    real, imaginary = parts(self)
    sums = aten.cumsum if _own_name(operator) == "cumprod" else aten.sum
    length = operator(_magnitude(real, imaginary), *args, **kwargs)
    directions = [[args[0]], *args[1:]] if args and sums is aten.sum else list(args)
    direction = sums(torch.atan2(imaginary, real), *directions, **kwargs)
    return joined(length * torch.cos(direction), length * torch.sin(direction))


@replaces("torch.mean", "torch.Tensor.mean")
@only_where(lambda input, *_, **__: input.is_complex() and any(isinstance(n, torch.SymInt) for n in input.shape))
def mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Torch takes the number of complex numbers for a complex number, and fixes it."""
    axes = list(range(input.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    count = math.prod(input.shape[axis] for axis in axes)
    total = input.sum(axes, keepdim=keepdim, dtype=dtype)
    return total / torch.full((), count, dtype=_real_type(total.dtype), device=input.device)


@rule("linalg_vector_norm", "norm", "linalg_norm", "dist", "linalg_matrix_norm")
def norm(operator: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs = {k: _real_type(v) if isinstance(v, torch.dtype) and v.is_complex else v for k, v in kwargs.items()}
    return operator(_magnitude(*parts(self)), *args, **kwargs)


@rule("var", "std")
def spread(operator: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    real, imaginary = (aten.var(part, *args, **kwargs) for part in parts(self))
    return torch.sqrt(real + imaginary) if _own_name(operator) == "std" else real + imaginary


# Linear systems: (A + Bi)(x + yi) = c + di  is  [[A, -B], [B, A]] [x; y] = [c; d]


def _block(real: Any, imaginary: Any) -> Any:
    return torch.cat([torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)], -2)


def _both_parts(x: Any) -> tuple[Any, Any]:
    real, imaginary = parts(x)
    return real, torch.zeros_like(real) if imaginary is None else imaginary


@rule("linalg_inv", "inverse", "linalg_inv_ex")
def inverse(operator: Any, self: Any, **kwargs: Any) -> Any:
    size = self.shape[-1]
    found = torch.linalg.inv(_block(*_both_parts(self)))
    columns = found.narrow(-1, 0, size)
    made = joined(columns.narrow(-2, 0, size), columns.narrow(-2, size, size))
    empty = torch.zeros(self.shape[:-2], dtype=torch.int32, device=self.device)
    return (made, empty) if _own_name(operator) == "linalg_inv_ex" else made


@rule("linalg_solve")
def solve(operator: Any, self: Any, other: Any, *, left: bool = True) -> Any:
    is_vector = other.dim() == self.dim() - 1
    if not left:
        raise CaptureError(
            "torch.linalg.solve of complex numbers from the right has no ONNX translation",
            next_step="solve the transposed system: torch.linalg.solve(A.mT, B.mT).mT",
        )
    wanted = torch.cat(_both_parts(aten.unsqueeze.default(other, -1) if is_vector else other), -2)
    found = torch.linalg.solve(_block(*_both_parts(self)), wanted)
    size = self.shape[-1]
    made = found.narrow(-2, 0, size), found.narrow(-2, size, size)
    return joined(*(part.squeeze(-1) if is_vector else part for part in made))
