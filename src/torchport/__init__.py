"""torchport: take a PyTorch model to ONNX, prove the answers are the same, and run it.

    import torchport as tp
    exported = tp.export(model, (x,), output="model.onnx", dynamic={"x": {0: "batch"}})
    print(exported.proof)
    session = tp.session("model.onnx")
    session(x)

Names are imported when first used, so that `import torchport` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchport._version import __version__

if TYPE_CHECKING:
    from torchport import errors, graph, operators
    from torchport.capture.rewrite import flow
    from torchport.comparing.recording import record
    from torchport.comparing.reducing import reduce
    from torchport.engines.base import Session, open_session as session
    from torchport.errors import CaptureError, OpsetError, ProofError, TorchportError
    from torchport.health import doctor
    from torchport.operators.composing import composition
    from torchport.operators.defining import Operator, operator
    from torchport.operators.symbolic import symbolic
    from torchport.pipeline import export, verify
    from torchport.pipeline.comparing import compare
    from torchport.pipeline.rewriting import rewrite
    from torchport.records import Attempt, Dim, Exported, Finding, Proof

__all__ = [
    "Attempt",
    "CaptureError",
    "Dim",
    "Exported",
    "Finding",
    "Operator",
    "OpsetError",
    "Proof",
    "ProofError",
    "Session",
    "TorchportError",
    "__version__",
    "compare",
    "composition",
    "doctor",
    "errors",
    "export",
    "flow",
    "graph",
    "operator",
    "operators",
    "record",
    "reduce",
    "rewrite",
    "session",
    "symbolic",
    "verify",
]

# name: where it lives, "module" or "module:name there"
_HOMES = {
    "errors": "torchport.errors",
    "graph": "torchport.graph",
    "operators": "torchport.operators",
    "session": "torchport.engines.base:open_session",
    "Session": "torchport.engines.base:Session",
    "doctor": "torchport.health:doctor",
    "export": "torchport.pipeline:export",
    "verify": "torchport.pipeline:verify",
    "compare": "torchport.pipeline.comparing:compare",
    "record": "torchport.comparing.recording:record",
    "reduce": "torchport.comparing.reducing:reduce",
    "composition": "torchport.operators.composing:composition",
    "Operator": "torchport.operators.defining:Operator",
    "operator": "torchport.operators.defining:operator",
    "symbolic": "torchport.operators.symbolic:symbolic",
    "flow": "torchport.capture.rewrite.flow",
    "rewrite": "torchport.pipeline.rewriting:rewrite",
    **{name: f"torchport.errors:{name}" for name in ("CaptureError", "OpsetError", "ProofError", "TorchportError")},
    **{name: f"torchport.records:{name}" for name in ("Attempt", "Dim", "Exported", "Finding", "Proof")},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchport' has no attribute '{name}'")
    home, _, attribute = _HOMES[name].partition(":")
    module = import_module(home)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
