"""What a program feeds its model is saved as it was, and nothing else changes."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.utils._pytree import tree_map_only

from torchport.cli.record import command
from torchport.comparison.record import record, record_program
from torchport.comparison.recorded_calls import rebuilt
from torchport.errors import InputError, OptionError, SaveError, SourceError
from torchport.inputs.samples import Sample, read_samples


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Any, batch: Any = None, *, scale: float = 1.0, mode: str = "a") -> dict[str, Any]:
        y = self.fc(x) * scale
        return {"y": y if batch is None else y + batch["shift"][0], "n": 3}


def samples(folder: Path) -> list[Sample]:
    return list(read_samples(folder))


def test_each_call_is_saved_with_the_names_an_export_gives(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(4, 3)
    with record(model, tmp_path / "calls") as saved:
        first = model(x, {"shift": [torch.ones(2)]}, scale=2.0, mode="b")
        model(x=x[:1])
    assert saved.count == 2
    one, two = samples(tmp_path / "calls")
    assert (one.name, two.name) == ("call_00001.npz", "call_00002.npz")
    assert list(one.arrays) == ["x", "batch.shift.0"]
    np.testing.assert_array_equal(one.arrays["x"], x.numpy())
    np.testing.assert_array_equal(one.outputs["y"], first["y"].detach().numpy())
    assert one.outputs["n"] == 3
    assert one.arguments == {"scale": 2.0, "mode": "b"}
    assert one.given["batch"] == {"dict": [["shift", {"list": [{"tensor": "batch.shift.0"}]}]]}
    assert list(two.arrays) == ["x"]
    assert two.arrays["x"].shape == (1, 3)


def test_the_arguments_of_a_saved_call_come_back_as_they_were(tmp_path: Path) -> None:
    class Taking(nn.Module):
        def forward(self, x: Any, /, y: Any, *more: Any, key: Any = None, **others: Any) -> Any:
            return x

    model, t = Taking(), torch.arange(2.0)
    args, kwargs = (t, None, (t + 1, [2, True]), "text"), {"key": {"a": t + 2, 3: {}}, "other": 0.5}
    with record(model, tmp_path):
        model(*args, **kwargs)
    (sample,) = samples(tmp_path)
    again, before = (
        tree_map_only(torch.Tensor, torch.Tensor.tolist, c) for c in (rebuilt(model, sample), (args, kwargs))
    )
    assert list(sample.arrays) == ["x", "more.0.0", "key.a"]
    assert again == before


def test_what_was_not_saved_of_a_call_is_told_when_it_is_needed(tmp_path: Path) -> None:
    class First(nn.Module):
        def forward(self, a: Any, b: Any = None) -> Any:
            return a

    model = First()
    with record(model, tmp_path):
        model(torch.ones(2), torch.eye(2).to_sparse())
        model(torch.ones(2), [torch.float32])
    for sample, told in zip(samples(tmp_path), ("'b' has no numbers", "of a dtype only the tensors were"), strict=True):
        with pytest.raises(InputError, match=f"the argument 'b' cannot be given again: {told}"):
            rebuilt(model, sample)


def test_the_model_is_as_before_afterwards_and_its_answers_are_the_same(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(4, 3)
    plain = model(x)["y"]

    def failing() -> None:
        with record(model, tmp_path):
            assert torch.equal(model(x)["y"], plain)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    model(x)
    assert len(samples(tmp_path)) == 1


def test_inputs_are_saved_as_they_were_before_the_model_changed_them(tmp_path: Path) -> None:
    class InPlace(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mul_(2)

    inplace = InPlace()
    with record(inplace, tmp_path):
        inplace(torch.ones(2))
        InPlace()(torch.ones(2))  # another one, which is not recorded
    (sample,) = samples(tmp_path)
    assert sample.arrays["x"].tolist() == [1, 1]
    assert sample.outputs["output"].tolist() == [2, 2]


def test_a_call_that_fails_is_saved_too(tmp_path: Path) -> None:
    model = Net()
    with record(model, tmp_path):
        with pytest.raises(RuntimeError):
            model(torch.ones(4, 5))
        model(torch.ones(4, 3))
        with pytest.raises(TypeError):
            model(torch.ones(1, 3), wrong=torch.ones(1))
    one, two, three = samples(tmp_path)
    assert (one.arrays["x"].shape, dict(one.outputs)) == ((4, 5), {})
    assert (two.arrays["x"].shape, two.outputs["y"].shape) == ((4, 3), (4, 2))
    assert list(three.arrays) == ["arr_0", "arr_1"]


def test_dtypes_come_back_and_what_has_no_numbers_is_noted(tmp_path: Path) -> None:
    class First(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return a

    model = First()
    with record(model, tmp_path):
        model(torch.ones(2, dtype=torch.bfloat16), torch.eye(2).to_sparse())
    (sample,) = samples(tmp_path)
    assert sample.arrays["a"].dtype.name == "bfloat16"
    assert sample.outputs["output"].dtype.name == "bfloat16"
    assert sample.arguments["b"].startswith("not saved: a sparse_coo tensor")


def test_a_call_under_vmap_has_no_numbers_and_is_no_sample(tmp_path: Path) -> None:
    model = Net()
    with record(model, tmp_path) as saved:
        torch.vmap(lambda x: model(x)["y"])(torch.ones(4, 3))
        model(torch.ones(1, 3))
    assert saved.count == 1
    assert [s.name for s in samples(tmp_path)] == ["call_00001.npz"]


def test_the_limit_holds(tmp_path: Path) -> None:
    model = Net()
    with record(model, tmp_path, limit=2) as saved:
        for _ in range(5):
            model(torch.ones(1, 3))
    assert saved.count == len(samples(tmp_path)) == 2


def test_threads_do_not_mix_their_calls(tmp_path: Path) -> None:
    model = Net()

    def calls(number: int) -> None:
        for _ in range(5):
            model(torch.full((1, 3), float(number)), scale=float(number))

    with record(model, tmp_path) as saved:
        threads = [threading.Thread(target=calls, args=(i,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert saved.count == 20
    assert all(s.arrays["x"][0, 0] == s.arguments["scale"] for s in samples(tmp_path))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")  # of TorchScript itself
def test_compiled_and_scripted_models_are_recorded_too(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    traced = torch.jit.trace(Plain(), torch.ones(2), check_trace=False)
    for number, model in enumerate([torch.compile(Plain(), backend="eager"), traced]):
        with record(model, tmp_path / str(number)):
            model(torch.ones(2))
            model(torch.zeros(2))
        one, two = samples(tmp_path / str(number))
        assert list(one.arrays) == ["x"]
        assert two.outputs["output"].tolist() == [1, 1]


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"function is no nn\.Module"), record(lambda x: x, tmp_path):
        pass
    with pytest.raises(OptionError, match="a limit of 0"), record(Net(), tmp_path, limit=0):
        pass
    (tmp_path / "call_00001.npz").write_bytes(b"")
    with pytest.raises(SaveError, match="holds an earlier recording"), record(Net(), tmp_path):
        pass
    with pytest.raises(SaveError, match="cannot be made"), record(Net(), tmp_path / "call_00001.npz"):
        pass


PROGRAM = """
import sys
import torch
from torch import nn
from sibling import SHIFT

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
    def forward(self, x):
        return self.fc(x)

class Normalize(nn.Module):
    def forward(self, x):
        return x - SHIFT

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x)
        return x if mask is None else x * mask

if __name__ == "__main__":
    model, loss, norm = Net(), nn.MSELoss(), Normalize()
    if "--compile" in sys.argv:
        model = torch.compile(model, backend="eager")
    for i in range(int(sys.argv[1])):
        x = norm(torch.full((1, 3), float(i)))
        loss(model(x, mask=torch.ones(3)), x)
    print("done", sys.argv[1:])
    if "--fail" in sys.argv:
        raise ValueError("its own mistake")
    sys.exit(int(sys.argv[-1]) if "--code" in sys.argv else 0)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "sibling.py").write_text("SHIFT = 5.0\n")
    (tmp_path / "app" / "evaluate.py").write_text(PROGRAM)
    return str(tmp_path / "app" / "evaluate.py")


@pytest.fixture(autouse=True)
def _all_is_put_back() -> Any:
    before = nn.Module.__call__, sys.argv, list(sys.path)
    yield
    sys.modules.pop("sibling", None)
    assert before == (nn.Module.__call__, sys.argv, list(sys.path))


@pytest.mark.parametrize("options", [[], ["--compile"]])
def test_a_program_is_recorded_as_it_runs(program: str, tmp_path: Path, options: list[str], capsys: Any) -> None:
    recording = record_program([program, "3", *options], tmp_path / "calls")
    assert (recording.calls, recording.model, recording.exit_code) == (3, "Net", 0)
    assert recording.others == {"Normalize": 3, "MSELoss": 3}
    assert capsys.readouterr().out == f"done {['3', *options]}\n"
    found = samples(tmp_path / "calls")
    assert [s.arrays["x"][0, 0] for s in found] == [-5, -4, -3]
    assert list(found[0].arrays) == ["x", "mask"]
    assert found[0].outputs["output"].shape == (1, 3)


def test_a_class_inside_the_model_can_be_recorded_by_name(program: str, tmp_path: Path) -> None:
    assert record_program([program, "2"], tmp_path / "a", "Block").calls == 4
    assert record_program([program, "2"], tmp_path / "b", "__main__.Net").calls == 2
    assert record_program([program, "2"], tmp_path / "c", "torch.nn.modules.linear.Linear", limit=3).calls == 3


def test_a_model_without_weights_is_recorded_if_there_is_no_other(tmp_path: Path) -> None:
    text = """
        import torch
        class Double(torch.nn.Module):
            def forward(self, x):
                return x * 2
        Double()(torch.ones(2))
    """
    (tmp_path / "p.py").write_text(textwrap.dedent(text))
    recording = record_program([str(tmp_path / "p.py")], tmp_path / "calls")
    assert (recording.calls, recording.model, dict(recording.others)) == (1, "Double", {})


def test_the_programs_own_failure_is_shown_as_python_shows_it(program: str, tmp_path: Path, capsys: Any) -> None:
    recording = record_program([program, "2", "--fail"], tmp_path / "calls")
    told = capsys.readouterr().err
    assert (recording.exit_code, recording.calls) == (1, 2)
    assert told.endswith("ValueError: its own mistake\n")
    assert "runpy" not in told
    assert "evaluate.py" in told


def test_a_program_that_calls_no_model_is_an_error(program: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)no module of class 'Nett'.*did you mean 'Net'"):
        record_program([program, "1"], tmp_path / "a", "Nett")
    with pytest.raises(InputError, match=r"called no nn\.Module"):
        record_program([program, "0"], tmp_path / "b")
    with pytest.raises(SourceError, match=r"there is no program 'absent\.py'"):
        record_program(["absent.py"], tmp_path / "c")


Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    return lambda *args: CliRunner().invoke(command, [str(a) for a in args])


def test_the_command_passes_options_and_exit_code_on(program: str, tmp_path: Path, run: Run) -> None:
    done = run("-o", tmp_path / "calls", "--limit", "1", program, "2", "--limit", "9", "--code", "7")
    assert done.exit_code == 7
    assert "done ['2', '--limit', '9', '--code', '7']" in done.stdout
    assert f"recorded 1 call of Net → {tmp_path / 'calls'}" in done.stdout
    assert "not recorded: Normalize (2), MSELoss (2); choose with --model" in done.stdout


def test_the_commands_json_is_json_whatever_the_program_prints(program: str, tmp_path: Path, run: Run) -> None:
    done = run("-o", tmp_path / "calls", "--json", program, "2")
    assert json.loads(done.stdout)["calls"] == 2
    assert "done" in done.stderr


def test_the_commands_errors_are_short(program: str, tmp_path: Path, run: Run) -> None:
    done = run("-o", tmp_path / "calls", "--model", "Nett", program, "1")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: the program called no module of class 'Nett'")
    assert "Traceback" not in done.output
    mistyped = run("-o", tmp_path / "calls", "--modell", "Net", program, "1")
    assert mistyped.exit_code == 2
    assert "No such option" in mistyped.stderr
