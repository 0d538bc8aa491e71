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
    from torchport import graph as graph
    from torchport.doctor import doctor as doctor
    from torchport.engines.base import Session as Session
    from torchport.engines.base import open_session as session
    from torchport.errors import (
        CaptureError as CaptureError,
    )
    from torchport.errors import (
        OpsetError as OpsetError,
    )
    from torchport.errors import (
        ProofError as ProofError,
    )
    from torchport.errors import (
        TorchportError as TorchportError,
    )
    from torchport.pipeline import export as export
    from torchport.pipeline import verify as verify
    from torchport.records import (
        Attempt as Attempt,
    )
    from torchport.records import (
        Dim as Dim,
    )
    from torchport.records import (
        Exported as Exported,
    )
    from torchport.records import (
        Finding as Finding,
    )
    from torchport.records import (
        Proof as Proof,
    )

_HOMES = {
    "export": ("torchport.pipeline", "export"),
    "verify": ("torchport.pipeline", "verify"),
    "session": ("torchport.engines.base", "open_session"),
    "Session": ("torchport.engines.base", "Session"),
    "doctor": ("torchport.doctor", "doctor"),
    "TorchportError": ("torchport.errors", "TorchportError"),
    "CaptureError": ("torchport.errors", "CaptureError"),
    "OpsetError": ("torchport.errors", "OpsetError"),
    "ProofError": ("torchport.errors", "ProofError"),
    "Attempt": ("torchport.records", "Attempt"),
    "Dim": ("torchport.records", "Dim"),
    "Exported": ("torchport.records", "Exported"),
    "Finding": ("torchport.records", "Finding"),
    "Proof": ("torchport.records", "Proof"),
    "graph": ("torchport.graph", ""),
    "errors": ("torchport.errors", ""),
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchport' has no attribute '{name}'")
    home, attribute = _HOMES[name]
    module = import_module(home)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
