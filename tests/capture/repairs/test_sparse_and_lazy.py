"""Sparse buffers, sparse tensors made in forward, and layers that get their weights in the first call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchport as tp


class Graph(nn.Module):
    """A graph convolution; its adjacency is sparse."""

    adjacency: Tensor

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        dense = torch.rand(6, 6) * (torch.rand(6, 6) > 0.6)
        self.register_buffer("adjacency", dense.to_sparse(layout=layout))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sparse.mm(self.adjacency, self.layer(x)) + self.adjacency @ x[:, :3]
        return torch.relu(x)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_buffers(layout: torch.layout) -> None:
    model = Graph(layout)
    exported = tp.export(model, (torch.randn(6, 4),))
    x = torch.randn(6, 4)
    torch.testing.assert_close(torch.as_tensor(tp.session(exported.model)(x)), model(x).detach())
    assert model.adjacency.layout is layout


def test_a_sparse_tensor_of_as_many_edges_and_nodes_as_come() -> None:
    def gathered(edges: Tensor, weights: Tensor, x: Tensor) -> Tensor:
        adjacency = torch.sparse_coo_tensor(edges, weights, (x.shape[0], x.shape[0]))
        return torch.sparse.mm(adjacency.coalesce(), x)

    def graph(nodes: int, edges: int) -> tuple[Tensor, ...]:
        return torch.randint(0, nodes, (2, edges)), torch.randn(edges), torch.randn(nodes, 5)

    dynamic: Any = {"edges": {1: "e"}, "weights": {0: "e"}, "x": {0: "n"}}
    session = tp.session(tp.export(gathered, graph(3, 4), dynamic=dynamic).model)
    for given in (graph(5, 12), graph(2, 3)):
        torch.testing.assert_close(torch.as_tensor(session(*given)), gathered(*given))


def test_lazy_layers_get_their_weights_from_the_example() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).train()
    exported = tp.export(model, (torch.randn(2, 3, 5, 5),), dynamic={"input": {0: "b"}})
    assert model.training
    assert type(model[3]) is nn.Linear
    x = torch.randn(3, 3, 5, 5)
    torch.testing.assert_close(torch.as_tensor(tp.session(exported.model)(x)), model.eval()(x).detach())
