"""Models with torch's own control flow operators, as users write them. Each is a function or a module of `x`."""

from __future__ import annotations

import torch
from functorch.experimental.control_flow import map as map_
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop


def alias(x):
    return torch.cond(x.sum() > 0, lambda x: x, lambda x: x * 2, (x,))


def alias_of_a_view(x):
    return torch.cond(x.sum() > 0, lambda x: x.view(-1, 4).t(), lambda x: (x * 2).t(), (x,))


def one_result_twice(x):
    def then(x):
        y = x + 1
        return y, y

    return torch.cond(x.sum() > 0, then, lambda x: (x - 1, x), (x,))


def on_a_size(x):
    return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))


def whole_number_as_result(x):
    y, k = torch.cond(x.sum() > 0, lambda x: (x * 1.5, x.shape[0]), lambda x: (x, 7), (x,))
    return y * k


def numbers_as_operands(x):
    given = (x, x.shape[0], 2, 0.5)
    return torch.cond(x.sum() > 0, lambda x, n, k, f: x[: n - 1] * k, lambda x, n, k, f: x[1:] - n * f, given)


def structures(x):
    given = {"p": x, "q": [x * 2, x * 3]}
    out = torch.cond(
        x.sum() > 0,
        lambda d: {"a": d["p"] + d["q"][0], "b": d["p"]},
        lambda d: {"a": d["p"] - 1, "b": d["q"][1]},
        (given,),
    )
    return out["a"], out["b"]


def written_operand(x):
    y = x.clone()

    def then(y):
        y.add_(1)
        return y.sin()

    return torch.cond(x.sum() > 0, then, lambda y: y.cos(), (y,)) + y


def nested_branches(x):
    def then(x):
        return torch.cond(x.mean() > 0.5, lambda x: x + 10, lambda x: x, (x,))

    return torch.cond(x.sum() > 0, then, lambda x: -x, (x,))


class Closures(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("bias", torch.randn(4))

    def forward(self, x):
        h, n = x * 2, x.shape[0]
        return torch.cond(x.mean() > 0, lambda: self.layer(x) + h, lambda: x / n + self.bias)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.second = nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.cond(x.max() > 1.0, self.first, self.second, (x,))


class Gradients(nn.Module):
    """Gradients switched off and on around a choice, and inside of one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        def then(x):
            with torch.no_grad():
                return self.layer(x)

        with torch.no_grad():
            y = torch.cond(x.sum() > 0, then, lambda x: x * 2, (x,))
        with torch.enable_grad():
            return torch.cond(y.sum() > 0, then, lambda x: x, (y,)) + y


class Vmap(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        h = x.sum()
        return torch.cond(x.sum() > 0, lambda x: torch.vmap(lambda r: r * self.weight + h)(x), lambda x: x - 3, (x,))


def counted(x):
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x + i), (0, x))


def swapped(x):
    def body(i, x, y):
        return i + 1, y, x + y

    return while_loop(lambda i, x, y: i < 4, body, (torch.tensor(0), x, x * 2))[1:]


class UntilLarge(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        def body(i, x):
            return i + 1, self.layer(x) + x * 2

        i, y = while_loop(lambda i, x: (x.abs().sum() < 100) & (i < 20), body, (torch.tensor(0), x))
        return i, y


def written_rows(x):
    def body(i, out):
        out = out.clone()
        out[i] = x[i] * 2 + out.sum(0)
        return i + 1, out

    return while_loop(lambda i, out: i < x.shape[0], body, (0, torch.zeros_like(x)))[1]


def rows_written_in_place(x):
    def body(i, out):
        out[i] = x[i] * 2 + out.sum(0)
        return i + 1, out

    return while_loop(lambda i, out: i < x.shape[0], body, (torch.tensor(0), torch.zeros_like(x)))[1]


def nested_loops(x):
    def body(i, x):
        _, x = while_loop(lambda j, y: j < i + 1, lambda j, y: (j + 1, y * 1.5), (torch.tensor(0), x))
        return i + 1, torch.cond(x.sum() > 0, lambda x: x - 1, lambda x: x + 1, (x,))

    return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1]


def carried_structure(x):
    def body(s):
        return ({"i": s["i"] + 1, "x": s["x"] * 1.5, "n": [s["n"][0] + s["x"].sum()]},)

    (out,) = while_loop(lambda s: s["i"] < 4, body, ({"i": torch.tensor(0), "x": x, "n": [torch.zeros(())]},))
    return out["x"], out["n"][0]


def running_sum(x):
    def step(carry, row):
        new = carry + row
        return new, new

    return scan(step, torch.zeros(x.shape[1]), x)


class Cells(nn.Module):
    """One scan after the other, the second one backwards."""

    def __init__(self):
        super().__init__()
        self.first = nn.GRUCell(4, 4)
        self.second = nn.LSTMCell(4, 3)

    def forward(self, x):
        def step(state, y):
            h, c = self.second(y[None], state)
            return (h, c), {"h": h[0], "c": state[1][0]}

        h, ys = scan(lambda h, x: (self.first(x, h),) * 2, torch.zeros(4), x)
        zero = torch.zeros(1, 3)
        last, out = scan(step, (zero, zero), ys, reverse=True)
        return h, *last, torch.cat([out["h"], out["c"]], -1) + ys[:, :1]


def scan_of_choices(x):
    def step(carry, row):
        new = torch.cond(row.sum() > 0, lambda c, r: c + r, lambda c, r: c - r, (carry, row))
        return new, new * 2

    return scan(step, torch.zeros(4), x)


def scan_over_columns(x):
    return scan(lambda c, column: (c * 0.5 + column, c), torch.zeros(x.shape[0]), x, dim=1)


def operator_itself(x):
    """As onnx-diagnostic has it: the operator, whose functions give flat lists."""

    def step(out, number, x, y):
        out = out.clone()
        i = number.item()
        out[i, :] = ((x[i, :] - y) ** 2).sum(dim=-1)
        return [out, number]

    out = torch.zeros((x.shape[0], x.shape[0]))
    return torch.ops.higher_order.scan(step, [out], [torch.arange(x.shape[0])], [x, x * 2])[0]


def mapped(x):
    return map_(lambda row: (row, row[0], row.softmax(0)), x)


class MappedWithArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return map_(lambda row, y, n: {"a": row @ self.weight + y, "b": row.mean() * n}, x, x.sum(0), x.shape[0])


def map_of_choices(x):
    return map_(lambda row: torch.cond(row.sum() > 0, lambda r: r * 2, lambda r: r, (row,)), x)


def associative(x):
    return associative_scan(torch.maximum, x, dim=0, combine_mode="generic")


class LinearRecurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x):
        def combine(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        return associative_scan(combine, (torch.sigmoid(x * self.scale), x), dim=0, combine_mode="generic")[1]


def matrix_products(x):
    matrices = torch.tanh(x[:, :, None] * x[:, None])
    return associative_scan(lambda a, b: a @ b, matrices, dim=0, reverse=True, combine_mode="generic")


FUNCTIONS = (
    *(alias, alias_of_a_view, one_result_twice, on_a_size, whole_number_as_result, numbers_as_operands, structures),
    *(written_operand, nested_branches, counted, swapped, written_rows, rows_written_in_place, nested_loops),
    *(carried_structure, running_sum, scan_of_choices, scan_over_columns, operator_itself, mapped, map_of_choices),
    *(associative, matrix_products),
)
MODULES = (Closures, Layers, Gradients, Vmap, UntilLarge, Cells, MappedWithArguments, LinearRecurrence)
MODELS = {f.__name__: lambda f=f: f for f in FUNCTIONS} | {m.__name__: lambda m=m: m().eval() for m in MODULES}
