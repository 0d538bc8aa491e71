"""Resize one axis after the other: the places to read from, and what each counts.

    place      half_pixel (o + ½) / scale - ½      asymmetric o / scale      align_corners o · (in - 1) / (out - 1)
    nearest    x[place, rounded]
    linear     x[i] · (1 - t) + x[i + 1] · t       i = ⌊place⌋, t = place - i
    cubic      four numbers around the place, by R. Keys' polynomials

Beyond the border the border's number counts. Which number is nearest a kernel of float32 says, of the numbers
0, 1, 2, ...: to compute it otherwise would round a half the other way.
"""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools.builder import Steps

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
