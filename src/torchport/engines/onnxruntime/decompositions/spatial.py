"""Conv, ConvTranspose, pooling and Resize in simpler operators, for types that have no kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import onnx_ir as ir

from torchport.irtools.builder import Steps

# Conv as one product of matrices for each place of the kernel; ConvTranspose as a Conv of the picture spread apart.
#
#     y = Σ over places k of the kernel:  W[..., k] · x[..., k·dilation + stride·(0, 1, 2, ...)]
#
# The picture shifted by k is a slice with a stride, its length found by counting from the end: it starts at k·d and
# ends (K - 1 - k)·d before the end of the padded picture. Groups are an axis of their own.
#
#     ConvTranspose(x, W, stride s) = Conv(x with s - 1 zeros after each number, W turned round, stride 1)

END = (1 << 63) - 1
_MOST_PLACES = 200  # of a kernel; beyond, the graph would be larger than it is worth


def conv(op: Steps, node: ir.Node) -> ir.Value | None:
    x, weight = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    kernel = _kernel(node)
    if x is None or weight is None or kernel is None:
        return None
    rank = len(kernel)
    strides = node.attributes.get_ints("strides", [1] * rank)
    dilations = node.attributes.get_ints("dilations", [1] * rank)
    pads = node.attributes.get_ints("pads", [0] * 2 * rank)
    groups = node.attributes.get_int("group", 1)
    if any(pads):
        x = op.Pad(x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]])
    outputs, inputs = _static(weight)[:2]
    apart = op.Reshape(weight, [groups, outputs // groups, inputs, math.prod(kernel)])
    return _products(op, x, apart, bias, (groups, outputs, inputs), kernel, strides, dilations)


def conv_transpose(op: Steps, node: ir.Node) -> ir.Value | None:
    x, weight = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    kernel = _kernel(node)
    if x is None or weight is None or kernel is None or "output_shape" in node.attributes:
        return None
    rank = len(kernel)
    strides = node.attributes.get_ints("strides", [1] * rank)
    dilations = node.attributes.get_ints("dilations", [1] * rank)
    pads = node.attributes.get_ints("pads", [0] * 2 * rank)
    further = node.attributes.get_ints("output_padding", [0] * rank)
    groups = node.attributes.get_int("group", 1)
    for axis, stride in enumerate(strides, start=2):
        x = _spread(op, x, axis, stride, 2 + rank) if stride > 1 else x
    reach = [(size - 1) * d for size, d in zip(kernel, dilations, strict=True)]
    before = [r - p for r, p in zip(reach, pads[:rank], strict=True)]
    after = [r - p + f for r, p, f in zip(reach, pads[rank:], further, strict=True)]
    x = op.Pad(x, [0, 0, *before, 0, 0, *after])  # a padding below zero cuts off
    channels, own = _static(weight)[:2]
    inputs = channels // groups
    places = math.prod(kernel)
    apart = op.Transpose(op.Reshape(weight, [groups, inputs, own, places]), perm=[0, 2, 1, 3])
    turned = op.Slice(apart, [places - 1], [-END], [3], [-1])
    return _products(op, x, turned, bias, (groups, own * groups, inputs), kernel, [1] * rank, dilations)


def _kernel(node: ir.Node) -> list[int] | None:
    """The sides of the kernel; None where they are not known or too many, or the padding is not said in numbers."""
    weight = node.inputs[1]
    if weight is None or weight.shape is None or not weight.shape.is_static():
        return None
    kernel = _static(weight)[2:]
    padded_otherwise = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    return None if math.prod(kernel) > _MOST_PLACES or padded_otherwise else kernel


def _static(value: ir.Value) -> list[int]:
    assert value.shape is not None
    return list(value.shape.numpy())


def _spread(op: Steps, x: ir.Value, axis: int, stride: int, rank: int) -> ir.Value:
    """`stride` - 1 zeros between the numbers along an axis."""
    pads = [0] * (rank + 1)
    wide = op.Pad(op.Unsqueeze(x, [axis + 1]), [*pads, *pads[: axis + 1], stride - 1, *pads[axis + 2 :]])
    shape = op.Mul(op.Shape(x), [stride if a == axis else 1 for a in range(rank)])
    answer: ir.Value = op.Slice(op.Reshape(wide, shape), [0], [1 - stride], [axis])
    return answer


def _products(
    op: Steps,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    sizes: tuple[int, int, int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> ir.Value:
    """The sum over all places of the kernel.

    Args:
        op: builds the nodes.
        x: the picture, padded.
        weight: group, output of the group, channel, place of the kernel.
        bias: of each output.
        sizes: how many groups, outputs in all, and channels in a group.
        kernel: its sides.
        strides: of the kernel over the picture.
        dilations: between the kernel's places.
    """
    groups, outputs, inputs = sizes
    total = None
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        # batch, group, channel, then the picture; the products are over channels
        part = op.Reshape(_shifted(op, x, place, kernel, strides, dilations), [0, groups, inputs, -1])
        own = op.Squeeze(op.Slice(weight, [number], [number + 1], [3]), [3])
        product = op.MatMul(own, part)  # of each group: outputs by channels, channels by places
        total = product if total is None else op.Add(total, product)
    shape = op.Concat(*_output_shape(op, x, outputs, kernel, strides, dilations), axis=0)
    answer: ir.Value = op.Reshape(total, shape)
    if bias is not None:
        answer = op.Add(answer, op.Reshape(bias, [1, outputs, *[1] * len(kernel)]))
    return answer


def _shifted(
    op: Steps,
    x: ir.Value,
    place: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> ir.Value:
    starts = [k * d for k, d in zip(place, dilations, strict=True)]
    left = [(size - 1 - k) * d for size, k, d in zip(kernel, place, dilations, strict=True)]
    ends = [-n if n else END for n in left]
    answer: ir.Value = op.Slice(x, starts, ends, [2 + a for a in range(len(kernel))], list(strides))
    return answer


def _output_shape(
    op: Steps, x: ir.Value, outputs: int, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[ir.Value | None]:
    """Batch, channels, and for each side floor((size - (K - 1)·d - 1) / stride) + 1."""
    sides: list[ir.Value | None] = []
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        given = op.Shape(x, start=2 + axis, end=3 + axis)
        sides.append(op.Add(op.Div(op.Sub(given, [(size - 1) * dilation + 1]), [stride]), [1]))
    return [op.Shape(x, start=0, end=1), op.value([outputs]), *sides]


# Pooling as reductions; AveragePool as a convolution with equal weights, divided by how many numbers were seen.


def global_average(op: Steps, node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    answer: ir.Value = op.ReduceMean(x, list(range(2, len(x.shape))), keepdims=1)
    return answer


def global_max(op: Steps, node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    answer: ir.Value = op.ReduceMax(x, list(range(2, len(x.shape))), keepdims=1)
    return answer


def average(op: Steps, node: ir.Node) -> ir.Value | None:
    """Only where no padding is left out of the count: then all windows are of one size."""
    x, attributes = node.inputs[0], node.attributes
    kernel = list(attributes.get_ints("kernel_shape", []))
    rank = len(kernel)
    pads = list(attributes.get_ints("pads", [0] * 2 * rank))
    padded = any(pads) and not attributes.get_int("count_include_pad", 0)
    others = attributes.get_int("ceil_mode", 0) or attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    if x is None or padded or others:
        return None
    strides = list(attributes.get_ints("strides", [1] * rank))
    dilations = list(attributes.get_ints("dilations", [1] * rank))
    if any(pads):
        x = op.Pad(x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]])
    total = None
    for place in itertools.product(*map(range, kernel)):
        starts = [k * d for k, d in zip(place, dilations, strict=True)]
        left = [(size - 1 - k) * d for size, k, d in zip(kernel, place, dilations, strict=True)]
        part = op.Slice(x, starts, [-n if n else END for n in left], [2 + a for a in range(rank)], strides)
        total = part if total is None else op.Add(total, part)
    answer: ir.Value = op.Div(total, float(math.prod(kernel)))
    return answer


# Resize one axis after the other: the places to read from, and what each counts.
#
#     place      half_pixel (o + ½) / scale - ½      asymmetric o / scale      align_corners o · (in - 1) / (out - 1)
#     nearest    x[place, rounded]
#     linear     x[i] · (1 - t) + x[i + 1] · t       i = ⌊place⌋, t = place - i
#     cubic      four numbers around the place, by R. Keys' polynomials
#
# Beyond the border the border's number counts. Which number is nearest a kernel of float32 says, of the numbers
# 0, 1, 2, ...: to compute it otherwise would round a half the other way.

_PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


def resize(op: Steps, node: ir.Node) -> ir.Value | None:
    x, _, scales, sizes = [*node.inputs, *[None] * 3][:4]
    attributes = node.attributes
    mode, place = attributes.get_string("mode", "nearest"), attributes.get_string(_PLACE, "half_pixel")
    others = attributes.get_int("antialias", 0) or attributes.get_int("exclude_outside", 0) or "axes" in attributes
    if x is None or x.shape is None or place not in _PLACES or others:
        return None
    value: ir.Value = x
    for axis in range(2, len(x.shape)):
        given = op.Shape(x, start=axis, end=axis + 1)
        size = op.Cast(given, to=_DOUBLE)
        if sizes is not None:
            out = op.Slice(sizes, [axis], [axis + 1])
            scale = op.Div(op.Cast(out, to=_DOUBLE), size)
        else:
            scale = op.Cast(op.Slice(scales, [axis], [axis + 1]), to=_DOUBLE)
            out = op.Cast(op.Floor(op.Mul(size, scale)), to=_INT64)
        steps = _count(op, out)
        last = op.Sub(given, [1])
        if mode == "nearest":
            value = op.Gather(value, _nearest(op, node, given, out, scales, axis), axis=axis)
            continue
        places = _places(op, place, op.Cast(steps, to=_DOUBLE), size, op.Cast(out, to=_DOUBLE), scale)
        spread = [-1, *[1] * (len(x.shape) - axis - 1)]
        total = None
        for number, weight in _taps(op, mode, places, last, attributes.get_float("cubic_coeff_a", -0.75)):
            inside = op.Max(op.Min(number, last), [0])
            part = op.Mul(op.Gather(value, inside, axis=axis), op.Reshape(weight, spread))
            total = part if total is None else op.Add(total, part)
        assert total is not None
        value = total
    return value


_PLACE = "coordinate_transformation_mode"
_DOUBLE, _INT64, _FLOAT = int(ir.DataType.DOUBLE), int(ir.DataType.INT64), int(ir.DataType.FLOAT)


def _count(op: Steps, length: ir.Value) -> ir.Value:
    """0, 1, 2, ... up to a length."""
    numbers: ir.Value = op.Range(*(op.Squeeze(op.value(n)) for n in ([0], length, [1])))
    return numbers


def _places(op: Steps, kind: str, steps: ir.Value, size: ir.Value, out: ir.Value, scale: ir.Value) -> ir.Value:
    places: ir.Value
    if kind == "align_corners":
        places = op.Div(op.Mul(steps, op.Sub(size, 1.0)), op.Max(op.Sub(out, 1.0), 1.0))
    elif kind == "asymmetric":
        places = op.Div(steps, scale)
    else:
        places = op.Sub(op.Div(op.Add(steps, 0.5), scale), 0.5)
    if kind == "pytorch_half_pixel":
        places = op.Where(op.Greater(out, 1.0), places, 0.0)
    return places


def _taps(op: Steps, mode: str, places: ir.Value, last: ir.Value, a: float) -> list[tuple[ir.Value, ir.Value]]:
    """Numbers along the axis, and what each counts."""
    if mode == "linear":
        places = op.Max(op.Min(places, op.Cast(last, to=_DOUBLE)), 0.0)
    floor = op.Floor(places)
    t = op.Sub(places, floor)
    first = op.Cast(floor, to=_INT64)
    if mode == "linear":
        return [(first, op.Sub(1.0, t)), (op.Add(first, [1]), t)]
    rest = op.Sub(1.0, t)
    weights = [_far(op, op.Add(t, 1.0), a), _near(op, t, a), _near(op, rest, a), _far(op, op.Add(rest, 1.0), a)]
    return [(op.Add(first, [n - 1]), weight) for n, weight in enumerate(weights)]


def _near(op: Steps, d: ir.Value, a: float) -> ir.Value:
    """((a + 2) · d - (a + 3)) · d² + 1, at a distance below one."""
    answer: ir.Value = op.Add(op.Mul(op.Sub(op.Mul(d, a + 2), a + 3), op.Mul(d, d)), 1.0)
    return answer


def _far(op: Steps, d: ir.Value, a: float) -> ir.Value:
    """((a · d - 5a) · d + 8a) · d - 4a, at a distance between one and two."""
    inner = op.Add(op.Mul(op.Sub(op.Mul(d, a), 5 * a), d), 8 * a)
    answer: ir.Value = op.Sub(op.Mul(inner, d), 4 * a)
    return answer


def _nearest(op: Steps, node: ir.Node, given: ir.Value, out: ir.Value, scales: ir.Value | None, axis: int) -> ir.Value:
    """Which number a Resize of float32 takes."""
    ramp = op.Reshape(op.Cast(_count(op, given), to=_FLOAT), [1, 1, -1])
    attributes = {a.name: a.value for a in node.attributes.values()}
    if scales is not None and node.inputs[2] is not None:
        own = op.Slice(scales, [axis], [axis + 1])
        ones = op.Cast(op.value([1, 1]), to=_FLOAT)
        found = op.Resize(ramp, None, op.Concat(ones, own, axis=0), **attributes)
    else:
        found = op.Resize(ramp, None, None, op.Concat(op.value([1, 1]), out, axis=0), **attributes)
    answer: ir.Value = op.Cast(op.Reshape(found, [-1]), to=_INT64)
    return answer
