"""Outside of torch_compat no module reaches a private part of torch, onnxscript or onnxruntime."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "torchport"
LIBRARIES = ("torch", "onnxscript", "onnxruntime")
NAMES_ONLY = {"saved_files", "shape_env"}  # modules of torch_compat that hold private names as texts
READS = {"getattr", "setattr", "hasattr", "delattr"}
_NAMES = re.compile(rf"(?<![\w.])(?:{'|'.join(LIBRARIES)})(?:\.\w+)+")


def is_private(path: str) -> bool:
    """Check that a dotted path into one of the libraries has a private component, or is experimental."""
    library, *components = path.split(".")
    if library not in LIBRARIES:
        return False
    hidden = any(c.startswith("_") and c != "__version__" for c in components)
    return hidden or components[:2] == ["fx", "experimental"]


class _Finder(ast.NodeVisitor):
    """Collects private paths: of imports, attributes, subscripts of `vars`, `getattr` and its like, and strings."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self._aliases: dict[str, str] = {}  # a name of the module, and the path it stands for

    def _check(self, node: ast.AST, path: str) -> None:
        if is_private(path):
            self.found.append((getattr(node, "lineno", 0), path))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check(node, alias.name)
            name = alias.asname or alias.name.partition(".")[0]
            self._aliases[name] = alias.name if alias.asname else name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            path = f"{node.module}.{alias.name}"
            self._check(node, path)
            self._aliases[alias.asname or alias.name] = path

    def visit_Assign(self, node: ast.Assign) -> None:
        self._bind(node.targets, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._bind([node.target], node.value)
        self.generic_visit(node)

    def _bind(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        """Follow `tracing = torch._C`; a path that is bound to two names is followed by both."""
        path = self._path(value) if value is not None else None
        if path is not None:
            self._aliases.update({t.id: path for t in targets if isinstance(t, ast.Name)})

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self.generic_visit(node)
        else:
            self._check(node, path)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._check(node, self._path(node) or "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in READS:
            self._check(node, self._path_of_read(node) or "")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring may speak of private parts
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        for path in _NAMES.findall(node.value) if isinstance(node.value, str) else ():
            self._check(node, path)

    def _path(self, node: ast.expr) -> str | None:
        """Return the dotted path that an expression stands for, if it can be known."""
        if isinstance(node, ast.Name):
            path = self._aliases.get(node.id)
            return path if path is not None and path.partition(".")[0] in LIBRARIES else None
        if isinstance(node, ast.Attribute):
            base = self._path(node.value)
            return base and f"{base}.{node.attr}"
        if isinstance(node, ast.Subscript):  # vars(torch)["_sym_sqrt"], torch.__dict__["_sym_sqrt"]
            key = node.slice
            named = isinstance(key, ast.Constant) and isinstance(key.value, str)
            base = self._path(node.value)
            return f"{base}.{key.value}" if base and named and isinstance(key, ast.Constant) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "vars" and len(node.args) == 1:
                return self._path(node.args[0])
            return self._path_of_read(node) if node.func.id == "getattr" else None
        return None

    def _path_of_read(self, node: ast.Call) -> str | None:
        base = self._path(node.args[0]) if len(node.args) > 1 else None
        name = node.args[1] if len(node.args) > 1 else None
        if base is None:
            return None
        return f"{base}.{name.value}" if isinstance(name, ast.Constant) else base


def private_paths(source: str) -> list[tuple[int, str]]:
    """Return the private paths of a source text with their lines."""
    finder = _Finder()
    finder.visit(ast.parse(source))
    return finder.found


def uses(packages: Callable[[str], bool]) -> list[str]:
    """Return the private paths in the packages, as ``capture/guards.py:30 torch._C``."""
    files = [path for path in sorted(SOURCE.rglob("*.py")) if packages(path.relative_to(SOURCE).parts[0])]
    found = [(path.relative_to(SOURCE), *use) for path in files for use in private_paths(path.read_text())]
    return [f"{path}:{line} {part}" for path, line, part in found]


def test_private_parts_are_used_in_torch_compat_only() -> None:
    assert uses(lambda package: package != "torch_compat") == []


def test_torch_compat_takes_private_parts_from_its_table() -> None:
    """Names that stand in files of PyTorch, and the name of a log, are no parts."""
    found = uses(lambda package: package == "torch_compat")
    assert {use.partition(":")[0] for use in found} == {f"torch_compat/{name}.py" for name in NAMES_ONLY | {"parts"}}
    assert {use.partition(" ")[2] for use in found if "/shape_env" in use} == {"torch.__trace"}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch\ntorch._check(True)",
        "import torch\ntorch.ops.aten._assert_scalar.default",
        "import torch as t\nt.nn.Module._apply",
        "from torch import _VF",
        "from torch._x import y",
        "from torch.fx.experimental.symbolic_shapes import guard_int",
        "from torch.fx import experimental",
        "from torch import nn\nnn.Module._apply",
        "import onnxruntime as ort\nort.capi._pybind_state",
        "from onnxscript.rewriter import _matcher",
        "from importlib import import_module\nimport_module('torch.onnx._internal.exporter')",
        "MODULE = 'torch.fx.experimental.symbolic_shapes'",
        "name = 'torch._sym_sqrt'",
        "import torch\nvars(torch)['_sym_sqrt']",
        "import torch\ntorch.__dict__['_sym_sqrt']",
        "import torch\ngetattr(torch, '_sym_sqrt')",
        "import torch\nname = 'x'\ngetattr(torch._C, name)",
        "import torch\nsetattr(torch, '_sym_sqrt', None)",
        "import torch\ngetattr(torch.ops, 'aten')._assert_scalar",
        "import torch\nfrom typing import Any\ntracing: Any = torch._C\ntracing._get_tracing_state()",
        "def f():\n    import torch.utils._pytree as pytree\n    return pytree.tree_map",
    ],
)
def test_the_finder_sees(source: str) -> None:
    assert private_paths(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "import torch\ntorch.nn.Module.forward",
        "import torch\nvars(torch)['tensor']",
        "from torchport._version import __version__",
        "'''Read in torch._C.'''",
        "name = 'aten::_assert_scalar.default'",
        "import onnx_ir as ir\nir._core",
    ],
)
def test_the_finder_leaves_alone(source: str) -> None:
    assert not private_paths(source)
