"""`.pt` files: what they hold is told from their bytes, and nothing in them runs unless vouched for."""

from __future__ import annotations

import logging
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import Payload, renamed, repacked
from hypothesis import HealthCheck, given, settings, strategies as st

from torchport.capture.archive_members import Members, check_zip
from torchport.capture.pytorch_files import kind_of, load_pickle, only_weights, quiet
from torchport.capture.sources import load_source
from torchport.errors import SourceError, UntrustedError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "net.pt"
    torch.jit.save(torch.jit.script(Net().eval()), path)
    return path


def test_torchscript_is_opened_whatever_the_file_is_called(scripted: Path, tmp_path: Path) -> None:
    for name in ("a.pt", "a.pth", "a.ts", "a.pt2"):
        (tmp_path / name).write_bytes(scripted.read_bytes())
        source = load_source(str(tmp_path / name))
        assert isinstance(source.model, torch.jit.ScriptModule)
        assert source.label == name
        assert source.model(torch.ones(1, 3)).shape == (1, 2)


def test_opening_torchscript_says_nothing(scripted: Path, recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("always")
    load_source(str(scripted))
    assert not recwarn.list


def test_torchscript_cut_short_is_refused(scripted: Path, tmp_path: Path) -> None:
    whole = scripted.read_bytes()
    for length in range(0, len(whole), len(whole) // 30):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(SourceError):
            load_source(f"{tmp_path}/cut.pt")


def test_torchscript_with_nonsense_inside_is_refused(scripted: Path, tmp_path: Path) -> None:
    for members in ({"data.pkl": b"nonsense"}, {"constants.pkl": b""}, {"code/__torch__.py": b"\xff\xfe"}):
        with pytest.raises(SourceError):
            load_source(str(repacked(scripted, tmp_path / "bad.pt", members)))


class Writes(torch.nn.Module):
    """TorchScript whose state is restored by writing a file: it would run while the file is being opened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path = state[0]
        self.training = state[1]
        torch.save(torch.ones(1), state[0])


def test_torchscript_that_writes_files_wants_trust(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.jit.save(torch.jit.script(Writes(str(marker))), tmp_path / "w.pt")
    with pytest.raises(UntrustedError, match="reads or writes files"):
        load_source(f"{tmp_path}/w.pt")
    assert not marker.exists()
    load_source(f"{tmp_path}/w.pt", trust=True)
    assert marker.exists(), "the payload would have worked"


@pytest.mark.parametrize(
    "code",
    [
        "ops.aten.save(x, 'f')",
        "torch . from_file('f')",
        "getattr(torch, 'sa' 've')(x, 'f')",
        'getattr(torch, "save")(x, "f")',
        'getattr(getattr(torch, "ops"), "sa\\x76e")(x)',
    ],
)
def test_other_spellings_of_the_file_operators_are_seen_too(scripted: Path, tmp_path: Path, code: str) -> None:
    hidden = repacked(scripted, tmp_path / "h.pt", {"code/extra.py": f"def f(x):\n  {code}\n".encode()})
    with pytest.raises(UntrustedError):
        load_source(str(hidden))


class Maps(torch.nn.Module):
    """TorchScript that writes bytes of its choice while it is being opened, by mapping a file into memory."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.mapped = torch.ones(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path = state[0]
        self.training = state[1]
        self.mapped = torch.from_file(state[0], True, 4, dtype=torch.uint8).fill_(65)


@pytest.fixture(scope="module")
def mapping(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a file that writes, and where it writes to."""
    folder = tmp_path_factory.mktemp("mapping")
    torch.jit.save(torch.jit.script(Maps(str(folder / "marker"))), folder / "w.pt")
    return folder / "w.pt", folder / "marker"


def refused_unwritten(path: Path, marker: Path) -> UntrustedError:
    """Check that the file is refused, names the way out and writes nothing; return the error."""
    with pytest.raises(UntrustedError) as caught:
        load_source(str(path))
    assert not marker.exists()
    assert "--trust" in str(caught.value.next_step)
    return caught.value


# what torch's reader takes for code/ is written by torch; the others it does not find, and they are refused too
SPELLINGS = {"Code/": True, "CODE/": True, "cODe/": True, "code//": False, "code\\": False, "./code/": False}
SPELLINGS |= {
    "code./": False,
    "code /": False,
    "\N{KELVIN SIGN}ode/": False,
    "\N{FULLWIDTH LATIN SMALL LETTER C}ode/": False,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_source_under_another_spelling_is_not_run(mapping: tuple[Path, Path], tmp_path: Path, spelling: str) -> None:
    honest, marker = mapping
    decoy = {"w/code/x.py": b""}
    path = renamed(honest, tmp_path / "e.pt", lambda name: name.replace("code/", spelling), decoy)
    assert repr(f"{spelling}__torch__")[1:-1] in refused_unwritten(path, marker).what
    if SPELLINGS[spelling]:
        load_source(str(path), trust=True)
        assert marker.read_bytes() == b"AAAA", "the payload would have worked"
        marker.unlink()


def other_top(name: str) -> str:
    return name.replace("w/code", "W/code")


def no_top(name: str) -> str:
    return name.removeprefix("w/") if "code" in name else name


def other_suffix(name: str) -> str:
    return name.replace(".py", ".PY")


def other_constants(name: str) -> str:
    return name.replace("constants.pkl", "Constants.pkl")


@pytest.mark.parametrize("rename", [other_top, no_top, other_suffix, other_constants])
def test_members_at_another_place_are_refused(
    mapping: tuple[Path, Path], tmp_path: Path, rename: Callable[[str], str]
) -> None:
    honest, marker = mapping
    assert (
        "a member that PyTorch does not write"
        in refused_unwritten(renamed(honest, tmp_path / "e.pt", rename), marker).what
    )


@pytest.mark.parametrize(
    "name",
    [
        "code/",
        "model.json",
        "code/a.py/",
        "code/a.pyc",
        "code/a b.py",
        "data/x",
        "attributes.pkl",
        "data.pkl.",
        "extra/",
    ],
)
def test_a_member_that_torch_does_not_write_is_refused(scripted: Path, tmp_path: Path, name: str) -> None:
    path = repacked(scripted, tmp_path / "e.pt", {name: b""})
    assert repr(name) in refused_unwritten(path, tmp_path / "none").what


def test_a_name_with_a_nul_in_it_is_refused(mapping: tuple[Path, Path], tmp_path: Path) -> None:
    path = renamed(mapping[0], tmp_path / "e.pt", lambda name: name, {"w/code/x~.py": b""})
    path.write_bytes(path.read_bytes().replace(b"x~.py", b"x\0.py"))
    with pytest.raises(SourceError, match="climbs out"):
        load_source(str(path))


def test_a_name_too_long_for_torchs_reader_is_refused(scripted: Path, tmp_path: Path) -> None:
    path = repacked(scripted, tmp_path / "e.pt", {f"code/{'a' * 600}.py": b""})
    with pytest.raises((SourceError, UntrustedError)):
        load_source(str(path))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data())
def test_no_way_to_write_the_names_makes_it_write(
    mapping: tuple[Path, Path], tmp_path: Path, data: st.DataObject
) -> None:
    honest, marker = mapping
    cases = st.sampled_from([str.lower, str.upper, str.title, str.swapcase])
    pieces = st.sampled_from(["", "", "", "/", "\\", ".", "./", " ", "\N{KELVIN SIGN}", "code/", "w/"])

    def rename(name: str) -> str:
        parts = [data.draw(cases)(part) + data.draw(pieces) for part in name.split("/")]
        return "/".join(parts)

    path = renamed(honest, tmp_path / "e.pt", rename, data.draw(st.sampled_from([{}, {"w/code/x.py": b""}])))
    with pytest.raises((SourceError, UntrustedError)):
        load_source(str(path))
    assert not marker.exists()


def test_an_archive_is_read_by_torchs_own_reader(scripted: Path) -> None:
    members = Members(scripted)
    members.hold_to("script")
    assert members.read("version").strip().isdigit()
    assert members.size("version") == len(members.read("version"))
    with pytest.raises(SourceError, match="it has no Version"):
        members.read("Version")


# --- pickles --------------------------------------------------------------------------------------------------


def test_a_hostile_pickle_is_not_run_in_any_disguise(scripted: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile = Payload(marker)
    torch.save(hostile, tmp_path / "zip.pt")
    torch.save(hostile, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(hostile))
    (tmp_path / "raw.pt2").write_bytes(pickle.dumps(hostile, protocol=4))
    (tmp_path / "text.pt").write_bytes(pickle.dumps(hostile, protocol=0))
    (tmp_path / "front.pt").write_bytes(pickle.dumps(hostile) + scripted.read_bytes())
    repacked(scripted, tmp_path / "script.pt", {"data.pkl": pickle.dumps(hostile, protocol=2)})
    repacked(scripted, tmp_path / "consts.pt", {"constants.pkl": pickle.dumps(hostile, protocol=2)})
    repacked(tmp_path / "zip.pt", tmp_path / "half.pt", {"constants.pkl": b"", "code/a.py": b""})
    for name in (
        "zip.pt",
        "old.pt",
        "raw.pth",
        "raw.pt2",
        "text.pt",
        "front.pt",
        "script.pt",
        "consts.pt",
        "half.pt",
    ):
        with pytest.raises((UntrustedError, SourceError)):
            load_source(str(tmp_path / name))
        assert not marker.exists(), name
    with pytest.raises(UntrustedError, match="system"):
        load_source(str(tmp_path / "zip.pt"))
    with pytest.raises(SourceError, match="no model"):
        load_source(str(tmp_path / "zip.pt"), trust=True)
    assert marker.exists(), "the payload would have worked"


def test_a_lone_tensor_is_not_called_weights(tmp_path: Path) -> None:
    torch.save(torch.zeros(2, 3), tmp_path / "x.pt")
    with pytest.raises(SourceError, match=r"holds one tensor of shape \[2, 3\], which is no model"):
        load_pickle(tmp_path / "x.pt")


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("trust", [True, False])
def test_weights_are_said_to_be_weights_only(tmp_path: Path, new: bool, trust: bool) -> None:
    torch.save(Net().state_dict(), tmp_path / "w.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(SourceError, match=r"holds weights only \(2 entries\)") as caught:
        load_source(f"{tmp_path}/w.pt", trust=trust)
    assert "load_state_dict" in caught.value.next_step


def test_a_file_that_is_no_pytorch_file_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("hello.txt", "hello")
    for name, data, says in (
        ("empty.pt", b"", "is empty"),
        ("page.pt", b"<!DOCTYPE html><html>", "web page"),
        ("lfs.pt", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        ("noise.pt", bytes(range(1, 100)), "no PyTorch file"),
        ("zip.pt", None, "not one that PyTorch wrote"),
    ):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match=says):
            load_source(str(tmp_path / name))


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(SourceError, match="regular file"):
        load_source(f"{tmp_path}/pipe.pt")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pt").write_bytes(b"\x80")
    monkeypatch.setattr("zipfile.is_zipfile", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        load_source(f"{tmp_path}/a.pt")


# --- archives in general --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "\\x", "C:\\x", "a\\..\\x"])
def test_a_member_that_climbs_out_is_refused(scripted: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "climb.pt"
    target.write_bytes(scripted.read_bytes())
    with zipfile.ZipFile(target, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(SourceError, match="climbs out"):
        load_source(str(target))


def test_two_members_of_one_name_are_refused_upper_and_lower_case_alike(scripted: Path, tmp_path: Path) -> None:
    target = repacked(scripted, tmp_path / "twice.pt", {"DATA.PKL": b"x"})
    with pytest.raises(SourceError, match="two members of the same name"):
        load_source(str(target))


def test_a_zip_bomb_is_refused_unopened(scripted: Path, tmp_path: Path) -> None:
    target = tmp_path / "bomb.pt"
    target.write_bytes(scripted.read_bytes())
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data/9", bytes(100 << 20))
    with pytest.raises(SourceError, match="would unpack to"):
        load_source(str(target))


def test_honest_archives_pass(scripted: Path) -> None:
    assert kind_of(scripted) == "script"
    with scripted.open("rb") as file:
        assert check_zip(file, where="x") == check_zip(scripted)


# --- silence --------------------------------------------------------------------------------------------------


def test_silence_ends_when_the_load_ends(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.manager.disable
    with quiet():
        logging.getLogger("torch").error("noise")
        warnings.warn("noise", stacklevel=1)
    assert capsys.readouterr() == ("", "")
    assert logging.root.manager.disable == before


def test_the_switch_for_weights_only_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    with only_weights():
        assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
        assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (lambda state: {"model": state, "epoch": 3}, r"\['model'\]\).*torch.load\('c.pt', .*\)\['model'\]\)"),
        (
            lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}, "optimizer": {"state": {}}},
            r"\['state_dict'\]\).*every name begins with 'module.'",
        ),
        (lambda state: {"nets": {"ema": state}}, r"\['nets'\]\['ema'\]"),
        (lambda state: state, r"\(2 entries\)"),
    ],
)
def test_a_checkpoint_says_where_its_state_dict_is_and_how_to_load_it(tmp_path: Path, saved: Any, words: str) -> None:
    path = tmp_path / "c.pt"
    torch.save(saved(torch.nn.Linear(2, 3).state_dict()), path)
    with pytest.raises(SourceError) as caught:
        load_pickle(path)
    assert re.search(words, str(caught.value), re.DOTALL)
