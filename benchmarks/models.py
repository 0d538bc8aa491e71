"""The models the export benchmark measures, written out here: nothing is downloaded, weights are random."""

from __future__ import annotations

import torch
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = x if self.down is None else self.down(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x)) + short)


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.layers = nn.Sequential(*(nn.Sequential(BasicBlock(i, o, s), BasicBlock(o, o, 1)) for i, o, s in widths))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(8, width // 4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * nn.functional.hardsigmoid(self.fc2(torch.relu(self.fc1(self.pool(x)))))


class InvertedResidual(nn.Module):
    def __init__(self, i: int, kernel: int, e: int, o: int, se: bool, hs: bool, stride: int) -> None:
        super().__init__()
        activation = nn.Hardswish if hs else nn.ReLU
        layers: list[nn.Module] = []
        if e != i:
            layers += [nn.Conv2d(i, e, 1, bias=False), nn.BatchNorm2d(e), activation()]
        layers += [nn.Conv2d(e, e, kernel, stride, kernel // 2, groups=e, bias=False), nn.BatchNorm2d(e), activation()]
        layers += [SqueezeExcite(e)] if se else []
        layers += [nn.Conv2d(e, o, 1, bias=False), nn.BatchNorm2d(o)]
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and i == o

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3Small(nn.Module):
    ROWS = (
        (16, 3, 16, 16, True, False, 2),
        (16, 3, 72, 24, False, False, 2),
        (24, 3, 88, 24, False, False, 1),
        (24, 5, 96, 40, True, True, 2),
        (40, 5, 240, 40, True, True, 1),
        (40, 5, 240, 40, True, True, 1),
        (40, 5, 120, 48, True, True, 1),
        (48, 5, 144, 48, True, True, 1),
        (48, 5, 288, 96, True, True, 2),
        (96, 5, 576, 96, True, True, 1),
        (96, 5, 576, 96, True, True, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
        head = [nn.Conv2d(96, 576, 1, bias=False), nn.BatchNorm2d(576), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)]
        self.features = nn.Sequential(*stem, *(InvertedResidual(*row) for row in self.ROWS), *head)
        self.classifier = nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention_output, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        context = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        context = context.transpose(1, 2).reshape(x.shape)
        x = self.attention_norm(x + self.attention_output(context))
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class BertLike(nn.Module):
    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, vocabulary: int = 8000) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places))
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        return x


class TwoLayerLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _bert_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(2, 64, dtype=torch.int64)
    mask[1, 48:] = 0
    return torch.randint(0, 8000, (2, 64)), mask


# name: model, example inputs, dynamic axes by input
MODELS = {
    "resnet18": (ResNet18, lambda: (torch.randn(2, 3, 224, 224),), {"x": {0: "batch"}}),
    "mobilenetv3-small": (MobileNetV3Small, lambda: (torch.randn(2, 3, 224, 224),), {"x": {0: "batch"}}),
    "bert-4-layer": (
        BertLike,
        _bert_inputs,
        {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}},
    ),
    "lstm-2-layer": (TwoLayerLSTM, lambda: (torch.randn(2, 20, 64),), {"x": {0: "batch"}}),
}
