"""Models as users save them with torch.jit: one for each construct that TorchScript writes in its own way."""

# ruff: noqa: UP006, UP031, UP035, UP045 -- TorchScript reads annotations and formats of its own
# no `from __future__ import annotations`: TorchScript wants them as types
import warnings
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn


class Color(Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    first: Tensor
    second: Optional[Tensor]


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, n: int) -> int:
        self.count += n
        return self.count


with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    @torch.jit.interface
    class OneInput(nn.Module):
        def forward(self, input: Tensor) -> Tensor:
            pass


class Detector(nn.Module):
    """Loops, dicts, named tuples, enums, optionals, texts, errors."""

    threshold: torch.jit.Final[float]

    def __init__(self) -> None:
        super().__init__()
        self.threshold = 0.5
        self.color = Color.RED
        self.save = [1, 2]  # an attribute called like an operator that is refused, as in YOLO
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.named = nn.ModuleDict({"a": nn.ReLU(), "b-c": nn.Sigmoid()})

    def forward(self, x: Tensor, extra: Optional[Tensor] = None) -> Tuple[Tensor, Dict[str, Tensor]]:
        found: Dict[str, Tensor] = {}
        kept: List[Tensor] = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            found[f"layer{i}"] = x
            kept.append(x)
        for name, layer in self.named.items():
            found["{} of {}".format(name, "x")] = layer(x)
        if extra is not None:
            x = x + extra
        while bool(x.abs().max() > 10.0):
            x = x / 2
        if x.dim() != 2:
            raise ValueError("rank %d" % x.dim())
        if self.color == Color.BLUE:
            print("blue", x.shape)
        pair = Pair(x, None)
        assert isinstance(pair.first, Tensor)
        counter = Counter(2)
        total = counter.add(len(kept))
        keys = sorted(found.keys())
        halves = [k.mean(0, keepdim=True) * self.threshold for k in kept]
        return torch.cat(halves) * total + pair.first.sum() + float(len(keys)), found

    @torch.jit.export
    def describe(self, n: int) -> str:
        return "-".join([str(n), 'it\'s "quoted"', "täg", str(self.training)]).upper()


class Forks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        later = torch.jit.fork(torch.relu, x)
        return torch.jit.wait(later) + x.size(0) + x.ndim + x.T.sum()


class Chosen(nn.Module):
    chosen: OneInput

    def __init__(self) -> None:
        super().__init__()
        self.chosen = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.chosen.forward(x)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
        answer, _ = self.lstm(packed)
        return nn.utils.rnn.pad_packed_sequence(answer, batch_first=True)[0]


class Quieter(nn.Module):
    """Contexts: no gradients, a name for the profiler, half precision."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        with torch.autograd.profiler.record_function("named"):
            y = y + 1
        with torch.autocast("cpu", enabled=False):
            return torch.where(y > 0, y, torch.full_like(y, float("-inf"))).clamp(min=-1.0)


class Stateful(nn.Module):
    """Restores itself, harmlessly."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale

    @torch.jit.export
    def __getstate__(self) -> Tuple[Tensor, bool]:
        return self.scale, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]) -> None:
        self.scale = state[0].clone()
        self.training = state[1]


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.conv, self.fc = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.quant(x)).mean([2, 3])
        return self.dequant(self.fc(y))


def _static() -> nn.Module:
    model = Quantized().eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
    torch.ao.quantization.prepare(model, inplace=True)
    model(torch.rand(1, 3, 8, 8))
    return torch.ao.quantization.convert(model)


def _dynamic() -> nn.Module:
    model = nn.ModuleDict({"fc": nn.Linear(4, 4), "lstm": nn.LSTM(4, 4)})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.lstm = model["fc"], model["lstm"]

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(self.fc(x))[0]

    return torch.ao.quantization.quantize_dynamic(Both().eval(), {nn.Linear, nn.LSTM})


def _layers() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Layers of torch.nn, by name, with inputs."""
    image, line, rows = torch.rand(2, 4, 8, 8), torch.rand(2, 4, 16), torch.rand(2, 3, 4)
    made = {
        "conv": (nn.Sequential(nn.Conv2d(4, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.GELU()), image),
        "conv1d": (nn.Sequential(nn.Conv1d(4, 4, 3, padding_mode="circular", padding=1), nn.ReLU6()), line),
        "transposed": (nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1), image),
        "norms": (nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LocalResponseNorm(2)), image),
        "layer norm": (nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4), nn.Softmax(-1), nn.Dropout()), rows),
        "pools": (nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()), image),
        "upsampling": (nn.Sequential(nn.Upsample(scale_factor=2.0, mode="bilinear"), nn.PixelShuffle(2)), image),
        "padding": (nn.Sequential(nn.ReflectionPad2d(1), nn.ZeroPad2d(1), nn.Unflatten(1, (2, 2))), image),
        "activations": (
            nn.Sequential(nn.PReLU(), nn.Hardswish(), nn.Mish(), nn.SiLU(), nn.ELU(), nn.LogSoftmax(1)),
            rows,
        ),
        "attention": (nn.MultiheadAttention(4, 2, batch_first=True), (rows, rows, rows)),
        "transformer": (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2), rows),
        "embedding": (nn.Embedding(8, 4), torch.arange(6).view(2, 3)),
        "bag": (nn.EmbeddingBag(8, 4, mode="sum"), torch.arange(6).view(2, 3)),
        "gru": (nn.Sequential(nn.GRU(4, 5, num_layers=2, batch_first=True)), rows),
        "rnn": (nn.Sequential(nn.RNN(4, 5)), rows),
        "bilinear": (nn.Bilinear(4, 4, 2), (rows, rows)),
        "loss": (nn.CrossEntropyLoss(label_smoothing=0.1), (torch.rand(2, 4), torch.tensor([0, 3]))),
    }
    return {name: (layer.eval(), x if isinstance(x, tuple) else (x,)) for name, (layer, x) in made.items()}


def saved_models() -> dict[str, tuple[Callable[[], Any], tuple[Any, ...]]]:
    """Return functions that make a TorchScript module, by name, each with inputs for it."""
    x, rows = torch.rand(3, 4), torch.rand(2, 3, 4)
    made: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {}
    for name, (layer, args) in _layers().items():
        made[f"scripted {name}"] = (lambda layer=layer: torch.jit.script(layer), args)
        if name != "embedding":
            made[f"traced {name}"] = (
                lambda layer=layer, args=args: torch.jit.trace(layer, args, check_trace=False),
                args,
            )
    for model, args in ((Detector(), (x,)), (Forks(), (x,)), (Chosen(), (x,)), (Packed(), (rows,)), (Quieter(), (x,))):
        made[type(model).__name__] = (partial(torch.jit.script, model.eval()), args)
    made["Stateful"] = (lambda: torch.jit.script(Stateful()), (x,))
    made["frozen"] = (lambda: torch.jit.freeze(torch.jit.script(Detector().eval())), (x,))
    made["optimized"] = (lambda: torch.jit.optimize_for_inference(torch.jit.script(Quieter().eval())), (x,))
    image = torch.rand(1, 3, 8, 8)
    made["quantized"] = (lambda: torch.jit.script(_static()), (image,))
    made["quantized, traced"] = (lambda: torch.jit.trace(_static(), image), (image,))
    made["quantized dynamically"] = (lambda: torch.jit.script(_dynamic()), (rows,))
    return made


def made(make: Callable[[], Any]) -> Any:
    """Return the module, without the warnings of torch's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()
