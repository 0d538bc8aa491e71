"""Write a C++ project for one model: typed structs, a program, CMake, a golden input and output, a test."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport._version import __version__
from torchport.bundles import cpp_source
from torchport.engines.custom_operators import library_paths
from torchport.engines.onnxruntime import headers, kernel_libraries, python_kernels
from torchport.engines.onnxruntime.engine import readable_ir_version
from torchport.engines.registry import DEFAULT, find_engine
from torchport.engines.session import Session, open_session
from torchport.errors import EngineError, OptionError, RandomModelError, RefusedError, SaveError
from torchport.files import onnx_files
from torchport.inputs.create import accepted
from torchport.inputs.samples import save_sample
from torchport.irtools.dims import roots_in
from torchport.numerics.check import check_output
from torchport.numerics.tolerance import limits_for
from torchport.results import Finding, Record, TensorInfo
from torchport.tensors import Array

_DATA = Path(__file__).parent / "cpp"
_ENGINES = ("onnxruntime", "openvino")  # that the C++ library has


@dataclasses.dataclass(frozen=True)
class CppProject(Record):
    """A C++ project for one model.

    Attributes:
        path: its folder.
        target: the name of its program.
        engine: what runs the model, and gave the golden outputs in Python.
        built: the project was built, and its test passed with the same bits as in Python.
        seconds: for configuring, building and testing; None if it was not built.
        findings: what is missing here to build it.
    """

    path: str
    target: str
    engine: str
    engine_version: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    built: bool = False
    seconds: float | None = None
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        head = f"C++ project '{self.target}' → {self.path}, golden outputs by {self.engine} {self.engine_version}"
        body = [f"  in   {i}" for i in self.inputs] + [f"  out  {o}" for o in self.outputs]
        if self.built:
            told = f"built and tested in {self.seconds:.0f} s: the same bits as in Python"
        else:
            told = f"next: cd {self.path} && cmake -B build && cmake --build build && ctest --test-dir build"
        return "\n".join([head, *body, *(f"· {f}" for f in self.findings), told])


def cpp_project(
    model: str | os.PathLike[str] | ir.Model,
    output: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any] | None = None,
    engine: str = DEFAULT,
    libraries: Sequence[str | os.PathLike[str]] = (),
    build: bool = False,
) -> CppProject:
    """Write a C++ project for a model.

    Args:
        model: an ONNX file or a model in memory.
        output: the folder to make; one that is there must be empty.
        inputs: the golden inputs by name; made up from the model's shapes if not given.
        engine: ``onnxruntime`` or ``openvino``. It runs the model in Python for the golden outputs.
        libraries: operator libraries you trust, by path. The project gets copies of them.
        build: configure, build and test the project, and check that it gives the same bits as Python.

    Raises:
        SaveError: the folder cannot be written, or something is in it.
        EngineError: the engine refuses the model, or it needs PyTorch for one of its operators.
        RandomModelError: the model gives other outputs each time.
        OptionError: `build` is asked for, and a tool is missing.

    Example:
        >>> print(cpp_project("model.onnx", "app", build=True))
    """
    if engine not in _ENGINES:
        raise OptionError(f"there is no C++ for the engine '{engine}'", next_step=f"use one of: {', '.join(_ENGINES)}")
    target = _free_folder(Path(output))
    missing = missing_tools(engine)
    if build and missing:
        raise OptionError(f"the project cannot be built: {missing[0].message}", next_step=missing[0].where)
    loaded = onnx_files.as_model(model)
    with _beside(target) as scratch:
        work = scratch / "project"
        work.mkdir()
        copied = _copy_libraries(work, loaded, libraries, engine)
        session = open_session(_save_model(work, loaded, engine), engine, libraries=copied)
        feeds, outputs = _golden(session, loaded, inputs)
        _save_golden(work, feeds, outputs)
        name = _name(model, target)
        project = _project(session, target, name, missing)
        _write_sources(work, project, loaded, outputs, [p.name for p in copied])
        _put(work, target)
    return _built(project, target) if build else project


def missing_tools(engine: str = DEFAULT) -> tuple[Finding, ...]:
    """Return what a build needs and this machine lacks; `where` says how to get it."""
    found: list[Finding] = []
    if shutil.which("cmake") is None:
        found.append(Finding("there is no CMake here", "apt install cmake, or pip install cmake"))
    try:
        kernel_libraries.compiler()
        if engine == DEFAULT:
            headers.find()
    except OptionError as error:
        found.append(Finding(error.what, error.next_step or ""))
    return tuple(found)


def _free_folder(target: Path) -> Path:
    """Return the folder to make, with a name even if it was given as ``.`` or with a slash at its end."""
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SaveError(f"'{target}' is there already", next_step="give a folder that is new or empty")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise SaveError(f"the folder of '{target}' is missing or cannot be written", next_step="make it first")
    return target


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Give a folder on the same disk, which is removed again."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise SaveError(
            f"the folder '{target}' cannot be made: {error.strerror}", next_step="give a folder elsewhere"
        ) from error
    with scratch as folder:
        yield Path(folder)


def _name(model: object, target: Path) -> str:
    """Return the name of the program and of its namespace."""
    stem = target.name if isinstance(model, ir.Model) else Path(str(model)).stem
    return cpp_source.identifiers([stem], "app")[0].lower()


def _copy_libraries(
    work: Path, model: ir.Model, given: Sequence[str | os.PathLike[str]], engine: str
) -> tuple[Path, ...]:
    """Copy the libraries that the model's own operators need into the project."""
    paths: Sequence[Path] = library_paths(given)
    if engine == DEFAULT:
        needs = python_kernels.needs(model, paths)
        if needs.in_python:
            raise EngineError(
                f"{', '.join(needs.names_in_python)} has no kernel: PyTorch runs it, which a C++ program has not",
                next_step="write a kernel in C++: `torchport ops new` begins one, `torchport ops build` compiles it",
            )
        paths = needs.libraries
    if paths:
        (work / "libraries").mkdir()
    copied: list[Path] = []
    for number, path in enumerate(paths):
        name = path.name if path.name not in [c.name for c in copied] else f"{number}_{path.name}"
        copied.append(Path(shutil.copy(path, work / "libraries" / name)))
    return tuple(copied)


def _save_model(work: Path, model: ir.Model, engine: str) -> Path:
    """Save the model as the program opens it: with an IR version that the engine reads."""
    own = model.ir_version
    try:
        if engine == DEFAULT:
            model.ir_version = readable_ir_version(own)
        return onnx_files.save(model, work / "model.onnx")
    finally:
        model.ir_version = own


def _golden(
    session: Session, model: ir.Model, inputs: Mapping[str, Any] | None
) -> tuple[Mapping[str, Array], dict[str, Array]]:
    """Return inputs and what the model gives for them in Python."""
    for info in (*session.inputs, *session.outputs):
        cpp_source.number_type(info)
    if inputs is None:
        made = accepted(session.inputs, lambda given: session(*given), roots_in(model))
        inputs = {info.name: array for info, array in zip(session.inputs, made, strict=True)}
    outputs, again = session.run(inputs), session.run(inputs)
    limits = limits_for([model], None)
    for name, first in outputs.items():
        if not check_output(name, first, again[name], limits(first.dtype.name)).ok:
            raise RandomModelError(
                f"output '{name}' is another each time: no test could hold it",
                next_step="give random operators a seed, or make their numbers inputs of the model",
            )
    return inputs, outputs


def _save_golden(work: Path, feeds: Mapping[str, Any], outputs: Mapping[str, Array]) -> None:
    (work / "golden").mkdir()
    save_sample(work / "golden" / "inputs.npz", {name: np.asarray(array) for name, array in feeds.items()})
    save_sample(work / "golden" / "outputs.npz", outputs)


def _project(session: Session, target: Path, name: str, missing: tuple[Finding, ...]) -> CppProject:
    version = find_engine(session.engine).capabilities().version
    shown = os.path.relpath(target)
    shown = str(target) if shown.startswith("..") else shown
    return CppProject(shown, name, session.engine, version, session.inputs, session.outputs, findings=missing)


def _write_sources(
    work: Path, project: CppProject, model: ir.Model, outputs: Mapping[str, Array], libraries: Sequence[str]
) -> None:
    limits = limits_for([model], None)
    parts = {
        "VERSION": __version__,
        "TARGET": project.target,
        "NAMESPACE": project.target,
        "ENGINE": project.engine,
        "ENGINE_VERSION": project.engine_version,
        "TOLERANCES": cpp_source.tolerance_source({n: limits(a.dtype.name) for n, a in outputs.items()}),
        "LIBRARIES_ROW": ", `libraries/`" if libraries else "",
        **cpp_source.model_source(project.inputs, project.outputs, libraries),
    }
    for template in sorted((_DATA / "project").glob("*.in")):
        text = template.read_text()
        for name, part in parts.items():
            text = text.replace(f"@{name}@", part)
        (work / template.stem).write_text(text)
    (work / ".gitignore").write_text("build/\nlocal.cmake\n")
    (work / "local.cmake").write_text(_local_paths(project.engine))
    for folder in ("include", "cmake"):
        shutil.copytree(_DATA / folder, work / folder)


def _local_paths(engine: str) -> str:
    """Return CMake that says where this machine has the engine, as far as it is known."""
    found: dict[str, str] = {}
    if engine == DEFAULT:
        wheel = importlib.util.find_spec("onnxruntime")
        if wheel is not None and wheel.origin:
            found["TORCHPORT_ORT_LIBRARY"] = str(Path(wheel.origin).parent / "capi")
        with contextlib.suppress(OptionError):  # `missing_tools` has said so
            found["TORCHPORT_ORT_INCLUDE"] = headers.find().folder
    elif (wheel := importlib.util.find_spec("openvino")) is not None and wheel.origin:
        found["OpenVINO_DIR"] = str(Path(wheel.origin).parent / "cmake")
    lines = ["# Where this machine has the engine. Delete this file to let CMake search."]
    lines += [
        f'if(NOT DEFINED {key} AND EXISTS "{path}")\n  set({key} "{path}")\nendif()' for key, path in found.items()
    ]
    return "\n".join(lines) + "\n"


def _put(work: Path, target: Path) -> None:
    """Put the whole project in its place at once."""
    try:
        os.chmod(work, 0o755)
        os.replace(work, target)
    except OSError as error:
        raise SaveError(f"'{target}' cannot be written: {error.strerror}", next_step="give another folder") from error


# --- build and test ---------------------------------------------------------------------------------------------------


def _built(project: CppProject, target: Path) -> CppProject:
    """Configure, build and test a project, and check that the bits are those of Python."""
    start = time.monotonic()
    build = target / "build"
    _run(["cmake", "-S", str(target), "-B", str(build)], "CMake cannot configure the project")
    _run(["cmake", "--build", str(build)], "the project does not compile")
    _run(["ctest", "--test-dir", str(build), "--output-on-failure"], "the project's tests fail")
    _run([str(build / "test_golden"), "--exact"], "the program gives other bits than Python")
    return dataclasses.replace(project, built=True, seconds=time.monotonic() - start)


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        text = (done.stdout + done.stderr).strip()
        shown = [line for line in text.splitlines() if "rror" in line or "WRONG" in line][:5] or text.splitlines()[-5:]
        raise RefusedError(
            f"{what}: {shown[0].strip() if shown else 'no message'}",
            where=" ".join(command),
            next_step="run this command yourself; it begins so:\n" + "\n".join(shown),
        )
