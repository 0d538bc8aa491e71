"""The main road: capture, prove, save. The only room that knows every other."""

from __future__ import annotations

from torchport.pipeline.exporting import DEFAULT_OPSET, export
from torchport.pipeline.verifying import verify

__all__ = ["DEFAULT_OPSET", "export", "verify"]
