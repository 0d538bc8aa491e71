"""Make a model fit for an engine that lacks kernels for some of its types: bfloat16 arithmetic, say."""

from __future__ import annotations

from torchport.graph.kernels.fitting import Asked, fit

__all__ = ["Asked", "fit"]
