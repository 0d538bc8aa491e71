"""Graph networks: the number of nodes and of edges varies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from registry import add, feature
from spec import Input
from torch import Tensor, nn

GRAPH = {**feature("x", "nodes", 8), "edge_index": Input((2, "edges"), high="nodes")}
SIZES = {"nodes": (12, 20, 5), "edges": (30, 17, 44)}


def network(name: str, **more: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torch_geometric.nn import models

        return getattr(models, name)(8, 16, num_layers=2, out_channels=4, **more)

    return build


add("torch-geometric/gcn", GRAPH, **SIZES)(network("GCN"))
add("torch-geometric/gat", GRAPH, **SIZES)(network("GAT", v2=True, heads=2))
add("torch-geometric/gin", GRAPH, **SIZES)(network("GIN", jk="cat"))
add("torch-geometric/sage-max", GRAPH, **SIZES)(network("GraphSAGE", aggr="max"))


@add(
    "torch-geometric/pooled",
    {**GRAPH, "batch": Input(("nodes",), high=3, ordered=True)},
    **SIZES,
    fixed={"batch_size": 3},
)
def pooled() -> nn.Module:
    import torch
    from torch_geometric.nn import GCNConv, global_max_pool, global_mean_pool

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(8, 16)
            self.head = nn.Linear(32, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int) -> Tensor:
            x = self.conv(x, edge_index).relu()
            both = [pool(x, batch, batch_size) for pool in (global_mean_pool, global_max_pool)]
            return self.head(torch.cat(both, dim=-1))

    return Classifier()


@add("torch-geometric/transformer-conv", {**GRAPH, "edge_attr": Input(("edges", 6))}, **SIZES)
def transformer_conv() -> nn.Module:
    from torch_geometric.nn import TransformerConv

    return TransformerConv(8, 4, heads=2, edge_dim=6)


@add(
    "torch-geometric/schnet-interaction",
    {
        **feature("x", "nodes", 8),
        "edge_index": GRAPH["edge_index"],
        "edge_weight": Input(("edges",), between=(0.5, 5.0)),
        "edge_attr": Input(("edges", 10)),
    },
    **SIZES,
)
def schnet() -> nn.Module:
    from torch_geometric.nn.models.schnet import InteractionBlock

    return InteractionBlock(8, 10, 8, 6.0)


@add("e3nn/tensor-product", {"x": Input(("nodes", 7)), "vectors": Input(("nodes", 3))}, nodes=(12, 20, 5))
def tensor_product() -> nn.Module:
    import torch
    from e3nn import o3

    torch.jit.set_fusion_strategy([("DYNAMIC", 0)])

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("4x0e+1x1o", "1x0e+1x1o", "4x0e+1x1o")

        def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
            harmonics = o3.spherical_harmonics("1x0e+1x1o", vectors, normalize=True, normalization="component")
            return self.product(x, harmonics)

    return Layer()
