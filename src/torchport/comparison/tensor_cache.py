"""What a model's tensors hold for given inputs: computed when asked for, each stretch of the model once.

A search that goes into halves of halves asks for the tensors at the middle of ever smaller stretches. Each is computed
from the values known nearest before it, so that the whole search costs about two runs of the model, and the memory of
the tensors at the cuts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from torchport.editing.extract import cut, without_unused_inputs
from torchport.engines.registry import DEFAULT
from torchport.engines.session import open_session
from torchport.errors import EngineError
from torchport.files import onnx_files
from torchport.inputs.binding import check_names
from torchport.irtools.inference import inferred
from torchport.irtools.names import Names
from torchport.irtools.traversal import used_values
from torchport.tensors import Array


class Recorded:
    """The tensors of a model for one set of inputs.

    Args:
        model: whose tensors; it stays as it is.
        inputs: the model's inputs by name.
        engine: what computes them.
        libraries: operator libraries you trust, by path.

    Raises:
        InputError: an input is missing, or the model has none of that name.

    Example:
        >>> Recorded(model, {"x": x}).values(["relu_4"])["relu_4"].max()
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike[str],
        inputs: Mapping[str, Array],
        *,
        engine: str = DEFAULT,
        libraries: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        whole = model if isinstance(model, ir.Model) else onnx_files.load(model)
        self._check_inputs(whole, inputs)
        self.model = typed(whole, engine, libraries)
        self.engine = engine
        self.libraries = libraries
        self._names = Names(self.model).values
        self._known: dict[str, Array] = dict(inputs)

    @staticmethod
    def _check_inputs(model: ir.Model, inputs: Mapping[str, Array]) -> None:
        wanted = [str(v.name) for v in model.graph.inputs if not v.is_initializer()]
        check_names(inputs, wanted, where=f"the model takes: {', '.join(wanted)}")

    def knows(self, name: str) -> bool:
        """Whether there is a tensor of that name that can be handed to a model."""
        value = self._names.get(name)
        return value is not None and is_tensor(value)

    def values(self, names: Iterable[str]) -> dict[str, Array]:
        """These tensors, by name.

        Raises:
            EngineError: the engine fails on the stretch of the model that gives them.
        """
        wanted = list(dict.fromkeys(names))
        missing = [n for n in wanted if n not in self._known]
        if missing:
            self._known.update(self._computed(missing))
        return {n: self._known[n] for n in wanted}

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget all but these: they are computed again if they are asked for."""
        keep = {*names, *(str(v.name) for v in self.model.graph.inputs)}
        self._known = {n: a for n, a in self._known.items() if n in keep}

    def _computed(self, names: Sequence[str]) -> dict[str, Array]:
        weights = {n: v.const_value.numpy() for n in names if (v := self._names[n]).const_value is not None}
        names = [n for n in names if n not in weights]
        if not names:
            return weights
        part = without_unused_inputs(cut(self.model, list(self._known), names))
        fit(part, self._known)
        session = open_session(part, self.engine, libraries=self.libraries)
        with np.errstate(all="ignore"):  # numbers that overflow may be what is looked for
            return {**weights, **session.run({i.name: self._known[i.name] for i in session.inputs})}


def is_tensor(value: ir.Value) -> bool:
    """Whether it is known to be a tensor: sequences and what has no known type can be no model's input here."""
    return bool(value.name) and isinstance(value.type, ir.TensorType)


def typed(model: ir.Model, engine: str, libraries: Sequence[str | os.PathLike[str]] = ()) -> ir.Model:
    """A copy that says the type of each tensor, as far as anyone knows: a part's inputs and outputs must say theirs.

    ONNX's inference stops at an operator of another domain; the engine, which has the operator, knows more.
    """
    copy = model.clone()
    if not _untyped(copy):
        return copy
    _infer(copy)
    open_ended = _untyped(copy)
    if open_ended:
        values = Names(copy).values
        for name, dtype in _as_the_engine_says(copy, open_ended, engine, libraries).items():
            values[name].type = ir.TensorType(dtype)
    _guess(copy)
    return copy


def _infer(model: ir.Model) -> None:
    """Set the types that are missing as onnx infers them; it may not, as the model may be wrong."""
    complete = inferred(model)
    known = {} if complete is None else Names(complete).values
    for value in _untyped(model):
        found = known.get(str(value.name))
        if found is not None:
            value.type, value.shape = found.type, value.shape or found.shape


def _guess(model: ir.Model) -> None:
    """What an operator that nobody knows gives is taken to be of the type it takes.

    Behind it nothing could be cut else: an unknown operator is often the very fault looked for. Where there are values,
    their types replace the guess.
    """
    for node in model.graph:
        missing = [v for v in node.outputs if v.name and v.type is None]
        known = [v.type for v in used_values(node) if isinstance(v.type, ir.TensorType)]
        if not missing or not known or onnx.defs.has(node.op_type, node.domain):
            continue
        for value in missing:
            value.type = ir.TensorType(known[0].dtype)
        _infer(model)


def _untyped(model: ir.Model) -> list[ir.Value]:
    return [v for node in model.graph for v in node.outputs if v.name and v.type is None]


def _as_the_engine_says(
    model: ir.Model, values: list[ir.Value], engine: str, libraries: Sequence[str | os.PathLike[str]]
) -> dict[str, ir.DataType]:
    wanted = {str(v.name) for v in values}
    given = list(model.graph.outputs)
    try:
        model.graph.outputs.extend(v for v in values if v not in given)
        outputs = open_session(model, engine, libraries=libraries).outputs
    except EngineError:  # a model that cannot be opened is what is being looked into: those tensors are not cut at
        return {}
    finally:
        model.graph.outputs[:] = given
    known = {d.numpy().name: d for d in ir.DataType if d.name not in ("UNDEFINED", "STRING")}
    return {i.name: known[i.dtype] for i in outputs if i.name in wanted and i.dtype in known}


def fit(model: ir.Model, values: Mapping[str, Array]) -> None:
    """Where a model states another shape or type for an input than its value has, the value is right.

    Shapes inside a model are remarks that nobody checks; those of an input are binding.
    """
    for value in model.graph.inputs:
        array = values.get(str(value.name))
        if array is None:
            continue
        if not _fits(value.shape, array.shape):
            value.shape = ir.Shape(array.shape)
        if value.dtype is not None and value.dtype.numpy() != array.dtype and array.dtype.kind not in "OSUV":
            value.dtype = ir.DataType.from_numpy(array.dtype)


def _fits(stated: ir.Shape | None, shape: tuple[int, ...]) -> bool:
    if stated is None or len(stated) != len(shape):
        return False
    return all(not isinstance(d, int) or d == size for d, size in zip(stated, shape, strict=True))
