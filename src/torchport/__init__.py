"""torchport: take a PyTorch model to ONNX, prove the answers are the same, and run it.

    import torchport as tp
    exported = tp.export(model, (x,), output="model.onnx", dynamic={"x": {0: "batch"}})
    print(exported.proof)
    session = tp.session("model.onnx")
    session(x)

Names are imported when first used, so that `import torchport` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchport.facade import lazy_names

if TYPE_CHECKING:
    from torchport import errors as errors, graph as graph, operators as operators
    from torchport._version import __version__ as __version__
    from torchport.benchmark.benchmarking import bench as bench
    from torchport.benchmark.profiling import profile as profile
    from torchport.benchmark.try_engines import try_engines as try_engines
    from torchport.bundles.cpp_project import cpp_project as cpp_project
    from torchport.capture.control_flow import flow as flow
    from torchport.comparison.compare import compare as compare
    from torchport.comparison.record import record as record
    from torchport.comparison.reduce import reduce as reduce
    from torchport.conversion.export import export as export
    from torchport.conversion.rewrite import rewrite as rewrite
    from torchport.conversion.verify import verify as verify
    from torchport.engines.session import (
        Session as Session,
        open_session as session,  # noqa: F401 -- its public name
    )
    from torchport.environment import doctor as doctor
    from torchport.errors import (
        CaptureError as CaptureError,
        OpsetError as OpsetError,
        ProofError as ProofError,
        TorchportError as TorchportError,
    )
    from torchport.operators.composition import composition as composition
    from torchport.operators.definition import Operator as Operator, operator as operator
    from torchport.operators.symbolic import symbolic as symbolic
    from torchport.optimization.optimizing import optimize as optimize
    from torchport.optimization.quantizing import quantize as quantize
    from torchport.optimization.tuning import tune as tune
    from torchport.reports.report import report as report
    from torchport.reports.viewing import view as view
    from torchport.results import (
        Attempt as Attempt,
        Dim as Dim,
        Exported as Exported,
        Finding as Finding,
        Proof as Proof,
    )

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "torchport._version": "__version__",
        "torchport.benchmark.benchmarking": "bench",
        "torchport.benchmark.profiling": "profile",
        "torchport.benchmark.try_engines": "try_engines",
        "torchport.bundles.cpp_project": "cpp_project",
        "torchport.capture.control_flow.flow": "=flow",
        "torchport.comparison.compare": "compare",
        "torchport.comparison.record": "record",
        "torchport.comparison.reduce": "reduce",
        "torchport.conversion.export": "export",
        "torchport.conversion.rewrite": "rewrite",
        "torchport.conversion.verify": "verify",
        "torchport.engines.session": "Session open_session=session",
        "torchport.environment": "doctor",
        "torchport.errors": "=errors CaptureError OpsetError ProofError TorchportError",
        "torchport.graph": "=graph",
        "torchport.operators": "=operators",
        "torchport.operators.composition": "composition",
        "torchport.operators.definition": "Operator operator",
        "torchport.operators.symbolic": "symbolic",
        "torchport.optimization.optimizing": "optimize",
        "torchport.optimization.quantizing": "quantize",
        "torchport.optimization.tuning": "tune",
        "torchport.reports.report": "report",
        "torchport.reports.viewing": "view",
        "torchport.results": "Attempt Dim Exported Finding Proof",
    },
)
