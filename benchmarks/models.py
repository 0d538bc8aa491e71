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


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.down = None
        if stride != 1 or inside != 4 * width:
            self.down = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = x
        if self.down is not None:
            short = self.down(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x = x + short
        return torch.relu(x)


class ResNet50(nn.Module):
    STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        inside = 64
        for width, count, stride in self.STAGES:
            blocks += [Bottleneck(inside, width, stride), *(Bottleneck(4 * width, width, 1) for _ in range(count - 1))]
            inside = 4 * width
        self.blocks = nn.ModuleList(blocks)
        self.fc = nn.Linear(inside, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = self.pool(x)
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3))
        return self.fc(x)


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


class ViTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        y = self.qkv(y).reshape(x.shape[0], x.shape[1], 3, self.heads, -1)
        q, k, v = y.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).reshape(x.shape)
        x = x + self.proj(y)
        y = nn.functional.gelu(self.up(self.norm2(x)))
        return x + self.down(y)


class ViT(nn.Module):
    """ViT-B/16, or a narrower and shallower one."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, size: int = 224, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(ViTBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1)
        x = x + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, 0])


class TwoLayerLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class ConvBlock(nn.Sequential):
    def __init__(self, i: int, o: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU())


class SplitBlock(nn.Module):
    """A cross-stage block: half of the channels goes through bottlenecks, and every stage is joined at the end."""

    def __init__(self, i: int, o: int, depth: int) -> None:
        super().__init__()
        half = o // 2
        self.enter = ConvBlock(i, o, 1)
        self.inner = nn.ModuleList(nn.Sequential(ConvBlock(half, half), ConvBlock(half, half)) for _ in range(depth))
        self.leave = ConvBlock((2 + depth) * half, o, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for block in self.inner:
            parts.append(parts[-1] + block(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class YoloLike(nn.Module):
    """A detector with three scales: anchors are made of the feature maps' sizes, boxes are decoded in the model."""

    STRIDES = (8, 16, 32)
    BINS = 16

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvBlock(3, 16, 3, 2), ConvBlock(16, 32, 3, 2), SplitBlock(32, 32, 1))
        widths = ((32, 64), (64, 128), (128, 256))
        self.stages = nn.ModuleList(nn.Sequential(ConvBlock(i, o, 3, 2), SplitBlock(o, o, 2)) for i, o in widths)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.middle, self.top = SplitBlock(256 + 128, 128, 1), SplitBlock(128 + 64, 64, 1)
        self.boxes = nn.ModuleList(nn.Conv2d(w, 4 * self.BINS, 1) for w in (64, 128, 256))
        self.classes = nn.ModuleList(nn.Conv2d(w, classes, 1) for w in (64, 128, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        small, medium, large = (x := stage(x) for stage in self.stages)
        medium = self.middle(torch.cat((self.up(large), medium), 1))
        small = self.top(torch.cat((self.up(medium), small), 1))
        maps = (small, medium, large)
        boxes = torch.cat([head(m).flatten(2) for head, m in zip(self.boxes, maps, strict=True)], 2)
        scores = torch.cat([head(m).flatten(2) for head, m in zip(self.classes, maps, strict=True)], 2)
        return torch.cat((self._decode(boxes, maps), scores.sigmoid()), 1)

    def _decode(self, boxes: torch.Tensor, maps: tuple[torch.Tensor, ...]) -> torch.Tensor:
        anchors, strides = zip(*(self._grid(m, s) for m, s in zip(maps, self.STRIDES, strict=True)), strict=True)
        centers, stride = torch.cat(anchors).t(), torch.cat(strides).t()
        bins = boxes.view(boxes.shape[0], 4, self.BINS, boxes.shape[2]).softmax(2)
        sides = (bins * torch.arange(self.BINS, dtype=boxes.dtype).view(1, 1, -1, 1)).sum(2)
        low, high = centers - sides[:, :2], centers + sides[:, 2:]
        return torch.cat(((low + high) / 2, high - low), 1) * stride

    def _grid(self, picture: torch.Tensor, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = picture.shape[2:]
        rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        points = torch.stack((x, y), -1).view(-1, 2)
        return points, torch.full((points.shape[0], 1), float(stride))


class UNet(nn.Module):
    """Down, up, and skips between: odd sizes are padded where they are joined."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList(nn.Sequential(ConvBlock(i, o), ConvBlock(o, o)) for i, o in pairs)
        ups = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in ups)
        self.join = nn.ModuleList(nn.Sequential(ConvBlock(2 * o, o), ConvBlock(o, o)) for _, o in ups)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for block in self.down:
            x = block(nn.functional.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = up(x)
            rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            x = nn.functional.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            x = join(torch.cat((skip, x), 1))
        return self.head(x)


class GraphNet(nn.Module):
    """Attention along the edges of a graph, summed by node, and a mean over each graph of the batch."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.Linear(16, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scores = nn.ParameterList(torch.randn(2, heads, width // heads) * 0.1 for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        source, target = edge_index
        for layer, (a, b) in zip(self.layers, self.scores, strict=True):
            h = layer(x).view(x.shape[0], self.heads, -1)
            score = ((h * a).sum(-1)[source] + (h * b).sum(-1)[target]).clamp(-8, 8)
            weight = nn.functional.leaky_relu(score, 0.2).exp()
            total = torch.zeros(x.shape[0], self.heads).index_add(0, target, weight)
            message = h[source] * (weight / (total[target] + 1e-9))[..., None]
            x = x + torch.relu(torch.zeros_like(h).index_add(0, target, message).flatten(1))
        places = batch[:, None].expand(-1, x.shape[1])
        pooled = torch.zeros(8, x.shape[1]).scatter_reduce(0, places, x, "mean", include_self=False)
        return self.head(pooled)


def _graph_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(50, 16), torch.randint(0, 50, (2, 180)), torch.arange(50) * 8 // 50


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
    "yolo-like": (
        YoloLike,
        lambda: (torch.randn(2, 3, 256, 320),),
        {"x": {0: "batch", 2: "height", 3: "width"}},
    ),
    "u-net": (UNet, lambda: (torch.randn(2, 3, 128, 96),), {"x": {0: "batch", 2: "height", 3: "width"}}),
    "graph-attention": (
        GraphNet,
        _graph_inputs,
        {"x": {0: "nodes"}, "edge_index": {1: "edges"}, "batch": {0: "nodes"}},
    ),
}

# The models that the profile is measured on, at their published sizes: ResNet-50, BERT-base, ViT-B/16
PROFILED = {
    "resnet50": (ResNet50, lambda: (torch.randn(1, 3, 224, 224),), {"x": {0: "batch"}}),
    "bert-base": (
        lambda: BertLike(12, 768, 12, 30522),
        _bert_inputs,
        {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}},
    ),
    "vit-b-16": (ViT, lambda: (torch.randn(1, 3, 224, 224),), {"x": {0: "batch"}}),
}
