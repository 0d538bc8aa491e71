"""A model opened in an engine, with one interface for all engines: tp.session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchport.engines.custom_operators import library_paths
from torchport.engines.protocol import OpenOptions, Runner
from torchport.engines.registry import DEFAULT, find_engine
from torchport.errors import InputError
from torchport.files import onnx_files
from torchport.inputs.binding import bind
from torchport.irtools.dims import is_placeholder
from torchport.tensors import Array, is_torch, to_torch

if TYPE_CHECKING:
    import onnx_ir as ir


def open_session(
    model: str | os.PathLike[str] | ir.Model,
    engine: str = DEFAULT,
    *,
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> Session:
    """Open a model in an engine.

    Args:
        model: an ONNX file or a model in memory.
        engine: what runs it; `torchport doctor` lists the ones here.
        libraries: operator libraries you trust, by path. Nothing that only the model names is loaded; operators defined
            in this process with `tp.operator` bring their own.

    Example:
        >>> session = open_session("model.onnx")
        >>> session(x)                          # by position, tensor in, tensor out
        >>> session.run({"x": x_numpy})         # by name, dict out
    """
    opened = find_engine(engine)
    options = OpenOptions(library_paths(libraries))
    source = Path(model) if isinstance(model, (str, os.PathLike)) else onnx_files.as_model(model)
    return Session(opened.open(source, options), engine)


class Session:
    """A model opened in an engine. Inputs are checked; torch tensors or numpy arrays are taken, and given back."""

    def __init__(self, runner: Runner, engine: str) -> None:
        self._runner = runner
        self.engine = engine
        self.inputs = runner.inputs
        self.outputs = runner.outputs
        self.in_python = runner.in_python
        self.bounds = runner.bounds

    def __call__(self, *args: Any) -> Any:
        """Run by position: a tensor for one output, a tuple for several; torch or numpy, as given."""
        if len(args) != len(self.inputs):
            raise InputError(
                f"{len(args)} inputs given, the model has {len(self.inputs)}",
                where=self._signature(),
                next_step="give one array or tensor for each, in this order",
            )
        outputs = self._run({i.name: a for i, a in zip(self.inputs, args, strict=True)})
        if any(is_torch(a) for a in args):
            outputs = [to_torch(o) for o in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, feeds: Mapping[str, Any], *, only: Sequence[str] | None = None) -> dict[str, Any]:
        """Run by name: the outputs by name; torch or numpy, as given.

        Args:
            feeds: the inputs.
            only: the outputs wanted; what the others alone need is not computed. All if None.
        """
        names = [info.name for info in self.outputs] if only is None else list(only)
        outputs = self._run(feeds, only)
        if any(is_torch(a) for a in feeds.values()):
            outputs = [to_torch(o) for o in outputs]
        return dict(zip(names, outputs, strict=True))

    def _run(self, feeds: Mapping[str, Any], only: Sequence[str] | None = None) -> list[Any]:
        arrays = bind(feeds, self.inputs)
        self._check_dims(arrays)
        return list(self._runner.run(arrays, only))

    def _check_dims(self, arrays: Mapping[str, Array]) -> None:
        """Check that a dimension has one size in every input, and one that the model is good for."""
        sizes: dict[str, tuple[int, str]] = {}
        for info in self.inputs:
            for axis, (dim, size) in enumerate(zip(info.shape or (), arrays[info.name].shape, strict=False)):
                if not isinstance(dim, str) or is_placeholder(dim):
                    continue
                known, first = sizes.setdefault(dim, (size, f"{info.name} axis {axis}"))
                if known != size:
                    raise InputError(
                        f"dimension '{dim}' has two sizes: {known} and {size}",
                        where=f"{first} and {info.name} axis {axis}",
                        next_step="give both the same size",
                    )
        for dim, bound in self.bounds.items():
            size, place = sizes.get(dim, (bound.min, ""))
            if place and not bound.allows(size):
                raise InputError(
                    f"dimension '{dim}' is {size}; the model was exported for {dim} {bound}",
                    where=place,
                    next_step="feed a size that it is good for, or export it again for this one",
                )

    def _signature(self) -> str:
        return ", ".join(str(i) for i in self.inputs)
