"""`.pt2` files: honest ones open, hostile ones run nothing. Each hostile one is shown to work on plain torch."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import Payload, renamed, repacked

from torchport.capture.inputs import from_example
from torchport.capture.pytorch_files import quiet
from torchport.capture.sources import load_source
from torchport.errors import SourceError, UntrustedError

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"


class Net(torch.nn.Module):
    """Dynamic, with a constant, a branch, nested keyword inputs: every kind of text a program may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.constant = torch.ones(4)

    def forward(self, x: torch.Tensor, *, d: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        y = torch.cond(x.shape[0] > 3, lambda a: a + 1, lambda a: a - 1, (self.linear(x),))
        return y + self.constant, x.view(x.shape[0] // 2, 2, -1), d["a"] * x.shape[0], torch.zeros(count)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kwargs = {"d": {"a": torch.ones(1), "b c": torch.ones(2)}}
    auto = torch.export.Dim.AUTO
    shapes = {"x": {0: auto}, "d": {"a": None, "b c": None}}
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    with quiet(), torch.no_grad():
        torch.export.save(torch.export.export(Net(), (torch.ones(4, 4),), kwargs, dynamic_shapes=shapes), path)
    return path


def member(path: Path, name: str) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(f"{archive.namelist()[0].partition('/')[0]}/{name}"))


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_an_honest_program_opens_and_brings_its_example_inputs(honest: Path) -> None:
    source = load_source(str(honest))
    assert isinstance(source.model, torch.export.ExportedProgram)
    args, kwargs = from_example(source.example_inputs())
    assert args[0].shape == (4, 4)
    assert source.model.module()(torch.ones(6, 4), **kwargs)[0].shape == (6, 4)


def test_a_program_opens_under_another_name(honest: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(honest.read_bytes())
    assert isinstance(load_source(f"{tmp_path}/a.pt").model, torch.export.ExportedProgram)


def test_repacking_alone_changes_nothing(honest: Path, tmp_path: Path) -> None:
    assert load_source(str(repacked(honest, tmp_path / "a.pt2", {}))).model


# --- members that would be unpickled --------------------------------------------------------------------------


def config(path: Path, name: str, **changes: object) -> bytes:
    """The payload config with its first entry changed."""
    found = member(path, name)
    next(iter(found["config"].values())).update(changes)
    return json.dumps(found).encode()


HOSTILE_MEMBERS: dict[str, Callable[[Path, bytes, bytes], dict[str, bytes | None]]] = {
    "sample inputs": lambda path, torch_pickle, raw: {SAMPLES: torch_pickle},
    "sample inputs, raw": lambda path, torch_pickle, raw: {SAMPLES: raw},
    "a pickled weight": lambda path, torch_pickle, raw: {
        WEIGHTS: config(path, WEIGHTS, use_pickle=True),
        "data/weights/weight_0": torch_pickle,
    },
    "a pickled weight, truthy": lambda path, torch_pickle, raw: {
        WEIGHTS: config(path, WEIGHTS, use_pickle="no"),
        "data/weights/weight_0": torch_pickle,
    },
    "a pickled constant": lambda path, torch_pickle, raw: {
        CONSTANTS: config(path, CONSTANTS, use_pickle=True),
        "data/constants/tensor_0": torch_pickle,
    },
    "an opaque object": lambda path, torch_pickle, raw: {
        CONSTANTS: config(path, CONSTANTS, path_name="opaque_obj_0", use_pickle=True),
        "data/constants/opaque_obj_0": raw,
    },
    "old weights": lambda path, torch_pickle, raw: {"data/weights/model.pt": torch_pickle},
    "old constants": lambda path, torch_pickle, raw: {"data/constants/model.pt": torch_pickle},
}


@pytest.mark.parametrize("place", HOSTILE_MEMBERS)
def test_a_hostile_member_is_not_run(honest: Path, tmp_path: Path, place: str) -> None:
    marker = tmp_path / "marker"
    hostile = Payload(marker)
    members = HOSTILE_MEMBERS[place](honest, saved(hostile), pickle.dumps(hostile))
    path = repacked(honest, tmp_path / "bad.pt2", members)
    with pytest.raises(UntrustedError, match="would run code that came with it"):
        load_source(str(path))
    assert not marker.exists()
    with contextlib.suppress(SourceError):
        load_source(str(path), trust=True)
    assert marker.exists(), "the payload would have worked"


def test_a_custom_object_is_refused(honest: Path, tmp_path: Path) -> None:
    changed = config(honest, CONSTANTS, path_name="custom_obj_0")
    path = repacked(honest, tmp_path / "a.pt2", {CONSTANTS: changed, "data/constants/custom_obj_0": b"x"})
    with pytest.raises(UntrustedError, match="custom_obj_0"):
        load_source(str(path))


def test_a_compiled_library_is_refused(honest: Path, tmp_path: Path) -> None:
    path = repacked(honest, tmp_path / "a.pt2", {"data/aotinductor/model/model.so": b"\x7fELF"})
    with pytest.raises(UntrustedError, match="compiled library"):
        load_source(str(path))


def add_old_layout(path: Path, marker: Path) -> None:
    """What torch 2.7 and before wrote, all of it pickled; beside what is in the file already."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("version", "8.20")
        archive.writestr("serialized_exported_program.json", "{}")
        for name in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{name}.pt", saved(Payload(marker)))


def test_the_layout_of_torch_2_7_is_refused(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    add_old_layout(tmp_path / "old.pt2", marker)
    with pytest.raises(UntrustedError, match=r"2\.7"):
        load_source(f"{tmp_path}/old.pt2")
    assert not marker.exists()


def test_a_broken_program_does_not_make_torch_try_the_old_layout(honest: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = repacked(honest, tmp_path / "a.pt2", {"archive_version": b"99"})
    add_old_layout(path, marker)
    with pytest.raises((UntrustedError, SourceError)):
        load_source(str(path))
    assert not marker.exists()


def test_pickles_of_nothing_but_tensors_open(honest: Path, tmp_path: Path) -> None:
    changed = config(honest, WEIGHTS, use_pickle=True)
    weight = saved(torch.nn.Parameter(torch.ones(4, 4)))
    path = repacked(honest, tmp_path / "a.pt2", {WEIGHTS: changed, "data/weights/weight_0": weight})
    assert load_source(str(path)).model.state_dict["linear.weight"].sum() == 16


# --- text that would become code ------------------------------------------------------------------------------


def first_node(program: dict[str, Any]) -> dict[str, Any]:
    return program["graph_module"]["graph"]["nodes"][0]


def add_expression(program: dict[str, Any], code: str) -> None:
    values = program["graph_module"]["graph"]["sym_int_values"]
    next(iter(values.values()))["as_expr"] = {"expr_str": code, "hint": None}


def rename_input(program: dict[str, Any], code: str) -> Any:
    """The last parameter of a generated function gets a default value, which is computed when the file is opened."""
    return json.loads(json.dumps(program).replace('"d_b_c"', json.dumps(f"d_b_c={code}")))


def add_guard(program: dict[str, Any], code: str) -> None:
    program["guards_code"] = [f"{code} is None or True"]


def add_operator(program: dict[str, Any], code: str) -> None:
    first_node(program).update(target="torch.os.system")


def add_library(program: dict[str, Any], code: str) -> None:
    first_node(program).update(target="torch.ops.load_library")


def add_tree(program: dict[str, Any], code: str) -> None:
    entry = program["graph_module"]["module_call_graph"][0]["signature"]
    factory = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []}
    spec = [1, {"type": "collections.defaultdict", "context": factory, "children_spec": []}]
    entry["out_spec"] = json.dumps(spec)


def add_enum(program: dict[str, Any], code: str) -> None:
    entry = program["graph_module"]["module_call_graph"][0]["signature"]
    context = json.dumps({"__enum__": True, "fqn": "antigravity:x", "name": "x"})
    entry["out_spec"] = json.dumps([1, {"type": "builtins.tuple", "context": context, "children_spec": []}])


def add_keyword(program: dict[str, Any], code: str) -> None:
    entry = program["graph_module"]["module_call_graph"][0]["signature"]
    entry["in_spec"] = entry["in_spec"].replace('[\\"d\\"]', json.dumps([f"d={code}"]).replace('"', '\\"'))


def add_argument_name(program: dict[str, Any], code: str) -> None:
    for node in program["graph_module"]["graph"]["nodes"]:
        if "cond" in node["target"]:
            node["inputs"][-1].update(name=f"operands={code}, a", kind=2)


def add_hidden_operator(program: dict[str, Any], code: str) -> None:
    """Under a key that in other places means harmless remarks."""
    hidden = {"as_string_to_argument": {"metadata": {"as_operator": "torch.os.system"}}}
    first_node(program)["inputs"].append({"name": "a", "arg": hidden, "kind": 1})


def add_file(program: dict[str, Any], code: str) -> None:
    first_node(program).update(target="torch.ops.aten.from_file.default")


TEXTS = [add_expression, rename_input, add_guard, add_operator, add_library, add_tree, add_enum, add_keyword]
TEXTS += [add_argument_name, add_hidden_operator, add_file]


def attacked(honest: Path, target: Path, change: Callable[..., Any], marker: Path) -> Path:
    """The honest program with text in it that would make `marker`, were it run."""
    program = member(honest, MODEL)
    before = copy.deepcopy(program)
    program = change(program, f"__import__('os').system('touch {marker}')") or program
    assert program != before
    return repacked(honest, target, {MODEL: json.dumps(program).encode()})


@pytest.mark.parametrize("change", TEXTS)
def test_text_that_would_become_code_is_refused(honest: Path, tmp_path: Path, change: Callable[..., Any]) -> None:
    marker = tmp_path / "marker"
    path = attacked(honest, tmp_path / "bad.pt2", change, marker)
    with pytest.raises(UntrustedError, match="would run code that came with it"):
        load_source(str(path))
    assert not marker.exists()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("change", [add_expression, rename_input, add_guard])
def test_the_same_text_does_run_where_it_is_trusted(honest: Path, tmp_path: Path, change: Callable[..., Any]) -> None:
    marker = tmp_path / "marker"
    path = attacked(honest, tmp_path / "bad.pt2", change, marker)
    with contextlib.suppress(Exception):  # whether it goes on to fail does not matter
        model = load_source(str(path), trust=True).model.module()
        model(torch.ones(4, 4), d={"a": torch.ones(1), "b c": torch.ones(2)})
    assert marker.exists()


def test_keys_of_the_example_inputs_are_looked_at(honest: Path, tmp_path: Path) -> None:
    samples = saved(((torch.ones(4, 4),), {"d": {"a": torch.ones(1), "b'\"c": torch.ones(2)}}))
    with pytest.raises(UntrustedError, match="a text is not a plain one"):
        load_source(str(repacked(honest, tmp_path / "a.pt2", {SAMPLES: samples})))


def test_an_unknown_operator_is_named(honest: Path, tmp_path: Path) -> None:
    program = member(honest, MODEL)
    first_node(program).update(target="torch.ops.my_library.blur.default")
    path = repacked(honest, tmp_path / "a.pt2", {MODEL: json.dumps(program).encode()})
    with pytest.raises(SourceError, match=r"my_library\.blur\.default, which is not registered") as caught:
        load_source(str(path))
    assert "import the Python package" in caught.value.next_step


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.symm_mem.memset32_.default",
        "torch.ops.inductor._reinterpret_tensor.default",
        "torch.ops.higher_order.aoti_call_delegate",
        "torch.ops.higher_order.print",
        "torch.ops._c10d_functional.wait_tensor.default",
    ],
)
def test_operators_that_are_not_known_to_be_harmless_are_named(honest: Path, tmp_path: Path, target: str) -> None:
    program = member(honest, MODEL)
    first_node(program).update(target=target)
    path = repacked(honest, tmp_path / "a.pt2", {MODEL: json.dumps(program).encode()})
    with pytest.raises(UntrustedError, match=target.replace(".", r"\.")) as caught:
        load_source(str(path))
    assert "--trust" in str(caught.value.next_step)


# --- names of members -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        (WEIGHTS, WEIGHTS.upper()),
        (SAMPLES, SAMPLES.replace("model", "Model")),
        ("data/constants/tensor_0", "data/Constants/tensor_0"),
        ("archive_version", "archive_Version"),
        ("data/weights/weight_0", "data/weights//weight_0"),
        ("data/weights/weight_0", "data\\weights\\weight_0"),
    ],
)
def test_a_member_under_another_spelling_is_refused_by_name(
    honest: Path, tmp_path: Path, name: str, spelling: str
) -> None:
    path = renamed(honest, tmp_path / "a.pt2", lambda found: found.replace(name, spelling))
    with pytest.raises(UntrustedError, match="a member that PyTorch does not write") as caught:
        load_source(str(path))
    assert repr(spelling)[1:-1] in caught.value.what
    assert "--trust" in str(caught.value.next_step)


@pytest.mark.parametrize(
    "name", ["DATA/AOTInductor/model/model.so", "data/executorch/a.pte", "Models/x.json", "extra/", "a"]
)
def test_a_member_that_torch_does_not_write_is_refused(honest: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UntrustedError):
        load_source(str(repacked(honest, tmp_path / "a.pt2", {name: b""})))


def test_extra_files_are_left_alone(honest: Path, tmp_path: Path) -> None:
    path = repacked(honest, tmp_path / "a.pt2", {"extra/labels/é.txt": b"a", "extra/Code": b"b"})
    assert load_source(str(path)).model


# --- broken files ---------------------------------------------------------------------------------------------


def test_a_program_cut_short_is_refused(honest: Path, tmp_path: Path) -> None:
    whole = honest.read_bytes()
    for length in range(0, len(whole), len(whole) // 30):
        (tmp_path / "cut.pt2").write_bytes(whole[:length])
        with pytest.raises((SourceError, UntrustedError)):  # the last whole zip in it may be the example inputs
            load_source(f"{tmp_path}/cut.pt2")


@pytest.mark.parametrize(
    "members",
    [
        {MODEL: b""},
        {MODEL: b"[]"},
        {MODEL: b"{}"},
        {MODEL: b"[" * 100_000},
        {MODEL: None},
        {SAMPLES: None},
        {WEIGHTS: None},
        {WEIGHTS: b'{"config": {"a": {}}}'},
        {"data/weights/weight_0": None},
        {"data/weights/weight_0": b"abc"},
        {"archive_format": b"zip"},
        {"archive_version": b"99"},
        {"models/other.json": b"{}"},
    ],
    ids=lambda members: str(members)[:40],
)
def test_a_program_with_a_broken_or_missing_member_is_refused(
    honest: Path, tmp_path: Path, members: dict[str, bytes | None]
) -> None:
    with pytest.raises(SourceError):
        load_source(str(repacked(honest, tmp_path / "a.pt2", members)))


@pytest.mark.parametrize(("stored", "sizes"), [(b"", [1 << 20, 1 << 20]), (b"1234", [1 << 40]), (b"1234", [-1])])
def test_a_size_that_is_a_lie_takes_no_memory(honest: Path, tmp_path: Path, stored: bytes, sizes: list[int]) -> None:
    found = member(honest, WEIGHTS)
    meta = next(iter(found["config"].values()))["tensor_meta"]
    meta.update(sizes=[{"as_int": n} for n in sizes], strides=[{"as_int": 0} for _ in sizes])
    members = {WEIGHTS: json.dumps(found).encode(), "data/weights/weight_0": stored}
    with pytest.raises(SourceError, match="is said to hold"):
        load_source(str(repacked(honest, tmp_path / "a.pt2", members)))


def test_a_bomb_among_the_sample_inputs_is_refused(honest: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
        archive.writestr("archive/data/0", bytes(100 << 20))
    with pytest.raises(SourceError, match="would unpack"):
        load_source(str(repacked(honest, tmp_path / "a.pt2", {SAMPLES: buffer.getvalue()})))
