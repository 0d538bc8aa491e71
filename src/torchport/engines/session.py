"""A model opened in an engine, with one interface for all engines: tp.session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchport.engines.custom_operators import library_paths
from torchport.engines.options import open_options
from torchport.engines.protocol import Runner
from torchport.engines.registry import DEFAULT, find_engine
from torchport.engines.tuned import read_tuned
from torchport.errors import InputError
from torchport.files import onnx_files
from torchport.inputs.binding import Binder, buffer
from torchport.tensors import Array, to_torch

if TYPE_CHECKING:
    import onnx_ir as ir


def open_session(
    model: str | os.PathLike[str] | ir.Model,
    engine: str | None = None,
    *,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> Session:
    """Open a model in an engine.

    Args:
        model: an ONNX file, a model in memory, or a folder that `torchport tune` wrote: its model is opened with the
            engine, threads and options that were fastest, as far as you do not name others.
        engine: what runs it, ONNX Runtime if None; `torchport doctor` lists the ones here.
        threads: the number of threads to compute with; the engine's own choice if None.
        options: what only this engine takes, ``{"providers": ["CUDAExecutionProvider"]}``; docs/engines.md lists them.
        libraries: operator libraries you trust, by path. Nothing that only the model names is loaded; operators defined
            in this process with `tp.operator` bring their own.

    Example:
        >>> session = open_session("model.onnx")
        >>> session(x)                          # by position, tensor in, tensor out
        >>> session.run({"x": x_numpy})         # by name, dict out
    """
    if isinstance(model, (str, os.PathLike)) and Path(model).is_dir():
        return _open_tuned(Path(model), engine, threads=threads, options=options, libraries=libraries)
    engine = engine or DEFAULT
    paths = library_paths(libraries)
    checked = open_options(engine, libraries=paths, threads=threads, settings=options)
    source = Path(model) if isinstance(model, (str, os.PathLike)) else onnx_files.as_model(model)
    return Session(find_engine(engine).open(source, checked), engine)


def _open_tuned(
    folder: Path,
    engine: str | None,
    *,
    threads: int | None,
    options: Mapping[str, Any] | None,
    libraries: Sequence[str | os.PathLike[str]],
) -> Session:
    """Open what `torchport tune` wrote. The options it found are those of one engine: another engine has its own."""
    tuned = read_tuned(folder)
    found: dict[str, Any] = {"threads": threads, "options": options}
    if engine in (None, tuned.engine):
        found = {
            "threads": tuned.threads if threads is None else threads,
            "options": {**tuned.settings, **(options or {})},
        }
    session = open_session(folder / tuned.model, engine or tuned.engine, libraries=libraries, **found)
    session.findings = (*session.findings, *tuned.findings())
    return session


class Session:
    """A model opened in an engine. Inputs are checked; torch tensors or numpy arrays are taken, and given back."""

    def __init__(self, runner: Runner, engine: str) -> None:
        self._runner = runner
        self._binder = Binder(runner.inputs, runner.bounds)
        self._input_names = tuple(info.name for info in runner.inputs)
        self._output_names = tuple(info.name for info in runner.outputs)
        self.engine = engine
        self.inputs = runner.inputs
        self.outputs = runner.outputs
        self.in_python = runner.in_python
        self.bounds = runner.bounds
        self.findings = runner.findings

    def __call__(self, *args: Any) -> Any:
        """Run by position: a tensor for one output, a tuple for several; torch or numpy, as given."""
        if len(args) != len(self._input_names):
            raise InputError(
                f"{len(args)} inputs given, the model has {len(self.inputs)}",
                where=self._signature(),
                next_step="give one array or tensor for each, in this order",
            )
        arrays, any_torch = self._binder.bind(dict(zip(self._input_names, args, strict=True)))
        outputs: Sequence[Any] = self._runner.run(arrays)
        if any_torch:
            outputs = [to_torch(o) for o in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(
        self, feeds: Mapping[str, Any], *, only: Sequence[str] | None = None, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run by name: the outputs by name; torch or numpy, as given.

        Args:
            feeds: the inputs.
            only: the outputs wanted; what the others alone need is not computed. All if None.
            out: arrays or tensors to write outputs into, by name; these are what is returned for them. They must be
                C-contiguous and of the output's dtype and shape.

        Example:
            >>> logits = np.empty((8, 1000), np.float32)
            >>> session.run({"image": image}, out={"logits": logits})
        """
        arrays, any_torch = self._binder.bind(feeds)
        names = self._output_names if only is None else only
        if out:
            return self._run_into(arrays, names, out, any_torch=any_torch)
        outputs: Sequence[Any] = self._runner.run(arrays, only)
        if any_torch:
            outputs = [to_torch(o) for o in outputs]
        return dict(zip(names, outputs, strict=True))

    def _run_into(
        self, arrays: Mapping[str, Array], names: Sequence[str], out: Mapping[str, Any], *, any_torch: bool
    ) -> dict[str, Any]:
        buffers = {name: buffer(name, given, names, self.outputs) for name, given in out.items()}
        outputs = self._runner.run_into(arrays, buffers, list(names))
        return {
            name: out[name] if name in out else to_torch(array) if any_torch else array
            for name, array in zip(names, outputs, strict=True)
        }

    def _signature(self) -> str:
        return ", ".join(str(i) for i in self.inputs)
