"""The `rewrite` route: torch.export again, with Python control flow rewritten at the lines it stumbled over.

Each failed capture names a line; what stands there is rewritten, and the capture tried again, until it goes through.
"""

from __future__ import annotations

import dataclasses

import torch

from torchport.capture.blame import line_of_error, place, site_of_error
from torchport.capture.guards import Guard
from torchport.capture.places import Site
from torchport.capture.rewrite.attributes import watching
from torchport.capture.rewrite.looks import sites_looked_at
from torchport.capture.rewrite.merging import DifferentBranchesError
from torchport.capture.rewrite.operators import translations
from torchport.capture.rewrite.plan import Plan, Rewritten
from torchport.capture.rewrite.refusal import RewriteError
from torchport.capture.rewrite.rows import StackedRows
from torchport.capture.rewrite.transform import RewriteLineError
from torchport.capture.routes import export
from torchport.capture.routes.base import Captured, Request
from torchport.errors import CaptureError
from torchport.silence import silence

NOTHING = "the capture named no line to rewrite"
_TRIES = 60  # lines to rewrite in one model


def capture(request: Request) -> Captured:
    request = dataclasses.replace(request, translations={**translations(), **request.translations})
    repairs: list[str] = []
    with silence(verbose=request.verbose):
        _, program, guards = rewritten_program(request, repairs)
        model = export.translate(program, request, repairs)
    return Captured(model, challenges=export.found_challenges(program, request, guards), repairs=tuple(repairs))


def rewritten_program(request: Request, repairs: list[str]) -> tuple[Plan, torch.export.ExportedProgram, list[Guard]]:
    """The program of the rewritten model, with the plan that led to it."""
    plan = Plan()
    by_size: list[tuple[Rewritten, int]] = []  # rewritten for a condition on sizes, which may also be left as it is
    banned: set[int] = set()
    failure: CaptureError | None = None
    looked = False
    for _ in range(_TRIES):
        try:
            with plan.in_place(), torch.no_grad(), StackedRows(), watching(request.call.target):
                program, guards = export.exported(request, repairs)
        except (CaptureError, RewriteError) as error:
            cause = error.__cause__ if isinstance(error, CaptureError) else error
            assert cause is not None
            site = site_of_error(cause)
            if _rewritable(cause) and site is not None and _add(plan, site) is not None:
                if not looked:
                    looked = True
                    for other in sites_looked_at(request.call, request.tensors):
                        _add(plan, other)
                continue
            failure = failure or _refused(cause, error, plan)
            if isinstance(cause, DifferentBranchesError) and site is not None and _split(plan, site):
                continue
            if by_size:
                for function, line in by_size:
                    function.remove(line)
                    banned.add(line)
                plan.functions = [f for f in plan.functions if f.lines]
                by_size.clear()
                continue
            raise failure from error
        added = _add_sizes(plan, program, request, guards, banned)
        by_size += added
        if not added:
            if not plan.functions:
                raise failure or CaptureError(NOTHING)
            if failure is not None and export.frozen(program, request):
                raise failure
            export.check_not_frozen(program, request, guards)
            return plan, program, guards
    raise CaptureError(f"more than {_TRIES} lines ask to be rewritten")


def _split(plan: Plan, site: Site) -> bool:
    try:
        return plan.split(site)
    except RewriteError:
        return False  # what follows cannot go into the sides either; the first reason stands


def _add(plan: Plan, site: Site) -> Rewritten | None:
    try:
        return plan.add(site)
    except RewriteLineError as refusal:
        where = place(site.codes[0].co_filename, refusal.line)
        raise CaptureError(f"cannot be rewritten: {refusal}", where=where) from refusal
    except RewriteError as refusal:
        where = place(site.codes[0].co_filename, site.line)
        raise CaptureError(f"cannot be rewritten: {refusal}", where=where) from refusal


def _add_sizes(
    plan: Plan, program: torch.export.ExportedProgram, request: Request, guards: list[Guard], banned: set[int]
) -> list[tuple[Rewritten, int]]:
    """Rewrite the lines that settled a size: frozen dimensions, and conditions that not every size meets."""
    frozen = [g for g in guards if g.expression.startswith("Eq(")] if export.frozen(program, request) else []
    doubtful = {c.line for c in export.found_challenges(program, request, guards)}
    added: list[tuple[Rewritten, int]] = []
    for guard in guards:
        if guard.site is None or guard.site.line in banned or not (guard in frozen or guard.line in doubtful):
            continue
        try:
            function = plan.add(guard.site)
        except RewriteError:
            continue  # it stays as it is, and the proof asks at the sizes in doubt
        if function is not None:
            added.append((function, guard.site.line))
    return added


def _rewritable(error: BaseException) -> bool:
    """Whether the capture stumbled over a value or a size, and not over an operator."""
    text = f"{type(error).__name__}: {error}"
    known = ("data-dependent", "DataDependent", "GuardOnDataDependent", "SymInt", "SymFloat", "SymBool", "symbolic")
    return any(word in text for word in known)


def _refused(cause: BaseException, error: Exception, plan: Plan) -> CaptureError:
    where = line_of_error(cause) or getattr(error, "where", None)
    if isinstance(cause, RewriteError):
        return CaptureError(f"cannot be rewritten: {cause}", where=where or None)
    assert isinstance(error, CaptureError)
    what = error.what if plan.functions else f"{NOTHING}: {error.what}"
    return CaptureError(what, where=where or None)
