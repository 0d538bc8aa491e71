"""TorchScript in files: honest models open and answer as before, anything that reaches out is refused by name."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import repacked
from scripted_models import Detector, made, saved_models

import torchport as tp
from torchport.capture.exported_program_text import Refusal
from torchport.capture.operator_safety import may_use_class, script_operator_problem
from torchport.capture.sources import load_source
from torchport.capture.torchscript_text import check_script
from torchport.errors import SourceError, UntrustedError
from torchport.operators.definition import forget

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

MODELS = saved_models()


def flat(value: Any) -> list[torch.Tensor]:
    """Return the tensors in an answer."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in flat(item)]


@pytest.mark.parametrize("name", MODELS)
def test_what_users_save_opens_and_gives_the_same_numbers(tmp_path: Path, name: str) -> None:
    make, args = MODELS[name]
    model = made(make)
    torch.jit.save(model, tmp_path / "m.pt", _extra_files={"notes.txt": "a", "labels/é.json": "[]"})
    opened = load_source(f"{tmp_path}/m.pt").model
    want, got = flat(model(*args)), flat(opened(*args))
    assert len(want) == len(got) > 0
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_files_for_phones_and_of_older_releases_open(tmp_path: Path) -> None:
    script = torch.jit.script(torch.nn.Linear(3, 2))
    script._save_for_lite_interpreter(f"{tmp_path}/lite.pt")
    assert load_source(f"{tmp_path}/lite.pt").model(torch.ones(1, 3)).shape == (1, 2)
    torch.jit.save(script, tmp_path / "new.pt")
    without = {"byteorder": None, ".data/serialization_id": None}
    older = repacked(tmp_path / "new.pt", tmp_path / "old.pt", without)
    assert load_source(str(older)).model(torch.ones(1, 3)).shape == (1, 2)


def test_a_buffer_saved_to_a_file_opens(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Detector()), buffer)
    (tmp_path / "b.pt").write_bytes(buffer.getvalue())
    assert load_source(f"{tmp_path}/b.pt").model.describe(3).startswith("3-")


# --- what the source may say ----------------------------------------------------------------------------------


def source(body: str) -> dict[str, str]:
    head = "class Net(Module):\n  a : Tensor\n  def forward(self, x: Tensor) -> Tensor:\n    "
    return {"code/__torch__.py": f"{head}{body}\n"}


@pytest.mark.parametrize(
    "body",
    [
        "return torch.relu(self.a)",
        "return ops.quantized.cat([x], 1., 0)",
        "y = __torch__.Net\n    return (CONSTANTS.c0).add_(x)",
        'return getattr(self, "a")',
        "return annotate(Optional[Tensor], None)",
        'ops.prim.RaiseException("torch.save # \\"from_file\\" \\\\")\n    return x',
    ],
)
def test_source_that_only_computes_passes(body: str) -> None:
    check_script(source(body), {})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('torch.save(x, "f")', "aten::save"),
        ('x.save("f")', "aten::save"),
        ('(x.relu()).save("f")', "aten::save"),
        ('f = x.save\n    f("f")', "aten::save"),
        ('torch . from_file("f", True, 4)', "aten::from_file"),
        ('ops.aten.from_file("f", True, 4)', "aten::from_file"),
        ('getattr(x, "save")("f")', "has no name"),
        ('f = getattr(x, "save")', "aten::save"),
        ('f = getattr(x, "sa\\166e")', "not written out"),
        ('f = getattr(x, "sa" "ve")', "not written out"),
        ("f = getattr(x, self.a)", "not written out"),
        ('f = getattr(torch, "relu")', "'torch' is not known"),
        ("t = torch", "'torch' is not known"),
        ("o = ops", "'ops' is not known"),
        ("o = ops.aten", "is no operator"),
        ("n = __torch__.torch.classes", "neither a class"),
        ("torch = x", "another meaning"),
        ("getattr = x", "another meaning"),
        ("x = __torch__.torch.classes.dist_rpc.WorkerInfo('a', 1)", "WorkerInfo"),
        ("x = __torch__.Other(x)", "Other"),
        ("x = __TORCH__.Net(x)", "Net"),
        ("x = ops.prim.rpc_async(x)", "prim::rpc_async"),
        ("x = ops.prim.PythonOp(x)", "prim::PythonOp"),
        ("x = ops.c10d.barrier(x)", "c10d::barrier"),
        ("x = ops._c10d_functional.wait_tensor(x)", "_c10d_functional"),
        ("x = ops.nowhere.to_be_found(x)", "no operator of this PyTorch"),
        ("x = torch.no_such_operator(x)", "no operator of this PyTorch"),
        ("x = x.no_such_method()", "no_such_method"),
        ("x = open(x)", "'open' is not known"),
        ("x = (lambda: x)()", "has no name|Lambda"),
        ("x = [y for y in x]", "ListComp"),
        ("import os", "imports 'os'"),
        ("x = CONSTANTS.save", "is no constant"),
        ("# torch.save(x)", "does not write"),
        ("x = torch.\\\n      relu(x)", "does not write"),
        ('x = f"{torch.save}"', "does not write"),
        ('x = """\n    torch.save(x)"""', "does not write"),
        ("x = torch.ｓave(x)", "does not write"),
        ("x = 1\r    torch.save(x)", "does not write"),
        ("x = 1\f", "does not write"),
        ("\tx = 1", "does not write"),
        ("x = 1; y = 2", "does not write"),
        ('x = "a', "does not write"),
        ('x = "' + '"\\' * 100_000, "does not write"),
        ("x = (", "cannot be read"),
        ("x = " + "(" * 5000, "cannot be read"),
    ],
)
def test_source_that_may_do_more_is_refused_with_its_member(body: str, says: str) -> None:
    with pytest.raises(Refusal, match=says) as caught:
        check_script(source(body), {})
    assert str(caught.value).startswith("code/__torch__.py")


def test_an_attribute_called_like_a_refused_operator_may_exist_but_not_be_used() -> None:
    declared = "class Net(Module):\n  save : List[int]\n  def forward(self, x: Tensor) -> Tensor:\n    return {}\n"
    check_script({"code/__torch__.py": declared.format("x")}, {})
    with pytest.raises(Refusal, match="aten::save"):
        check_script({"code/__torch__.py": declared.format("x.save('f')")}, {})


def test_a_class_of_the_file_does_not_stand_in_for_a_class_of_torch() -> None:
    sources = {"code/__torch__/torch.py": "class classes(Module):\n  dist_rpc : int\n  WorkerInfo : int\n"}
    with pytest.raises(Refusal, match="WorkerInfo"):
        check_script(sources | source("x = __torch__.torch.classes.dist_rpc.WorkerInfo('a', 1)"), {})


def test_no_operator_with_a_text_for_a_file_is_known_as_harmless() -> None:
    """Of all operators registered here; a new one of torch's shows up by name."""
    for schema in torch._C._jit_get_all_schemas():
        if any("file" in argument.name for argument in schema.arguments):
            assert script_operator_problem(schema.name), schema.name


def test_c_plus_plus_classes_are_packed_weights_only() -> None:
    assert may_use_class("__torch__.torch.classes.quantized.LinearPackedParamsBase")
    for name in ("c10d.ProcessGroup", "dist_rpc.WorkerInfo", "_nnapi.Compilation", "aten.OpaqueObject"):
        assert not may_use_class(f"__torch__.torch.classes.{name}")


# --- pickles --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02c__torch__.torch.classes.dist_rpc\nWorkerInfo\n)\x81.",
        b"\x80\x02ctorch.distributed.rpc\nrref\n.",
        b"\x80\x02c__torch__\nnet\n.",
        pickle.dumps("x", protocol=4),
        b"\x80\x02X\x01\x00\x00\x00aX\x01\x00\x00\x00b\x93.",
    ],
)
def test_a_pickle_of_other_classes_is_refused_with_its_member(data: bytes) -> None:
    with pytest.raises(Refusal, match=r"data\.pkl"):
        check_script(source("return x"), {"data.pkl": data})


def test_a_pickle_of_the_files_own_classes_passes() -> None:
    check_script(source("return x"), {"data.pkl": b"\x80\x02c__torch__\nNet\n)\x81."})


# --- operators of the user's own ------------------------------------------------------------------------------


@pytest.fixture
def own() -> Iterator[Callable[..., Any]]:
    made_here: list[str] = []

    def define(name: str, function: Callable[..., Any], *, ours: bool) -> Any:
        made_here.append(name)
        return tp.operator(name)(function) if ours else torch.library.custom_op(name, function, mutates_args=())

    yield define
    for name in made_here:
        forget(name)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def noted(x: torch.Tensor, note: str) -> torch.Tensor:
    return x * len(note)


def test_operators_of_other_libraries_want_trust_unless_defined_with_torchport(own: Callable[..., Any]) -> None:
    own("holetest::ours", twice, ours=True)
    own("holetest::theirs", twice, ours=False)
    own("holetest::texts", noted, ours=True)
    check_script(source("return ops.holetest.ours(x)"), {})
    for name in ("theirs", "texts"):
        with pytest.raises(Refusal, match=f"holetest::{name}"):
            check_script(source(f"return ops.holetest.{name}(x)"), {})


def test_a_refusal_says_member_operator_and_way_out(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        member = next(n.partition("/")[2] for n in archive.namelist() if n.endswith(".py"))
        text = archive.read(f"m/{member}").replace(b"torch.linear(input, weight, bias)", b'input.save("f")')
    path = repacked(tmp_path / "m.pt", tmp_path / "e.pt", {member: text})
    with pytest.raises(UntrustedError, match="aten::save") as caught:
        load_source(str(path))
    assert member in caught.value.what
    assert "--trust" in str(caught.value.next_step)


def test_broken_pickles_are_said_to_be_broken(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), tmp_path / "m.pt")
    for data in (b"", b"\x80\x02X\xff\xff", b"\x80\x02cabc"):
        path = repacked(tmp_path / "m.pt", tmp_path / "e.pt", {"data.pkl": data})
        with pytest.raises(SourceError, match="broken"):
            load_source(str(path))
