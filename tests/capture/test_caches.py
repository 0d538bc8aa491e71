"""Objects that hold tensors, as the key-value caches of transformers do."""

from __future__ import annotations

import torch
from torch import nn

import torchport as tp
from torchport.capture.structure import Call, output_tensors


class Layer:
    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.is_initialized = False

    def update(self, new: torch.Tensor) -> torch.Tensor:
        self.keys = new if self.keys is None else torch.cat([self.keys, new], dim=1)
        self.is_initialized = True
        return self.keys


class Cache:
    """As DynamicCache: layers that grow, and settings that are no tensors."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.kind = Layer


class Decoder(nn.Module):
    def forward(self, x: torch.Tensor, past: Cache) -> dict[str, object]:
        if not past.layers:
            past.layers.append(Layer())
        seen = past.layers[0].update(x)
        return {"answer": seen.sum(1) * 2, "past": past}


def filled(length: int) -> Cache:
    layer = Layer()
    layer.update(torch.randn(2, length, 4))
    return Cache([layer])


def test_the_tensors_of_a_cache_are_inputs_and_outputs() -> None:
    cache = filled(5)
    axes = {"x": {0: "batch", 1: "new"}, "past.layers.0.keys": {0: "batch", 1: "past"}}
    exported = tp.export(Decoder(), (torch.randn(2, 3, 4), cache), dynamic=axes)
    assert [i.name for i in exported.inputs] == ["x", "past.layers.0.keys"]
    assert [o.name for o in exported.outputs] == ["answer", "past.layers.0.keys_out"]
    assert cache.layers[0].keys is not None
    assert cache.layers[0].keys.shape[1] == 5  # it was given, not handed over


def test_an_empty_cache_is_empty_in_every_call() -> None:
    call = Call(Decoder(), (torch.randn(2, 3, 4), Cache([])), {})
    for _ in range(2):
        names, tensors = output_tensors(call(*call.tensors))
        assert names == ["answer", "past.layers.0.keys"]
        assert tensors[1].shape == (2, 3, 4)


def test_hooks_that_a_forward_pass_adds_are_taken_off_again() -> None:
    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "watched"):
                self.inner.register_forward_hook(lambda module, given, answer: answer * 2)
                self.watched = True
            return self.inner(x)

    model = Watching()
    tp.export(model, (torch.randn(2, 4),), dynamic={"x": {0: "batch"}})
    assert not model.inner._forward_hooks
