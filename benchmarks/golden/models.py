# mypy: disable-error-code="no-untyped-def"
"""The exports whose bytes `make golden` compares: every route, dtype and opset family, about a second each.

A row is (name, model, example inputs, options of tp.export). Changing a line number here changes the bytes, because a
saved model names the line of each node: add new models at the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- PyTorch's own name for it
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torchport as tp

Case = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.InstanceNorm2d(8), nn.Hardswish())
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, image: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x = self.up(self.deep(self.stem(image)))
        return {"logits": self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)) * scale, "map": F.max_pool2d(x, 2)}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.words(ids), src_key_padding_mask=ids == 0)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(x)
        return self.gru(y)[0], h


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # noqa: SIM108 -- a statement on purpose
            x = self.a(x)
        else:
            x = -self.b(x)
        steps = 0
        while x.abs().max() > 0.5:
            x = x / 2
            steps += 1
        return x + steps


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = []
        state = torch.zeros_like(x[0])
        for row in x:
            state = torch.tanh(state + row)
            rows.append(state)
        return torch.stack(rows)


class Scripted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for i in range(3):
            if i != 1:
                total = total + x * i
        return total


class FromValues(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.nonzero(x > 0)
        return x[x > 0], found.sum(0)


class Sorting(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values, order = torch.sort(x, dim=1, stable=True)
        return values, order, torch.topk(x, 2).values, torch.searchsorted(values, x), torch.unique(x)


class Algebra(nn.Module):
    def forward(self, a: Tensor) -> tuple[Tensor, ...]:
        spd = a @ a.mT + torch.eye(3)
        return torch.linalg.cholesky(spd), torch.linalg.svdvals(a), torch.linalg.inv(spd), torch.linalg.qr(a)[1]


class Special(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.special.i0(x), torch.lgamma(x.abs() + 1), torch.erfinv(x.tanh()), torch.special.log_ndtr(x)


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x, dim=-1).abs()


class Resampling(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        grid = F.affine_grid(torch.eye(2, 3).expand(x.shape[0], 2, 3), [x.shape[0], 1, 4, 4], align_corners=False)
        small = F.interpolate(x, size=(5, 3), mode="bicubic", antialias=True, align_corners=False)
        return small, F.interpolate(x, scale_factor=2.0, mode="bilinear"), F.grid_sample(x, grid, align_corners=False)


class Indexing(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        y[:, 0] = 1.0
        y = y.scatter_reduce(1, i, x, "amax")
        return y, x.gather(1, i), torch.roll(x, 1, 1), F.one_hot(i, 4), x.unfold(1, 2, 1), torch.cdist(x, y)


class Sizes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return torch.linspace(0, 1, n), torch.arange(n) * 2, x.view(n * 2, -1), x.new_ones(int(n**0.5) + 1)


class Losses(nn.Module):
    def forward(self, logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return F.cross_entropy(logits, target), F.log_softmax(logits, 1).logsumexp(1), logits.cumsum(1).var(1)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.gelu(self.norm(self.conv(x).mean((2, 3))))).softmax(-1)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def symbolic(g, x):
        return g.op("Sin", x)


class UsesFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Sine.apply(x) + 1


class Frozen(nn.Module):
    """The batch is fixed to that of the example: refused unless somebody asked for it."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(len(x.tolist()), 1)


def plain_function(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > y, x, y).clamp(-1, 1)


def _cells() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def _quantized(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.ao.quantization as quantization

        return quantization.quantize_dynamic(model.eval(), {nn.Linear}, dtype=torch.qint8)


def _calibrated(model: nn.Module, x: Tensor) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.ao.quantization as quantization
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

        prepared = prepare_fx(model.eval(), quantization.get_default_qconfig_mapping("fbgemm"), (x,))
        prepared(x)
        return convert_fx(prepared)


def _scaled(x: Tensor) -> Tensor:
    @tp.operator("golden::halved")
    def halved(x: Tensor) -> Tensor:
        return x / 2

    return halved(x) + 1


_BATCH = {"x": {0: "batch"}}
_IMAGES = {"image": {0: "batch", 2: "height", 3: "width"}}


def _image(dtype: torch.dtype = torch.float32) -> tuple[Tensor]:
    return (torch.randn(2, 3, 8, 8).to(dtype),)


def _attention(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 2, 5, 4).to(dtype) for _ in range(3))


_LENGTH = {name: {0: "batch", 2: "length"} for name in "qkv"}

CASES: dict[str, Callable[[], Case]] = {
    "convolutions": lambda: (Convolutions(), _image(), {"dynamic": _IMAGES}),
    "convolutions at opset 9": lambda: (Convolutions(), _image(), {"dynamic": {"image": {0: "batch"}}, "opset": 9}),
    "convolutions at opset 13": lambda: (Convolutions(), _image(), {"dynamic": _IMAGES, "opset": 13}),
    "convolutions at opset 23": lambda: (Convolutions(), _image(), {"dynamic": _IMAGES, "opset": 23}),
    "convolutions traced": lambda: (Convolutions(), _image(), {"dynamic": _IMAGES, "route": "trace"}),
    "convolutions, weights as inputs": lambda: (Mixed(), _image(), {"weights": "inputs"}),
    "convolutions, weights apart": lambda: (Mixed(), _image(), {"weights": "omit"}),
    "nothing folded": lambda: (Mixed(), _image(), {"dynamic": _BATCH, "fold_constants": False}),
    "training mode": lambda: (Convolutions(), _image(), {"dynamic": {"image": {0: "batch"}}, "mode": "train"}),
    "float16": lambda: (Mixed().half(), _image(torch.float16), {"dynamic": _BATCH}),
    "bfloat16": lambda: (Mixed().bfloat16(), _image(torch.bfloat16), {"dynamic": _BATCH}),
    "float64": lambda: (Mixed().double(), _image(torch.float64), {"dynamic": _BATCH}),
    "encoder": lambda: (Encoder(), (torch.randint(1, 50, (2, 7)),), {"dynamic": {"ids": {0: "batch", 1: "length"}}}),
    "attention": lambda: (Attention(), _attention(torch.float32), {"dynamic": _LENGTH}),
    "attention in float16": lambda: (Attention(), _attention(torch.float16), {"dynamic": _LENGTH}),
    "attention in bfloat16": lambda: (Attention(), _attention(torch.bfloat16), {"dynamic": _LENGTH}),
    "attention in float64": lambda: (Attention(), _attention(torch.float64), {"dynamic": _LENGTH}),
    "recurrent": lambda: (Recurrent(), (torch.randn(2, 5, 4),), {"dynamic": {"x": {0: "batch", 1: "steps"}}}),
    "packed": lambda: (Packed(), (torch.randn(2, 5, 4), torch.tensor([5, 3])), {}),
    "branches": lambda: (Branches(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "loop": lambda: (Loop(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "scripted": lambda: (torch.jit.script(Scripted()), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "scripted by the route": lambda: (Scripted(), (torch.randn(3, 4),), {"dynamic": _BATCH, "route": "script"}),
    "sizes from values": lambda: (FromValues(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "sorting": lambda: (Sorting(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "algebra": lambda: (Algebra(), (torch.randn(2, 3, 3),), {"dynamic": {"a": {0: "batch"}}}),
    "special functions": lambda: (Special(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "spectrum": lambda: (Spectrum(), (torch.randn(3, 8),), {"dynamic": _BATCH}),
    "resampling": lambda: (Resampling(), (torch.randn(2, 3, 8, 8),), {"dynamic": _BATCH}),
    "indexing": lambda: (Indexing(), (torch.randn(3, 4), torch.randint(0, 4, (3, 4))), {}),
    "sizes": lambda: (Sizes(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "losses": lambda: (Losses(), (torch.randn(3, 4), torch.tensor([0, 2, 1])), {}),
    "autograd function": lambda: (UsesFunction(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "function": lambda: (plain_function, (torch.randn(3, 4), torch.randn(3, 4)), {}),
    "operator of one's own": lambda: (_scaled, (torch.randn(3, 4),), {}),
    "quantized dynamically": lambda: (_quantized(_cells()), (torch.randn(3, 4),), {"dynamic": {"input": {0: "batch"}}}),
    "quantized statically": lambda: (_calibrated(_cells(), torch.randn(3, 4)), (torch.randn(3, 4),), {}),
    "data parallel": lambda: (nn.DataParallel(Mixed()), _image(), {"dynamic": _BATCH}),
    "exported program": lambda: (torch.export.export(Mixed().eval(), _image()), (), {}),
    "names of one's own": lambda: (Mixed(), _image(), {"input_names": ["a"], "output_names": ["b"]}),
    "refused: the batch is frozen": lambda: (Frozen(), (torch.randn(3, 4),), {"dynamic": _BATCH}),
    "refused: opset 8": lambda: (Special(), (torch.randn(3, 4),), {"opset": 8}),
}  # fmt: skip
