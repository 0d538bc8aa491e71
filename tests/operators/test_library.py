"""The operator library: operators are registered by name, and what is missing or broken takes nothing else down."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchport as tp
from torchport.capture import repairs
from torchport.operators import library, registration
from torchport.torch_compat import registries

# What some release of torch lacks; on any other, a name that is not found is a mistake.
LACKED = {
    "aten::cholesky.default": "2.15",
    "aten::qr.default": "2.15",
}
OF_PACKAGES = ("quantized_decomposed", "torchvision", "transformers")  # there once the package is imported


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make the lookup of operators report these as missing."""
    real = registries.operator
    monkeypatch.setattr(registries, "operator", lambda name: None if name in names else real(name))


Add = Callable[[str, str], None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Add a file to the library, for the time of a test."""
    monkeypatch.setattr(registration, "_registered", dict(registration._registered))
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        imports = "from torchport.operators.registration import composes, translates\n"
        (tmp_path / f"{name}.py").write_text(imports + text)
        importlib.invalidate_caches()
        monkeypatch.setattr(library, "__path__", [*library.__path__, str(tmp_path)])

    yield write
    for name in set(sys.modules) - before:
        if name.startswith(f"{library.__name__}."):
            del sys.modules[name]


def checks() -> list[Any]:
    return [check for check in tp.doctor().checks if check.group == "operators"]


def test_every_operator_is_there_or_known_to_be_lacked_by_a_release() -> None:
    missing = {one.name for one in (*library.left_out(), *registration.left_out(repairs.registered()))}
    assert missing <= LACKED.keys()
    entries = [e for e in library.registered() if e.name.partition("::")[0] not in OF_PACKAGES]
    assert {e.name for e in entries if registration.operator_of(e) is None} == missing


def test_no_operator_is_registered_twice() -> None:
    counts = Counter((entry.kind, entry.name) for entry in library.registered())
    assert [key for key, count in counts.items() if count > 1] == []


def test_library_files_only_register_when_they_are_imported() -> None:
    """An operator looked up while a file is imported would take the whole file down where it is missing."""
    for path in sorted(Path(library.__path__[0]).glob("*.py")):
        for node in _run_at_import(ast.parse(path.read_text())):
            words = ast.unparse(node).replace("torch.ops.", "").split(".")
            assert words[0] not in ("aten", "prims", "torchport") or len(words) == 1, f"{path.name}:{node.lineno}"


def _run_at_import(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                yield from _run_at_import(ast.Expr(decorator))
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Attribute):
                yield node
            yield from _run_at_import(node)


def test_an_operator_that_torch_lacks_is_left_out_and_listed(add: Add) -> None:
    before = library.compositions()
    add("made_up", '@composes("aten::made_up.default", "aten::hash_tensor.default")\ndef f(x): return x\n')
    after = library.compositions()
    assert after.keys() - before.keys() == {torch.ops.aten.hash_tensor.default}
    assert before.items() <= after.items()
    release = torch.__version__.partition("+")[0]
    listed = registration.LeftOut("operator", "aten::made_up.default", f"not in torch {release}")
    assert listed in library.left_out()
    [check] = checks()
    assert check.status == "optional"
    assert "aten::made_up" in check.detail
    assert f"not in torch {release}" in check.detail


def test_operators_of_packages_that_are_not_imported_are_not_listed(add: Add) -> None:
    before = library.left_out()
    add("of_a_package", '@translates("nobodys_package::f.default")\ndef f(x): return x\n')
    assert library.left_out() == before


def test_a_module_that_defines_operators_and_is_not_there_leaves_them_out(add: Add) -> None:
    text = '@composes("aten::hash_tensor.default", defined_in="torch.no_such")\ndef f(x): return x\n'
    add("elsewhere", text)
    assert torch.ops.aten.hash_tensor.default not in library.compositions()
    assert "aten::hash_tensor.default" in {one.name for one in library.left_out()}


def test_a_file_that_does_not_load_takes_no_other_down(add: Add) -> None:
    before = library.compositions()
    broken = '@composes("aten::hash_tensor.default")\ndef f(x): return x\nraise AttributeError("no such thing")\n'
    add("broken_on_purpose", broken)
    assert library.compositions() == before
    [one] = [one for one in library.left_out() if one.kind == "file"]
    assert one == registration.LeftOut(
        "file", "operators/library/broken_on_purpose.py", "AttributeError: no such thing"
    )
    health = tp.doctor()
    assert not health.healthy
    assert "✗ operators/library/broken_on_purpose.py does not load: AttributeError: no such thing" in str(health)
    assert tp.export(lambda x: torch.roll(x, 1, 0), (torch.randn(3, 4),), route="export").proof.passed


def test_a_name_without_its_overload_is_a_broken_file(add: Add) -> None:
    add("misspelled", '@composes("aten::roll")\ndef f(x): return x\n')
    [one] = [one for one in library.left_out() if one.kind == "file"]
    assert "'aten::roll' is no overload" in one.reason


def test_models_are_exported_where_torch_has_neither_cholesky_nor_qr(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in torch 2.15, which dropped these two."""
    hide(monkeypatch, "aten::cholesky.default", "aten::qr.default")
    x = torch.randn(2, 4, 3)
    assert tp.export(lambda x: torch.linalg.qr(x)[1].abs(), (x,), dynamic={"x": {0: "n"}}, route="export").proof.passed
    assert {one.name for one in library.left_out()} == {"aten::cholesky.default", "aten::qr.default"}
    assert "left out: aten::cholesky, aten::qr are not in torch" in str(tp.doctor())
    assert tp.doctor().healthy


def test_a_repair_for_a_function_that_torch_lacks_is_left_out_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "torch.cov")
    repaired = registration.found(repairs.registered())
    assert torch.cov not in repaired
    assert torch.Tensor.cov in repaired
    assert "torch.cov is not in torch" in str(tp.doctor())


def test_doctor_has_one_line_where_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names = len({entry.name for entry in library.registered()})
    monkeypatch.setattr(registration, "left_out", lambda entries: ())
    [check] = checks()
    assert (check.status, check.detail) == ("ok", f"{names} operators, none left out")
