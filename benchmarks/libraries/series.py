"""Forecasts, tables, density models and differential equations."""

from __future__ import annotations

from typing import Any

from registry import add, feature
from spec import Input, Several
from torch import Tensor, nn

BATCH = {"batch": (2, 1, 3)}


def windows(length: int, series: int = 1) -> dict[str, Several]:
    """The dict that forecasting models of neuralforecast take."""
    shape = ("batch", length, series)
    parts = {"insample_y": Input(shape), "insample_mask": Input(shape, make=_ones)}
    return {"windows_batch": Several(parts, as_dict=True)}


def _ones(shape: list[int], generator: Any) -> Any:
    import torch

    return torch.ones(shape)


def forecaster(name: str, **settings: Any) -> nn.Module:
    from neuralforecast import models

    return getattr(models, name)(h=6, input_size=24, **settings)


class WithoutExogenous(nn.Module):
    """Adds the empty entries that the trainer of neuralforecast adds."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, windows_batch: dict[str, Any]) -> Tensor:
        empty = dict.fromkeys(("hist_exog", "futr_exog", "stat_exog"))
        return self.model({**windows_batch, **empty})


def _nf(name: str, **settings: Any) -> None:
    slug = name.lower()
    series = settings.get("n_series", 1)
    add(f"neuralforecast/{slug}", windows(24, series), **BATCH)(lambda: WithoutExogenous(forecaster(name, **settings)))


_nf("NHITS", mlp_units=3 * [[16, 16]])
_nf("PatchTST", hidden_size=16, n_heads=2, linear_hidden_size=16, encoder_layers=1, patch_len=8, stride=4)
_nf("TSMixer", n_series=3, ff_dim=8)
_nf("iTransformer", n_series=3, hidden_size=16, n_heads=2, d_ff=16, e_layers=1)
_nf("TimesNet", hidden_size=8, conv_hidden_size=8, num_kernels=2, encoder_layers=1)
_nf("Autoformer", hidden_size=16, n_head=2, conv_hidden_size=16, encoder_layers=1, decoder_layers=1)


@add("pytorch-tabnet/tabnet", feature("x", "batch", 8), **BATCH)
def tabnet() -> nn.Module:
    import torch
    from pytorch_tabnet.tab_network import TabNet

    return TabNet(8, 3, n_d=4, n_a=4, n_steps=2, group_attention_matrix=torch.eye(8))


TABLE = {"x_categ": Input(("batch", 3), high=4), "x_numer": Input(("batch", 5))}


@add("tab-transformer-pytorch/ft-transformer", TABLE, **BATCH)
def ft_transformer() -> nn.Module:
    from tab_transformer_pytorch import FTTransformer

    return FTTransformer(categories=(4, 5, 6), num_continuous=5, dim=16, depth=1, heads=2, dim_head=8)


@add("tab-transformer-pytorch/tab-transformer", {"x_categ": TABLE["x_categ"], "x_cont": TABLE["x_numer"]}, **BATCH)
def tab_transformer() -> nn.Module:
    from tab_transformer_pytorch import TabTransformer

    return TabTransformer(
        categories=(4, 5, 6), num_continuous=5, dim=16, depth=1, heads=2, dim_head=8, mlp_act=nn.ReLU()
    )


class LogDensity(nn.Module):
    def __init__(self, flow: nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        return self.flow.log_prob(x)


@add("nflows/spline-flow", feature("x", "batch", 4), **BATCH)
def spline_flow() -> nn.Module:
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.transforms import (
        CompositeTransform,
        MaskedPiecewiseRationalQuadraticAutoregressiveTransform,
        ReversePermutation,
    )

    made = MaskedPiecewiseRationalQuadraticAutoregressiveTransform(4, 16, num_bins=4, tails="linear", tail_bound=3.0)
    return LogDensity(Flow(CompositeTransform([ReversePermutation(4), made]), StandardNormal([4])))


@add("normflows/real-nvp", feature("x", "batch", 4), **BATCH)
def real_nvp() -> nn.Module:
    import normflows

    steps = []
    for _ in range(2):
        net = normflows.nets.MLP([2, 16, 4], init_zeros=False)
        steps += [normflows.flows.AffineCouplingBlock(net), normflows.flows.Permute(4, mode="swap")]
    return LogDensity(normflows.NormalizingFlow(normflows.distributions.DiagGaussian(4), steps))


@add("torchdiffeq/neural-ode", feature("x", "batch", 4), **BATCH)
def neural_ode() -> nn.Module:
    import torch
    from torchdiffeq import odeint

    class NeuralODE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

        def forward(self, x: Tensor) -> Tensor:
            return odeint(lambda t, y: self.field(y), x, torch.linspace(0, 1, 5), method="rk4")[-1]

    return NeuralODE()


@add(
    "neuraloperator/fno",
    feature("x", "batch", 1, "height", "width"),
    batch=(2, 1, 3),
    height=(16, 24, 32),
    width=(24, 16, 20),
)
def fourier_operator() -> nn.Module:
    from neuralop.models import FNO

    return FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=1)


@add("snntorch/leaky", feature("x", "batch", 8), **BATCH)
def spiking() -> nn.Module:
    import snntorch
    import torch

    class Spiking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
            self.leaky, self.leaky_out = snntorch.Leaky(beta=0.9), snntorch.Leaky(beta=0.8)

        def forward(self, x: Tensor) -> Tensor:
            inner, outer = self.leaky.init_leaky(), self.leaky_out.init_leaky()
            spikes = []
            for _ in range(4):
                spike, inner = self.leaky(self.first(x), inner)
                spike, outer = self.leaky_out(self.last(spike), outer)
                spikes.append(outer)
            return torch.stack(spikes)

    return Spiking()


@add("gpytorch/posterior-mean", feature("x", "points", 2), points=(6, 9, 1))
def gaussian_process() -> nn.Module:
    import gpytorch
    import torch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Tensor:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Prediction(nn.Module):
        """As gpytorch's documentation traces it: the mean, with the cache filled."""

        def __init__(self) -> None:
            super().__init__()
            x = torch.rand(12, 2)
            self.process = Process(x, x.sum(-1), gpytorch.likelihoods.GaussianLikelihood()).eval()
            with torch.no_grad(), gpytorch.settings.trace_mode():
                self.process(x)

        def forward(self, x: Tensor) -> Tensor:
            with gpytorch.settings.trace_mode(), gpytorch.settings.fast_pred_var():
                return self.process(x).mean

    return Prediction()
