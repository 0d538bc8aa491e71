"""Whether a changed ONNX model answers as it did before: the proof behind `torchport edit --verify`."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from torchport.engines.registry import DEFAULT
from torchport.engines.session import Session, open_session
from torchport.errors import EngineError, InputError
from torchport.inputs.binding import check_names
from torchport.inputs.create import accepted
from torchport.irtools.dims import Dims, input_dims, roots_in
from torchport.results import Dim, Finding, Proof, TensorInfo
from torchport.tensors import Array, as_pairs
from torchport.verification.bounds import as_dims
from torchport.verification.values import ProofInput
from torchport.verification.verifier import Verifier


def candidate(
    session: Session, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """The ONNX model as the verifier takes it; inputs it has dropped are left out."""
    wanted = {i.name for i in session.inputs}

    def ask(feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            given = session.run({n: as_pairs(a) for n, a in feeds.items() if n in wanted})
        except InputError as error:
            raise EngineError(error.what, where=error.where) from error
        if set(given) == set(outputs) or len(given) != len(outputs):
            return given
        return dict(zip(outputs, given.values(), strict=True))  # an older file under other names: by position

    return ask


Shape = tuple[int | str | None, ...] | None
Model = str | os.PathLike[str] | ir.Model


def prove_same(
    before: Model,
    after: Model | Session,
    *,
    inputs: Mapping[str, Array] | None = None,
    engine: str = DEFAULT,
    libraries: Sequence[str | os.PathLike[str]] = (),
    patience: float | None = None,
    threads: int | None = None,
) -> Proof:
    """Put the same questions to two ONNX models; names may differ, order and types may not.

    Where a first axis was fixed before and may vary now, the model as it was is asked about the rows in turn.

    Args:
        before: the model as it was.
        after: the model as it is now, or a session of it in another engine.
        inputs: an example, by the new names; made up from the shapes where none is given.
        engine: what runs both.
        libraries: operator libraries they may load.
        threads: to compute with; the engine's own choice if None.
        patience: the seconds of a run from which on few cases are tried; None to try all in any case.

    Example:
        >>> prove_same("model.onnx", tp.graph.fold("model.onnx")).passed
        True

    Raises:
        InputError: the two do not take and give the same, so there is nothing to hold one against the other.
        RandomModelError: the model as it was answers differently each time.
    """
    new = after if isinstance(after, Session) else open_session(after, engine, libraries=libraries)
    try:
        old = open_session(before, engine, libraries=libraries, threads=threads)
    except EngineError as error:
        raise EngineError(
            f"the model before the edits cannot be run, so there is nothing to compare with: {error.what}",
            where=error.where,
            next_step="edit it without --verify (verify=False)",
        ) from error
    _check_interface("input", old.inputs, new.inputs)
    _check_interface("output", *(_without_shapes(session.outputs) for session in (old, new)))
    rows = _Rows(old, new)
    roots = sorted({root for model in (before, after) if isinstance(model, ir.Model) for root in roots_in(model)})
    examples = _given(new.inputs, inputs) if inputs else accepted(rows.examples(), rows.ask, roots)
    dims = {n: {a: d for a, d in axes.items() if rows.may_vary(d)} for n, axes in declared_dims(new, roots).items()}
    names = [i.name for i in new.inputs]
    outputs = [o.name for o in new.outputs]
    follow = declared_expressions(new, roots)
    asked = [ProofInput(n, a, dims[n], expressions=follow[n]) for n, a in zip(names, examples, strict=True)]
    start = time.monotonic(), time.process_time()
    first = rows.ask(examples)
    took = min(time.monotonic() - start[0], time.process_time() - start[1])  # a busy machine makes no model costly
    seconds = 0.0 if patience is None else took / patience  # the verifier takes one of a second for costly
    if all(info.shape is None or len(info.shape) == a.ndim for info, a in zip(old.outputs, first, strict=True)):
        _check_interface("output", old.outputs, new.outputs)  # else the file itself states wrong shapes
    verifier = Verifier(
        rows.ask, asked, outputs, first=first, engine=engine, seconds=seconds, called="the model before"
    )
    verifier.check_repeatable()
    proof = verifier.verify(candidate(new, names, outputs))
    return dataclasses.replace(proof, findings=(*proof.findings, *rows.findings()))


def _given(infos: Sequence[TensorInfo], inputs: Mapping[str, Array]) -> list[Array]:
    check_names(inputs, [i.name for i in infos], where=f"the changed model takes {', '.join(map(str, infos))}")
    return [np.asarray(inputs[i.name]) for i in infos]


def _without_shapes(infos: Sequence[TensorInfo]) -> list[TensorInfo]:
    return [dataclasses.replace(info, shape=None) for info in infos]


def _check_interface(what: str, old: Sequence[TensorInfo], new: Sequence[TensorInfo]) -> None:
    if len(old) == len(new) and all(_alike(a, b) for a, b in zip(old, new, strict=True)):
        return
    shown = [", ".join(map(str, infos)) or "none" for infos in (old, new)]
    raise InputError(
        f"the edits changed the {what}s: there is nothing to compare with",
        where=f"before: {shown[0]}; now: {shown[1]}",
        next_step="run those without --verify (verify=False), and verify the others in a call of their own",
    )


def _alike(old: TensorInfo, new: TensorInfo) -> bool:
    """Whether one may be held against the other: types and numbers of axes are the same, and fixed sizes too."""
    if old.dtype != new.dtype or old.shape is None or new.shape is None:
        return old.dtype == new.dtype
    sizes = [(a, b) for a, b in zip(old.shape, new.shape, strict=False) if isinstance(a, int) and isinstance(b, int)]
    return len(old.shape) == len(new.shape) and all(a == b for a, b in sizes)


def _known_sizes(was: Shape, now: Shape, first: int) -> Shape:
    """The shape, with the sizes there were from an axis on."""
    if was is None or now is None or len(was) != len(now):
        return now
    pairs = enumerate(zip(was, now, strict=True))
    return tuple(n if isinstance(n, int) and axis >= first else d for axis, (n, d) in pairs)


class _Rows:
    """The model as it was, asked in pieces where its number of rows was fixed and is free now."""

    def __init__(self, old: Session, new: Session) -> None:
        self._old, self._new = old, new
        self._freed: dict[str, int] = {}  # dimension: the size it was fixed to
        self._elsewhere: dict[str, int] = {}  # the same, of axes that are no rows
        for was, now in zip(old.inputs, new.inputs, strict=True):
            for axis, (n, d) in enumerate(zip(was.shape or (), now.shape or (), strict=False)):
                if isinstance(n, int) and isinstance(d, str):
                    (self._freed if axis == 0 else self._elsewhere)[d] = n

    def examples(self) -> list[TensorInfo]:
        """The new inputs, of sizes that the model took before where it cannot be asked about others."""
        kept = 0 if len(self._freed) > 1 else 1
        pairs = zip(self._old.inputs, self._new.inputs, strict=True)
        return [dataclasses.replace(now, shape=_known_sizes(was.shape, now.shape, kept)) for was, now in pairs]

    def may_vary(self, dim: Dim) -> bool:
        return dim.root not in self._elsewhere

    def ask(self, arrays: Sequence[Array]) -> list[Array]:
        sizes = {
            i.shape[0]: (a.shape[0], self._freed[i.shape[0]])
            for i, a in zip(self._new.inputs, arrays, strict=True)
            if i.shape and isinstance(i.shape[0], str) and i.shape[0] in self._freed
        }
        moved = {d: (now, was) for d, (now, was) in sizes.items() if now != was}
        if not moved:
            return self._run(arrays)
        if len(moved) > 1:
            raise InputError(
                f"{' and '.join(moved)} were fixed before, and both have other sizes now",
                next_step="give an example in which one of them has the size it had",
            )
        ((dim, (now, was)),) = moved.items()
        parts = [self._run(self._piece(arrays, dim, np.arange(n, n + was) % now)) for n in range(0, now, was)]
        return [self._joined(o, dim, now, [p[n] for p in parts]) for n, o in enumerate(self._new.outputs)]

    def _piece(self, arrays: Sequence[Array], dim: str, rows: Array) -> list[Array]:
        """Some rows of all that have rows; the last piece is filled up with the first ones, which are not looked at."""
        own = [(i.shape or (None,))[0] == dim for i in self._new.inputs]
        return [a[rows] if mine else a for a, mine in zip(arrays, own, strict=True)]

    def _joined(self, info: TensorInfo, dim: str, count: int, parts: list[Array]) -> Array:
        axes = [a for a, d in enumerate(info.shape or ()) if d == dim]
        if len(axes) == 1:
            return np.take(np.concatenate(parts, axis=axes[0]), range(count), axis=axes[0])
        if not axes and all(np.array_equal(parts[0], p) for p in parts):
            return parts[0]
        raise InputError(
            f"the rows of output '{info.name}' cannot be put together: its shape does not name '{dim}'",
            next_step="name that dimension in the output's shape: `torchport edit` can set it",
        )

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        feeds = {i.name: a for i, a in zip(self._old.inputs, arrays, strict=True)}
        given = self._old.run(feeds)
        return [given[o.name] for o in self._old.outputs]

    def findings(self) -> list[Finding]:
        kept = [
            Finding(f"'{d}' was fixed to {n} before: at other sizes there is no answer to compare with")
            for d, n in self._elsewhere.items()
        ]
        return kept + [
            Finding(f"'{d}' was fixed to {n} before: other sizes were compared {_rows(n)} at a time")
            for d, n in self._freed.items()
        ]


def _rows(count: int) -> str:
    return "one row" if count == 1 else f"{count} rows"


def declared_dims(session: Session, roots: Sequence[str] = ()) -> dict[str, dict[int, Dim]]:
    """Return the axes that may vary: by name, by input and axis, or by the dimension they hang on (``2*half + 1``).

    Args:
        session: the ONNX model.
        roots: names that only expressions in the shapes have: ``half`` of ``2*half``.
    """
    dims, bounds = Dims.of_inputs(session.inputs, roots), session.bounds
    found: dict[str, dict[int, Dim]] = {info.name: {} for info in session.inputs}
    for (name, axis), text in input_dims((i.name, i.shape or ()) for i in session.inputs).items():
        dim = Dim(text) if dims.is_name(text) else _hanging(text)
        if dim is not None:
            bounded = dim.name in bounds and bounds[dim.name].step == 1
            found[name][axis] = as_dims({axis: dim}, bounds)[axis] if bounded else dim
    return found


def declared_expressions(session: Session, roots: Sequence[str] = ()) -> dict[str, dict[int, str]]:
    """Return the axes whose size follows from several dimensions: ``past + sequence``, ``(height//8)``."""
    declared = declared_dims(session, roots)
    found: dict[str, dict[int, str]] = {info.name: {} for info in session.inputs}
    for (name, axis), text in input_dims((i.name, i.shape or ()) for i in session.inputs).items():
        if axis not in declared[name]:
            found[name][axis] = text
    return found


def _hanging(text: str) -> Dim | None:
    """Return the dimension that is a multiple of one other, or that and a number more."""
    match = re.fullmatch(r"(?:(\d+)\*)?([^\W\d][\w.]*)(?: ([+-]) (\d+))?", text)
    if match is None:
        return None
    scale, root, sign, offset = match.groups()
    return Dim(text, root=root, scale=int(scale or 1), offset=int(f"{sign or '+'}{offset or 0}"))
