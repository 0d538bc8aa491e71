"""The public names are a promise."""

from __future__ import annotations

import subprocess
import sys

import torchport as tp

NAMES = {
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
    "bench",
    "compare",
    "composition",
    "cpp_project",
    "doctor",
    "errors",
    "export",
    "flow",
    "graph",
    "operator",
    "operators",
    "optimize",
    "profile",
    "quantize",
    "record",
    "reduce",
    "report",
    "rewrite",
    "session",
    "symbolic",
    "try_engines",
    "tune",
    "verify",
    "view",
}


def test_the_public_names_are_these() -> None:
    assert set(tp.__all__) == NAMES
    assert set(dir(tp)) == NAMES


def test_every_public_name_is_there() -> None:
    for name in NAMES:
        assert getattr(tp, name) is not None
    assert callable(tp.graph.load)
    assert callable(tp.graph.save)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(tp, "exprot")


def _modules_after(code: str) -> set[str]:
    script = f"import sys; {code}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"torch", "onnx", "onnxruntime", "onnx_ir", "onnxscript", "numpy", "rich"}
    assert not heavy & _modules_after("import torchport")
    assert not heavy & _modules_after("import torchport.graph")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import torchport.cli.main as m; from click.testing import CliRunner; "
        "assert CliRunner().invoke(m.cli, ['--help']).exit_code == 0"
    )
    assert not {"torch", "onnx", "onnxruntime", "onnx_ir", "numpy", "rich"} & _modules_after(code)


def test_the_package_is_typed() -> None:
    from importlib.resources import files

    assert (files("torchport") / "py.typed").is_file()


def test_the_error_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    import re

    from torchport import errors

    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    real = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TorchportError) and name != "TorchportError"
    ]
    assert sorted(drawn) == sorted(real)
