"""The `rewrite` route: torch.export again, with Python control flow rewritten at the lines it stumbled over.

Each failed capture names a line; what stands there is rewritten, and the capture tried again, until it goes through.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import torch

from torchport.capture.control_flow.conversions import OpenSizes
from torchport.capture.control_flow.dynamic_lists import StackedRows
from torchport.capture.control_flow.loops import noticing
from torchport.capture.control_flow.merging import DifferentBranchesError
from torchport.capture.control_flow.plan import Plan, Rewritten
from torchport.capture.control_flow.tracing import watching
from torchport.capture.control_flow.transform import RewriteLineError
from torchport.capture.dynamic_dims import InputDims
from torchport.capture.frozen_branches import sites_looked_at
from torchport.capture.guards import Challenge, Guard, Guess, doubtful_lines, guessing, watch_ones
from torchport.capture.origins import Site, line_of_error, place, site_of_error
from torchport.capture.repairs.repair import CaptureRepair
from torchport.capture.repairs.symbolic_sizes import symbolic_sizes
from torchport.capture.routes import export
from torchport.capture.routes.route import Captured, Request
from torchport.capture.structure import Call
from torchport.errors import CaptureError, NothingToRewriteError, RewriteError, TimeLimitError
from torchport.process import silence
from torchport.results import Dim, Finding
from torchport.torch_compat import tracing
from torchport.torch_compat.error_texts import says
from torchport.torch_compat.higher_order import translations
from torchport.torch_compat.parts import has
from torchport.torch_compat.shape_env import check, whole_quotients

NOTHING = "the capture named no line to rewrite"
NOT_AT_IT = "there is nothing to rewrite at the line"
NO_CONTROL_FLOW = "the capture stopped at something else than control flow"
_TRIES = 60  # lines to rewrite in one model
_ON_VALUES = re.compile(r"\bu\d+\b")  # a guard on what is no size of an input


def capture(request: Request) -> Captured:
    request = dataclasses.replace(request, translations={**translations(), **request.translations})
    repairs: list[str] = []
    with silence(verbose=request.verbose), _without_cache():
        plan, tried = _rewritten(request, repairs)
        model = export.translate(tried.program, request, repairs)
    return Captured(
        model,
        suspects=plan.one_sided(),
        challenges=tried.challenges,
        repairs=tuple(repairs),
        reasons=tried.shared,
        notes=plan.left_out(),
    )


@dataclasses.dataclass(frozen=True)
class _Try:
    """A capture that went through, with the lines that were rewritten for it.

    Attributes:
        program: what torch.export gave.
        guards: the conditions on sizes that torch settled.
        ones: those that it settled because it takes no size for 1.
        challenges: sizes at which one of them does not hold.
        repairs: the names of the repairs that helped.
        lines: what was rewritten.
        shared: loops in which tensors share memory.
    """

    program: torch.export.ExportedProgram
    guards: list[Guard]
    ones: list[Guard]
    challenges: tuple[Challenge, ...]
    repairs: list[str]
    lines: dict[Rewritten, set[int]]
    shared: tuple[Finding, ...]


class _Tied(Call):
    """The model, with torch told first that dimensions of one name have one size. It would find out late, where two
    of them meet, or never; until then formulas in both are beyond it, and conditions on them are settled by example."""

    def __init__(self, call: Call, dims: InputDims) -> None:
        vars(self).update(vars(call))
        self._call, self._dims = call, dims

    def __call__(self, *tensors: torch.Tensor) -> Any:
        sizes: dict[Dim, Any] = {}
        for name, tensor in zip(self.names, tensors, strict=True):
            for axis, dim in self._dims.get(name, {}).items():
                check(sizes.setdefault(dim, tensor.shape[axis]) == tensor.shape[axis])
        return self._call(*tensors)


def _without_cache() -> contextlib.AbstractContextManager[None]:
    """torch keeps what every operator gave on fake tensors. With sizes from long formulas, as of padded sequences, it
    takes as long to keep an answer as to find it, and the branches of a model seldom ask the same twice."""
    return tracing.without_fake_cache() if has("dynamo_config") else contextlib.nullcontext()


def rewritten_program(request: Request, repairs: list[str]) -> tuple[Plan, torch.export.ExportedProgram, list[Guard]]:
    """The program of the rewritten model, with the plan that led to it."""
    plan, tried = _rewritten(request, repairs)
    return plan, tried.program, tried.guards


def _rewritten(request: Request, repairs: list[str]) -> tuple[Plan, _Try]:
    request = dataclasses.replace(request, call=_Tied(request.call, request.dims))
    plan = Plan()
    good: _Try | None = None  # before lines were rewritten for a condition on sizes, which may also be left as it is
    banned: set[int] = set()
    failure: CaptureError | None = None
    known: list[CaptureRepair] = list(request.learned)  # what one capture of the model needs, the next one will
    inherited = bool(known or request.conditions)
    for condition in request.conditions:
        with contextlib.suppress(RewriteError):  # the capture asks there once more
            plan.add(condition)
    looked = False
    one_by_one = False  # lines for conditions on sizes are added, once several together stopped the capture elsewhere
    for _ in range(_TRIES):
        try:
            tried = _try(request, plan, known)
        except TimeLimitError:
            raise
        except (CaptureError, RewriteError) as error:
            cause = error.__cause__ if isinstance(error, CaptureError) else error
            assert cause is not None
            site = error.guesses[0].site if isinstance(error, _GuessedError) else site_of_error(cause)
            if _rewritable(cause) and site is not None and _add(plan, site) is not None:
                if isinstance(error, _GuessedError):
                    _add_more(plan, error.guesses[1:])
                if not looked:
                    looked = True
                    plan.add_assertions(site)
                    for other in sites_looked_at(request.call, tuple(request.call.tensors)):
                        _add(plan, other)
                continue
            failure = failure or _refused(cause, error, plan)
            if isinstance(cause, DifferentBranchesError) and site is not None and _separated(plan, site, cause):
                continue
            if good is None and inherited:  # what helped at other sizes does not help here
                plan, known, failure, inherited = Plan(), [], None, False
                continue
            if good is None:
                raise failure from error
            new = {line for f in plan.functions for line in f.lines - good.lines.get(f, set())}
            stopped = {site.line} & new - banned if site is not None else set()
            if stopped or one_by_one:
                banned |= stopped or new  # a line that stops it once more was not the cause
            one_by_one = one_by_one or not stopped
            plan.restore(good.lines)
            tried = good
        if _add_sizes(plan, tried, request, banned, most=1 if one_by_one else _TRIES):
            good = tried
            continue
        if not plan.functions:
            raise failure or NothingToRewriteError(NOTHING)
        if failure is not None and export.frozen(tried.program, request):
            raise failure
        export.check_not_frozen(tried.program, request, tried.guards)
        repairs[:] = tried.repairs
        return plan, tried
    raise CaptureError(f"more than {_TRIES} lines ask to be rewritten")


class _GuessedError(CaptureError):
    """A capture that went on with guesses, which is no capture."""

    def __init__(self, guesses: Sequence[Guess]) -> None:
        super().__init__(export.ON_VALUES, where=guesses[0].line)
        self.guesses = guesses


def _add_more(plan: Plan, guesses: Sequence[Guess]) -> None:
    """Rewrite what else stopped to be known; what cannot be rewritten may never be asked again."""
    for guess in guesses:
        with contextlib.suppress(CaptureError):
            _add(plan, guess.site)


def _guesses(known: list[CaptureRepair]) -> contextlib.AbstractContextManager[list[Guess]]:
    """Guess what only values settle, once sizes are kept symbolic: before, a repair may settle it."""
    return guessing() if symbolic_sizes in known else contextlib.nullcontext([])


def _try(request: Request, plan: Plan, known: list[CaptureRepair]) -> _Try:
    repairs: list[str] = []
    with (
        plan.in_place(),
        torch.no_grad(),
        StackedRows(),
        OpenSizes(),
        whole_quotients(),
        tracing.shared_modules_in_branches(),
        watching(request.call.target),
        _guesses(known) as guesses,
        watch_ones() as ones,  # after the guesses: it looks at the frame that asks
        noticing() as shared,
    ):
        try:
            program, guards = export.exported(request, repairs, known)
        except TimeLimitError:
            raise
        except (CaptureError, RewriteError):
            if not guesses:
                raise
    if guesses:
        raise _GuessedError(guesses) from guesses[0].error
    guards, ones = ([g for g in all_ if not _ON_VALUES.search(g.expression)] for all_ in (guards, ones))
    challenges = export.found_challenges(program, request, [*guards, *ones])
    return _Try(program, guards, ones, challenges, repairs, plan.lines(), tuple(shared))


def _separated(plan: Plan, site: Site, cause: DifferentBranchesError) -> bool:
    """Let what follows two branches go into both. Where one of them gives None, and what follows is the caller's, take
    the other one always: None says that the tensor would change nothing. The proof has to show both ways."""
    with contextlib.suppress(RewriteError):  # what follows cannot go into the sides; the first reason stands
        if plan.split(site):
            return True
    return cause.tensor_side is not None and plan.take_side(site, cause.tensor_side)


def _add(plan: Plan, site: Site) -> Rewritten | None:
    try:
        return plan.add_alike(site)
    except RewriteLineError as refusal:
        where = place(site.codes[0].co_filename, refusal.line)
        raise CaptureError(f"cannot be rewritten: {refusal}", where=where) from refusal
    except RewriteError as refusal:
        where = place(site.codes[0].co_filename, site.line)
        raise CaptureError(f"cannot be rewritten: {refusal}", where=where) from refusal


def _add_sizes(plan: Plan, tried: _Try, request: Request, banned: set[int], most: int) -> bool:
    """Rewrite the lines that settled a size: frozen dimensions, and conditions that not every size meets. At most so
    many of them."""
    fixing = [g for g in tried.guards if re.match(r"Eq\((?!s\d+, s\d+\)$)", g.expression)]  # equal sizes fix neither
    if not export.frozen(tried.program, request):
        fixing = [g for g in fixing if export.FIXED_NUMBER.fullmatch(g.expression)]
    doubtful = doubtful_lines([*tried.guards, *tried.ones], *export.symbols_of_dims(tried.program, request))
    for guards in (tried.guards, tried.ones):  # apart: a line that cannot be rewritten takes its fellows with it
        added = 0
        for guard in guards:
            if added == most:
                break
            if guard.site is None or guard.site.line in banned or not (guard in fixing or guard.line in doubtful):
                continue
            try:
                added += (plan.add_alike if guard in fixing else plan.add)(guard.site) is not None
            except RewriteError:
                continue  # it stays as it is, and the proof asks at the sizes in doubt
        if added:
            return True
    return False


def _rewritable(error: BaseException) -> bool:
    """Check that the capture stumbled over a value or a size, and not over an operator."""
    return says(error, "data-dependent", "value or size", "name of a number", "number out of a tensor", "not a number")


def _refused(cause: BaseException, error: Exception, plan: Plan) -> CaptureError:
    where = line_of_error(cause) or getattr(error, "where", None)
    if isinstance(cause, RewriteError):
        return CaptureError(f"cannot be rewritten: {cause}", where=where or None)
    assert isinstance(error, CaptureError)
    what = error.what
    if not plan.functions:
        nothing = NOTHING if not where else NOT_AT_IT if _rewritable(cause) else NO_CONTROL_FLOW
        what = f"{nothing}: {what}"
    return CaptureError(what, where=where or None)
