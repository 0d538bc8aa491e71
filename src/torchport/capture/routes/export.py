"""The `export` route: torch.export, then torch's own translation to ONNX."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir
import torch

from torchport.capture import autograd_functions
from torchport.capture.fitted_sizes import Fitted, Place
from torchport.capture.guards import (
    UNREAD_GUARDS,
    Challenge,
    Guard,
    UnwantedGuardError,
    challenges,
    doubtful_lines,
    is_condition,
    reads_guards,
    settled_otherwise,
    watch_guards,
)
from torchport.capture.origins import complete_metadata, line_of_error
from torchport.capture.quotients import join_inputs
from torchport.capture.reference import preserved
from torchport.capture.repairs import WITH_SIZES, for_failed_capture, for_failed_translation, repaired
from torchport.capture.repairs.models import WRITTEN_OUT, computed, kept, mean_zero, weights_alone
from torchport.capture.repairs.repair import CaptureRepair
from torchport.capture.repairs.value_dependent import weights_given_later
from torchport.capture.routes.route import Captured, Request
from torchport.capture.structure import FlatModule
from torchport.errors import (
    CaptureError,
    FixedDimensionError,
    RefusedError,
    SettledOtherwiseError,
    TimeLimitError,
    TorchportError,
    first_line,
)
from torchport.operators import composition, library, lowering, symbolic
from torchport.operators.lowering import Lowerings
from torchport.process import silence
from torchport.results import Dim
from torchport.torch_compat import parts
from torchport.torch_compat.error_texts import TRANSLATED, UNTRANSLATED, says
from torchport.torch_compat.exporter import translation_patches, unguarded
from torchport.torch_compat.sampled_sizes import sampled_sizes
from torchport.torch_compat.shape_env import unsolved

LOWEST_OPSET = 18  # torch's translations are written for this one; below, the graph is converted
FIXED_NUMBER = re.compile(r"Eq\((?!.*Mod\().*, -?\d+\)")  # a guard by which a size, or a number made of sizes, is one
ON_VALUES = "the graph depends on a tensor's value"
FITTED = "sizes that were numbers by formulas, from captures at several sizes"
CAPTURED_AGAIN = "the control flow of a program captured again"
_FURTHER = (1, 2, 3, 16, 33, 65, 129, 257, 513, 1025)  # sizes beside which conditions are often written
HIGHEST_OPSET = 23  # torch 2.13 converts its own translations up to this one


def capture(request: Request) -> Captured:
    repairs: list[str] = []
    with silence(verbose=request.verbose):
        program, guards = (request.program, []) if request.program is not None else _captured(request, repairs)
        check_not_frozen(program, request, guards)
        if request.judged:
            _check_conditions(program, request, guards)
        try:
            model = translate(program, request, repairs)
        except CaptureError:
            if request.program is None or not _has_control_flow(program):
                raise
            repairs[:] = [CAPTURED_AGAIN]
            program, guards = exported(request, repairs)
            model = translate(program, request, repairs)
    challenges = (*found_challenges(program, request, guards), *_further_sizes(request))
    return Captured(model, challenges=challenges, repairs=tuple(repairs))


def _further_sizes(request: Request) -> Iterator[Challenge]:
    """Sizes to prove a program at that was fitted: conditions on sizes that were numbers have left no guard."""
    for place, dim in _places(request).items() if request.elsewhere else ():
        size = dim.root_size(place.size(request.tensors)) or 1
        others = (*_FURTHER, 2 * size, 4 * size)
        yield from (Challenge({dim.root: n}, "") for n in others if dim.allows(n) and n != size)


def _captured(request: Request, repairs: list[str]) -> tuple[torch.export.ExportedProgram, list[Guard]]:
    if not request.elsewhere:
        return exported(request, repairs)
    given = [request.tensors, *request.elsewhere]
    programs = [_at_fixed_sizes(dataclasses.replace(request, tensors=tensors, dims={}), repairs) for tensors in given]
    fitted = Fitted(programs, given, list(_places(request)))
    repairs[:] = [*dict.fromkeys(repairs), FITTED]
    again = dataclasses.replace(request, call=request.call.on(fitted), elsewhere=())
    return exported(again, repairs, module=fitted)


def _at_fixed_sizes(request: Request, repairs: list[str]) -> torch.export.ExportedProgram:
    with preserved(request.call.target):
        return exported(request, repairs)[0]


def _places(request: Request) -> dict[Place, Dim]:
    """An axis for each dimension that varies."""
    found: dict[str, tuple[Place, Dim]] = {}
    for index, name in enumerate(request.call.names):
        for axis, dim in request.dims.get(name, {}).items():
            found.setdefault(dim.root, (Place(index, axis), dim))
    return dict(found.values())


def _has_control_flow(program: torch.export.ExportedProgram) -> bool:
    """Check that a program has operators that hold graphs, as torch.cond and map: captured again, they are our own."""
    return any(isinstance(part, torch.fx.GraphModule) for part in program.graph_module.children())


def mapped(
    program: torch.export.ExportedProgram,
    opset: int,
    given: Mapping[Any, Callable[..., Any]],
    lowerings: Lowerings,
) -> tuple[torch.export.ExportedProgram, dict[Any, Callable[..., Any]]]:
    """The program with what is composed of other operators replaced, and the translations for the rest of it.

    The user's come before ours: those given for this export, then symbolics and compositions that were registered, then
    what operators defined once say of themselves.
    """
    own = {**library.translations(), **library.compositions()}
    symbolics = symbolic.translations(opset, own)
    users = {**lowerings.translations(), **symbolics, **autograd_functions.translations(), **given}
    ours = {op: f for op, f in library.compositions().items() if op not in users}
    traced = {op: f for op, f in lowering.compositions().items() if op not in users}
    table = {**ours, **traced, **composition.compositions()}
    program = composition.composed(program, table)
    real = library.file("complex_numbers").in_parts(program, {*users, *composition.compositions()})
    program = program if real is program else composition.composed(real, table)
    return program, {**library.translations(), **_own_control_flow(program), **users}


def _own_control_flow(program: torch.export.ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Return the translations of the choice and the loop that control flow became; none if the program has none."""
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = {str(node.target) for graph in graphs for node in graph.nodes}
    if not targets & {"torchport_choice", "torchport_loop"}:
        return {}
    from torchport.torch_compat.higher_order import translations

    return translations()


def translate(program: torch.export.ExportedProgram, request: Request, repairs: list[str]) -> ir.Model:
    """torch's own translation; a failure with a known cause is mended and tried again."""
    opset = min(max(request.opset, LOWEST_OPSET), HIGHEST_OPSET)
    alone = computed(program, library.compositions())
    if alone is not None:
        program = alone
        repairs.append(weights_alone.name)
    if kept(program):
        repairs.append(WRITTEN_OUT)
    for one in library.broken_files():
        parts.note(f"feature off: operators of {one.name}; it does not load: {one.reason}")
    lowerings = Lowerings()
    try:
        with unguarded(), sampled_sizes():
            program, table = mapped(program, opset, request.translations, lowerings)
    except NotImplementedError as error:  # a composition that says what it cannot do
        raise CaptureError(first_line(error)) from error
    while True:
        try:
            with translation_patches(), sampled_sizes():
                translated = torch.onnx.export(
                    program,
                    dynamo=True,
                    opset_version=opset,
                    optimize=request.fold_constants and not request.weights_apart,
                    custom_translation_table=table,
                    verbose=request.verbose,
                )
        except Exception as error:
            mended = for_failed_translation(program, error, repairs)
            if mended is None:
                raise _translation_error(error, program) from error
            program = mended
        else:
            assert translated is not None  # dynamo=True always gives a program back
            complete_metadata(translated.model, translated.exported_program or program)
            mean_zero(translated.model)
            translated.model.functions.update(lowerings.bodies)
            join_inputs(translated.model, request.call.names, request.splits)
            return translated.model


def doubts(request: Request) -> tuple[Challenge, ...]:
    """Sizes at which the model may take another way, for routes that do not look at sizes themselves."""
    try:
        with silence():
            program, guards = exported(request, [])
    except CaptureError:
        return ()
    return found_challenges(program, request, guards)


def exported(
    request: Request,
    repairs: list[str],
    known: list[CaptureRepair] | None = None,
    module: torch.nn.Module | None = None,
) -> tuple[torch.export.ExportedProgram, list[Guard]]:
    """torch.export's program, with the guards it made; a failure with a known cause is repaired and tried again.

    Args:
        request: what to capture.
        repairs: the names of the repairs that had something to do join it.
        known: repairs that an earlier capture of the model asked for; those that this one asks for join it. If not
            given, those of a capture at other sizes, which are dropped where they do not help.
        module: the module to capture; that of the request if not given.
    """
    forgets = known is None and bool(request.learned)
    known = list(request.learned) if known is None else known
    refused: list[CaptureRepair] = []  # repairs that did not help
    frozen: tuple[torch.export.ExportedProgram, list[Guard], list[str]] | None = None
    early: CaptureRepair | None = None  # that was not asked for by a whole capture, but by a guard that fixes a number
    calls = autograd_functions.Calls()
    while True:
        ends = frozen is None and for_failed_capture(FixedDimensionError(""), (*known, *refused)) is not None
        try:
            with (
                watch_guards(FIXED_NUMBER if ends else None) as guards,
                weights_given_later(request.weights_apart),
                repaired(request.call.target, (*WITH_SIZES, *known)) as applied,
                autograd_functions.as_operators(calls) as used,
            ):
                program = _torch_export(request, FlatModule(request.call) if module is None else module)
            applied += used
        except TimeLimitError:
            raise
        except Exception as error:
            if calls.needed:
                calls.record(lambda: _run(request))
                continue
            if frozen is not None:  # the repair did not go well; what it should have bettered may be good enough
                program, guards, applied = frozen
                repairs += applied
                return program, guards
            unwanted = _unwanted(error)
            repair = for_failed_capture(unwanted or error, (*known, *refused))
            if unwanted is not None:
                early = repair
            elif repair is None and early is not None:  # it did not go well: the number is fixed
                known.remove(early)
                refused.append(early)
                early = None
                continue
            if repair is None and forgets:
                forgets = False
                known.clear()
                continue
            if repair is None:
                advice = error.next_step if isinstance(error, TorchportError) else None
                raise CaptureError(_reason(error), where=line_of_error(error) or None, next_step=advice) from error
            known.append(repair)
        else:
            if request.dims and not guards and not reads_guards():
                parts.note(UNREAD_GUARDS)
            again = _repair_of_frozen(program, request, guards, (*known, *refused))
            if again is None:
                request.learned[:] = known
                repairs += applied
                return program, guards
            known.append(again)
            frozen = program, guards, applied


def _unwanted(error: BaseException) -> UnwantedGuardError | None:
    """The guard at which a capture ended, if it did; what is on the way up may have chained another error to it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, UnwantedGuardError):
        seen = seen.__cause__ or seen.__context__
    return seen


def _run(request: Request) -> None:
    """Run the model on the tensors of the capture, and leave it as it was."""
    with preserved(request.call.target):
        request.call(*(tensor.clone() for tensor in request.tensors))


def _repair_of_frozen(
    program: torch.export.ExportedProgram, request: Request, guards: list[Guard], known: tuple[Any, ...]
) -> Any | None:
    """A repair for a program in which a dimension that should vary, or a number computed from it, got one value."""
    try:
        check_not_frozen(program, request, guards)
        for guard in guards:
            if FIXED_NUMBER.fullmatch(guard.expression):
                raise FixedDimensionError(f"{guard.expression}: a number was fixed to the example's", where=guard.line)
    except FixedDimensionError as error:
        return for_failed_capture(error, known)
    return None


def _torch_export(request: Request, module: torch.nn.Module) -> torch.export.ExportedProgram:
    shapes = tuple(_hints(request.dims.get(name, {})) for name in request.call.names)
    # Dim.AUTO, because named dims raise on any relation between two dims; what it freezes is found right after.
    with unsolved(), sampled_sizes():
        return torch.export.export(module, request.tensors, dynamic_shapes=(shapes,) if shapes else None, strict=False)


def _hints(axes: dict[int, Dim]) -> dict[int, Any]:
    return {axis: _hint(dim) for axis, dim in axes.items()}


def _hint(dim: Dim) -> Any:
    if dim.max is None:
        return torch.export.Dim.AUTO
    return torch.export.Dim.AUTO(max=dim.size(dim.max))


def check_not_frozen(program: torch.export.ExportedProgram, request: Request, guards: list[Guard]) -> None:
    fixed = frozen(program, request)
    if not fixed:
        return
    name, size, place = fixed[0]
    lines = [g.line for g in guards if g.line and g.expression.startswith("Eq(")]
    raise FixedDimensionError(
        f"dimension '{name}' ({place}) was fixed to {size} by the capture",
        where=lines[-1] if lines else None,  # the last one fixed it for good
        next_step="compute with x.shape[i] instead of int(...) of it, or leave the dimension out",
    )


def _check_conditions(program: torch.export.ExportedProgram, request: Request, guards: list[Guard]) -> None:
    """Check that a capture at larger sizes took the sides of conditions that the example takes."""
    known = symbols_of_dims(program, request)
    other = settled_otherwise(guards, *known)
    if other:
        doubtful = doubtful_lines(guards, *known)
        asked = [guard for guard in guards if guard.line in doubtful and is_condition(guard)]
        request.conditions[:] = [guard.site for guard in (*other, *asked) if guard.site is not None]
        raise SettledOtherwiseError(
            "a condition on sizes was settled by larger sizes, and the example answers it otherwise",
            where=other[0].line,
        )


def frozen(program: torch.export.ExportedProgram, request: Request) -> list[tuple[str, str, str]]:
    """Dimensions that should vary and got one size: name, size and place of each."""
    return [
        (dim.name, str(value.shape[axis]), f"{name} axis {request.axis(name, axis)}")
        for name, value in zip(request.call.names, _input_values(program), strict=True)
        for axis, dim in request.dims.get(name, {}).items()
        if str(value.shape[axis]).isdecimal()  # a symbol that was given one value is still a SymInt, but shows it
    ]


def found_challenges(
    program: torch.export.ExportedProgram, request: Request, guards: list[Guard]
) -> tuple[Challenge, ...]:
    """Sizes at which a guard does not hold; ranges that the capture narrowed count as guards."""
    symbols, example = symbols_of_dims(program, request)
    ranges = [
        Guard(f"{symbol} <= {bounds.upper}", "")
        for symbol, bounds in program.range_constraints.items()
        if str(symbol) in symbols and str(bounds.upper).isdecimal()
    ]
    return challenges([*guards, *ranges], symbols, example)


def symbols_of_dims(program: torch.export.ExportedProgram, request: Request) -> tuple[dict[str, Dim], dict[str, int]]:
    """Torch's symbols, each with the dimension it stands for, and the example's size of each root dimension."""
    symbols: dict[str, Dim] = {}
    example: dict[str, int] = {}
    for name, tensor, value in zip(request.call.names, request.call.tensors, _input_values(program), strict=True):
        for axis, dim in request.dims.get(name, {}).items():
            symbol, root = str(value.shape[axis]), dim.root_size(tensor.shape[axis])
            if symbol.isidentifier() and root is not None:
                symbols.setdefault(symbol, dim)
                example.setdefault(dim.root, root)
    return symbols, example


def _input_values(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    """The fake tensors that stand for the inputs, in order."""
    inputs = set(program.graph_signature.user_inputs)
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in inputs]
    return [n.meta["val"] for n in placeholders if isinstance(n.meta.get("val"), torch.Tensor)]


def _reason(error: Exception) -> str:
    if says(error, "data-dependent"):
        return ON_VALUES
    if says(error, "value of output"):  # the message names the operator alone
        return f"{first_line(error)} gives what only a tensor's values tell, and is not known to the capture"
    if says(error, "size as array"):
        return "a tensor's values leave torch by .numpy(), and what is computed from them is fixed"
    return f"torch.export: {first_line(error)}"


def _translation_error(error: Exception, program: torch.export.ExportedProgram) -> RefusedError:
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    if isinstance(root, RefusedError):  # a translation of ours that says all there is to say
        return root
    text = str(error) + str(error.__cause__ or "")
    operators = list(dict.fromkeys(UNTRANSLATED.findall(text)))
    if operators:
        return CaptureError(
            f"no ONNX translation for {', '.join(operators)}",
            where=_line_of_operator(program, operators[0]) or None,
            next_step=_how_to_map(operators[0]),
        )
    target = TRANSLATED.search(text)
    what = f"translating {target[1]} to ONNX" if target else "translation to ONNX"
    where = line_of_error(root) or (_line_of_operator(program, target[1]) if target else "")
    advice = root.next_step if isinstance(root, TorchportError) else None
    return CaptureError(f"{what}: {first_line(root)}", where=where or None, next_step=advice)


def _how_to_map(operator: str) -> str:
    """What to do about an operator without a mapping: ``aten.asinh.default`` as torch names it."""
    from torchport.operators import catalog

    space, own = operator.split(".")[:2]
    close = catalog.alternatives(f"{space}::{own}") if space == "aten" else ()
    instead = f"close to it and mapped: {', '.join(close)}; or " if close else ""
    lowering = "" if space == "aten" else f', or say all of it with tp.operator("{space}::{own}")'
    return f'{instead}map it with @tp.symbolic("{space}::{own}") or @tp.composition{lowering}'


def _line_of_operator(program: torch.export.ExportedProgram, operator: str) -> str:
    from torchport.capture.origins import line_of_stack

    for node in program.graph.nodes:
        if str(node.target).startswith(operator):
            return line_of_stack(node.meta.get("stack_trace") or "")
    return ""
