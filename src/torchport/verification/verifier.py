"""Run the same cases in PyTorch and in the ONNX model, and record how the outputs compare.

Nothing here depends on how the ONNX model was made: a verifier gets two functions and the example inputs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np

from torchport import process
from torchport.engines.registry import DEFAULT
from torchport.errors import EngineError, RandomModelError
from torchport.numerics.check import check_output
from torchport.numerics.streaming import pieces
from torchport.numerics.tolerance import Requested, flat_parts, tolerance
from torchport.results import Case, Dim, Finding, OutputCheck, Proof, Verdict
from torchport.tensors import Array
from torchport.verification.bounds import multiples, smallest_step
from torchport.verification.cases import (
    Budget,
    branch_cases,
    is_batch,
    is_heavy,
    padding_cases,
    pair_sizes,
    roots,
    shown_role,
    size_candidates,
    valid_value_cases,
    value_cases,
)
from torchport.verification.values import (
    CaseSpec,
    ProofInput,
    Values,
    example_sizes,
    ladder,
    nudge_of,
    nudged,
    sample,
    with_relations,
)

_NUMBER = re.compile(r"\d+")

T = TypeVar("T")

Run = Callable[[Sequence[Array]], list[Array]]
Candidate = Callable[[Mapping[str, Array]], Mapping[str, Array]]

_NUDGES = 6  # slightly other inputs, to see how far each number of an output moves
_MOST_NUDGES = 24  # where few numbers are left that did not move
_FEW = 0.25  # of the numbers that are off
_MOST_WRONG = 2  # cases, after which further ones are not examined for being ill-conditioned, which takes many runs
_MOVES = 4  # times the movement of a number that its error may be
_CHANCE = 1e-3  # of the numbers that are off may by chance have moved less
_MOVES_BY_CHANCE = 16  # times the movement of such a number that its error may be
_KEEP_BYTES = 32 << 20  # outputs up to this size are kept for the next attempt
_MOST_REFUSED = 12  # sizes of a dimension
_MOST_REFUSED_COSTLY = 4
_SMALL = 16  # numbers of an input that may be an option rather than data
_VALUES = 2  # cases with other values than the example's that a proof should have


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The error that the PyTorch model raised for inputs outside its domain."""

    message: str


@dataclasses.dataclass(frozen=True)
class DimensionReport:
    """The sizes of one dynamic dimension that the PyTorch model accepted and refused, and the step between them."""

    name: str
    accepted: tuple[int, ...]
    refused: tuple[int, ...]
    message: str = ""
    step: int = 1

    @property
    def refused_sizes(self) -> str:
        shown = ", ".join(map(str, self.refused[:4]))
        return shown + (", …" if len(self.refused) > 4 else "")

    @property
    def multiples(self) -> str:
        return f"; it runs at multiples of {self.step}" if self.step > 1 else ""


class Verifier:
    """Holds the cases and PyTorch's outputs; `verify` runs one ONNX model after the other on them.

    Args:
        reference: the PyTorch model, arrays in and out by position. May raise on inputs it does not accept.
        inputs: example inputs with the axes that may vary.
        output_names: names of the outputs in the reference's order.
        first: the reference's outputs for the example.
        precision: the coarsest float dtype the model computes in.
        requested: tolerances that the caller set.
        examples: further sets of input arrays to try as they are.
        engine: name of the engine that runs the candidates.
        seconds: the time the reference took for the example.
        precise: the reference in float64, to see how far off its own rounding is.
        called: the name of the reference in the proof.
    """

    def __init__(
        self,
        reference: Run,
        inputs: Sequence[ProofInput],
        output_names: Sequence[str],
        *,
        first: Sequence[Array],
        precision: str | None = None,
        requested: Requested | None = None,
        examples: Sequence[Sequence[Array]] = (),
        engine: str = DEFAULT,
        seconds: float = 0.0,
        precise: Run | None = None,
        called: str = "PyTorch",
    ) -> None:
        self._reference = reference
        self._precise = precise
        self._called = called
        self._inputs = with_relations(inputs)
        self._output_names = tuple(output_names)
        self._precision = precision
        self._requested = requested or Requested()
        self._examples = tuple(examples)
        self._engine = engine
        self._heavy = is_heavy(self._inputs)
        self._budget = Budget.of(self._inputs, first, seconds)
        self._costly = self._budget.costly
        self._outputs: dict[str, list[Array] | Refusal] = {}
        self._planned: list[CaseSpec] | None = None
        self._excuses = True
        self._wrong = 0  # cases of this proof
        self._has_integers = any(i.example.dtype.kind in "iu" for i in self._inputs)
        self._kinds: dict[tuple[str, int], Values] = {}  # of values that PyTorch accepts at a size
        self._lowest = 0  # the first kind on the ladder that PyTorch accepts at the example's sizes, once settled
        self._settled = False
        self._errors_of_sizes: set[str] = set()  # without their numbers
        self._untried: list[str] = []  # sizes beyond the budget
        self.dimensions: list[DimensionReport] = []
        self.observed: list[tuple[dict[str, int], list[tuple[int, ...]]]] = []
        self._first = CaseSpec("example", "example", 0, example_sizes(self._inputs))
        self._remember(self._first, list(first))

    @property
    def is_costly(self) -> bool:
        """One run takes so long that few cases must do."""
        return self._costly

    def check_repeatable(self) -> None:
        """Raise RandomModelError if the model gives other outputs for the example than the first time."""
        spec = self._cheapest() if self._costly else self._first
        first = self._output(spec)
        again = self._run(self._arrays(spec))
        if isinstance(first, Refusal) or isinstance(again, Refusal) or len(first) != len(again):
            raise RandomModelError("the model answers the example once, and not again", where=repr(again)[:200])
        checks = self._compare(first, again)
        wrong = [c for c in checks if not c.ok]
        if wrong:
            raise RandomModelError(
                "the model answers differently each time it is asked the same",
                where=f"{wrong[0].name}: {wrong[0].problem}",
                next_step="export it in eval mode, or take random numbers as an input instead of drawing them inside",
            )

    def _cheapest(self) -> CaseSpec:
        """The case with the smallest inputs that PyTorch accepts."""
        accepted = [s for s in self._specs() if not isinstance(self._output(s), Refusal)]
        return min(accepted, key=lambda s: sum(a.size for a in self._arrays(s)))

    def plan(self) -> list[DimensionReport]:
        """Find which sizes PyTorch accepts, before anything is captured."""
        self._specs()
        return self.dimensions

    def verify(
        self,
        candidate: Candidate,
        *,
        branch_rounds: int = 0,
        excuses: bool = True,
        sizes: Sequence[Mapping[str, int]] = (),
        brief: bool = False,
    ) -> Proof:
        """Run every case in `candidate`.

        Args:
            candidate: the ONNX model, arrays in and out by name.
            branch_rounds: how many further random values to try, where the capture may have frozen a branch.
            excuses: a wrong output may be excused as ill-conditioned. Not where a branch is in doubt.
            sizes: further sizes to try, at which the capture is in doubt.
            brief: run nothing else where the outputs for the example are wrong.
        """
        self._excuses, self._wrong = excuses, 0
        specs = list(self._specs())
        example = example_sizes(self._inputs)
        tried = [s.sizes for s in specs]
        doubted = [s for s in sizes if {**example, **s} not in tried and self._affordable({**example, **s})]
        specs += [self._at(example, s, f"doubt {n}", 5) for n, s in enumerate(doubted, start=1)]
        if branch_rounds:
            specs += branch_cases(example, branch_rounds)
        cases = self._cases(specs[0], candidate)
        findings = self._findings()
        if brief and cases[0].verdict == "fail":
            findings.append(Finding("the outputs for the example are wrong: nothing else was run"))
        else:
            cases += [case for s in specs[1:] for case in self._cases(s, candidate)]
            for number, arrays in enumerate(self._examples, start=2):
                cases.append(self._case(CaseSpec(f"example {number}", "example", 0, {}), list(arrays), candidate))
        shown = self._requested.shown(self._output_names)
        return Proof(tuple(cases), tuple(findings), self._engine, self._called, shown)

    def _cases(self, spec: CaseSpec, candidate: Candidate) -> list[Case]:
        """Run a case; where the engine fails, run it again with the example's own values in small inputs.

        A few numbers that stay as they are may be an option of an operator, of which the engine takes some values only.
        Where it fails for others, nobody gets a wrong output.
        """
        case = self._case(spec, self._arrays(spec), candidate)
        small = tuple(i.name for i in self._inputs if not i.dims and i.example.size <= _SMALL and not i.is_mask)
        if case.verdict != "error" or spec.values == "example" or not 0 < len(small) < len(self._inputs):
            return [case]
        again = dataclasses.replace(spec, label=f"{spec.label}, kept", kept=small)
        kept = self._case(again, self._arrays(again), candidate)
        if kept.verdict not in ("pass", "ill-conditioned"):
            return [case]
        note = f"the engine fails for values drawn for {', '.join(small)}: {case.note}"
        return [dataclasses.replace(case, verdict="outside", note=note), kept]

    def at_other_sizes(self) -> Iterator[list[Array]]:
        """Inputs that PyTorch accepts, with every dimension that can vary at another size than the example's."""
        example = example_sizes(self._inputs)
        moved = {d.name: [s for s in d.accepted if s > 1 and s != example[d.name]] for d in self.dimensions}
        for choose in (max, min):
            arrays = self.at_sizes({name: choose(accepted) for name, accepted in moved.items() if accepted})
            if arrays is not None:
                yield arrays

    def at_sizes(self, sizes: Mapping[str, int]) -> list[Array] | None:
        """Inputs at other sizes than the example's; None without sizes, and if PyTorch refuses them."""
        spec = self._at(example_sizes(self._inputs), sizes, "capture", 7)
        if not sizes or not self._allows(spec.sizes) or isinstance(self._output(spec), Refusal):
            return None
        return self._arrays(spec)

    def affords(self, sizes: Mapping[str, int]) -> bool:
        """Check that a run at other sizes than the example's is within the budget."""
        return self._allows({**example_sizes(self._inputs), **sizes})

    def run_at(self, candidate: Candidate, sizes: Mapping[str, int]) -> Case:
        """Run one more case, at sizes that the search for a bound needs."""
        spec, self._wrong = self._at(example_sizes(self._inputs), sizes, "bound", 8), 0
        return self._case(spec, self._arrays(spec), candidate)

    def replay(self, watch: Callable[[], AbstractContextManager[T]], *, branch_rounds: int) -> list[T]:
        """Run PyTorch on every case again, each under a watch, and return what the watches saw."""
        specs = [*self._specs(), *branch_cases(self._first.sizes, branch_rounds)]
        seen: list[T] = []
        for arrays in [*(self._arrays(s) for s in specs), *(list(e) for e in self._examples)]:
            with watch() as watched:
                self._run(arrays)
            seen.append(watched)
        return seen

    def _findings(self) -> list[Finding]:
        sizes = "one other size" if self._budget.most_sizes == 1 else "two other sizes"
        few = f"one run takes long: each dimension was tried at {sizes}, and at no further values"
        return (
            [Finding(few)] * self._costly
            + [Finding(f"not tried, too large beside the example: {sizes}") for sizes in self._untried]
            + [
                Finding(f"{self._called} itself refuses {d.name} = {d.refused_sizes}: {d.message}{d.multiples}")
                for d in self.dimensions
                if d.refused
            ]
        )

    # --- the plan -------------------------------------------------------------------------------------------------

    def _specs(self) -> list[CaseSpec]:
        """The plan is made once: which sizes PyTorch accepts does not depend on the candidate."""
        if self._planned is None:
            sizes = example_sizes(self._inputs)
            by_size = self._size_cases(sizes)
            one = {d.name: 1 for d in self.dimensions if 1 in d.accepted and is_batch(d.name, self._inputs)}
            by_value = [] if self._costly and by_size else value_cases(self._inputs, {**sizes, **one})
            by_value += self._valid_values(by_value, sizes)
            padded = padding_cases(self._inputs, {**sizes, **self._several_rows(sizes)})
            self._planned = [self._first, *by_value, *padded, *by_size]
        return self._planned

    def _valid_values(self, by_value: Sequence[CaseSpec], sizes: Mapping[str, int]) -> list[CaseSpec]:
        """More cases where PyTorch refuses nearly all values that were drawn, until there are enough."""
        missing = _VALUES - sum(not isinstance(self._output(s), Refusal) for s in by_value) if by_value else 0
        further: list[CaseSpec] = []
        for spec in valid_value_cases(self._inputs, sizes) if missing > 0 else ():
            if len(further) < missing and not isinstance(self._output(spec), Refusal):
                further.append(spec)
        return further

    def _several_rows(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Batches of more than one row, where PyTorch was seen to take them: one row shows little padding."""
        larger = {d.name: max(d.accepted, default=0) for d in self.dimensions}
        return {n: s for n, s in larger.items() if is_batch(n, self._inputs) and s > sizes[n]}

    def _size_cases(self, sizes: dict[str, int]) -> list[CaseSpec]:
        found: dict[str, dict[str, int]] = {}
        specs: list[CaseSpec] = []
        for name, dim in roots(self._inputs).items():
            close_by = self._heavy and is_batch(name, self._inputs)
            options = size_candidates(dim, sizes[name], list(sizes.values()), heavy=close_by)
            found[name] = self._accepted_sizes(dim, options, sizes)
            specs += [
                self._at(sizes, {name: size}, f"{name} {shown_role(role, size)}", seed)
                for seed, (role, size) in enumerate(found[name].items(), start=1)
            ]
        # A dimension that PyTorch only lets go to 1 was broadcast, not moved.
        moved = {"neighbor", "prime", *(["smallest"] if self._budget.most_sizes == 1 else [])}
        joint = self._joint_cases(sizes, [n for n, f in found.items() if not f.keys() & moved])
        self._count_examples(sizes)
        pairs = [
            self._at(sizes, both, "pair " + "×".join(both), 3)
            for both in pair_sizes({n: f for n, f in found.items() if f})
        ][: self._budget.most_sizes]
        return specs + joint + pairs

    def _accepted_sizes(self, dim: Dim, candidates: dict[str, list[int]], sizes: dict[str, int]) -> dict[str, int]:
        """For each role the first size PyTorch accepts; multiples, where it refuses the sizes close by."""
        name = dim.root
        accepted: dict[str, int] = {}
        refused: dict[int, str] = {}
        self._try_sizes(name, candidates, sizes, accepted, refused)
        enough = accepted.keys() & {"neighbor", "prime"} or (accepted and self._budget.most_sizes == 1)
        moved_by = math.gcd(sizes[name], *accepted.values()) if enough else sizes[name]
        in_steps = refused and (not enough or any(size % moved_by for size in refused))
        step = self._step(dim, sizes, moved_by) if in_steps else 1
        if step > 1:
            self._try_sizes(name, multiples(dim, sizes[name], step), sizes, accepted, {})
        message = next(iter(refused.values()), "")
        self.dimensions.append(DimensionReport(name, tuple(accepted.values()), tuple(refused), message, step))
        return accepted

    def _step(self, dim: Dim, sizes: dict[str, int], largest: int) -> int:
        """Search the step by which a dimension moves, a divisor of `largest`."""

        def accepts(size: int) -> bool:
            moved = {**sizes, dim.root: size}
            return (
                dim.allows(size)
                and self._affordable(moved)
                and not self._refused_at(sizes, dim.root, size, f"{dim.root} {size}", seed=1)
            )

        return smallest_step(sizes[dim.root], accepts, largest)

    def _try_sizes(
        self,
        name: str,
        candidates: dict[str, list[int]],
        sizes: dict[str, int],
        accepted: dict[str, int],
        refused: dict[int, str],
    ) -> None:
        """Fill in the first size of each role that PyTorch accepts, and the sizes that it refuses."""
        for role, options in candidates.items():
            if len(accepted) >= self._budget.most_sizes:
                break
            for size in options:
                if size in refused or size in accepted.values() or not self._affordable({**sizes, name: size}):
                    continue
                label = f"{name} {shown_role(role, size)}"
                message = self._refused_at(sizes, name, size, label, seed=len(accepted) + 1)
                if not message:
                    accepted[role] = size
                    break
                refused[size] = message
                if len(refused) >= (_MOST_REFUSED_COSTLY if self._costly else _MOST_REFUSED):
                    break

    def _refused_at(self, sizes: Mapping[str, int], name: str, size: int, label: str, *, seed: int) -> str:
        """Find values that PyTorch accepts at a size. Returns its error if it refuses all kinds, of the last one.

        An error that another size raised whatever the values is one of sizes: no other values are tried then.
        """
        errors: list[str] = []
        for kind in self._ladder():
            self._kinds[name, size] = kind
            output = self._output(self._at(sizes, {name: size}, label, seed))
            if not isinstance(output, Refusal):
                return ""
            errors.append(output.message)
            if not self._has_integers and _NUMBER.sub("", output.message) in self._errors_of_sizes:
                return output.message
        kinds = {_NUMBER.sub("", error) for error in errors}
        self._errors_of_sizes |= kinds if len(kinds) == 1 else set()
        return errors[-1]

    def _ladder(self) -> Iterator[Values]:
        """The kinds of values to try at another size, from the first that PyTorch accepts at the example's own sizes.

        The example's own values come last in any case: a size is refused only if it is refused with these.
        """
        kinds = ladder(self._inputs)
        yield kinds[self._lowest]
        if not self._settled:
            own = (self._output(CaseSpec(kind, kind, 1, self._first.sizes)) for kind in kinds)
            accepted = (n for n, output in enumerate(own) if not isinstance(output, Refusal))
            first, self._lowest, self._settled = self._lowest, next(accepted, len(kinds) - 1), True
            yield from kinds[max(self._lowest, first + 1) :]
        else:
            yield from kinds[self._lowest + 1 :]

    def _joint_cases(self, sizes: dict[str, int], stuck: list[str]) -> list[CaseSpec]:
        """Dimensions that cannot move alone may move together: x's batch and h's batch under two names.

        All of them, else those of one size: another one that cannot move at all would hold them back. Else two
        of which one is a multiple of the other, as a picture's height is of its latent's.
        """
        alike = [[n for n in stuck if sizes[n] == size] for size in dict.fromkeys(sizes[n] for n in stuck)]
        specs = self._moved_together(sizes, stuck)
        specs = specs or [spec for group in alike for spec in self._moved_together(sizes, group)]
        specs = specs or [spec for name in stuck for spec in self._scaled_with_another(sizes, name)]
        for n in sizes:
            self._count_accepted(n, [s.sizes[n] for s in specs if s.sizes[n] != sizes[n]])
        return specs

    def _moved_together(self, sizes: dict[str, int], group: list[str]) -> list[CaseSpec]:
        specs: list[CaseSpec] = []
        for change in (1, 3, 4, 8, 32) if len(group) > 1 else ():
            moved = {n: sizes[n] + change for n in group}
            if len(specs) < 2 and self._affordable({**sizes, **moved}):
                spec = self._at(sizes, moved, f"together +{change}", 1)
                specs += [spec] if not isinstance(self._output(spec), Refusal) else []
        return specs

    def _scaled_with_another(self, sizes: dict[str, int], name: str) -> list[CaseSpec]:
        """Move a dimension with the first one that moves with it, of those that are multiples of it or it of them."""
        one = sizes[name]
        others = [n for n, s in sizes.items() if min(one, s) > 1 and one != s and max(one, s) % min(one, s) == 0]
        for pair in ((name, n) for n in others):
            specs: list[CaseSpec] = []
            for times, parts in ((2, 1), (3, 2), (3, 1), (1, 2)):
                moved = {n: sizes[n] * times // parts for n in pair}
                whole = all(sizes[n] * times % parts == 0 for n in pair)
                if whole and len(specs) < 2 and self._affordable({**sizes, **moved}):
                    spec = self._at(sizes, moved, f"{'×'.join(pair)} by {times}/{parts}", 1)
                    specs += [spec] if not isinstance(self._output(spec), Refusal) else []
            if specs:
                return specs
        return []

    def _count_examples(self, sizes: Mapping[str, int]) -> None:
        """Sizes of the caller's further examples are sizes that the model accepts."""
        for arrays in self._examples:
            given = [dataclasses.replace(i, example=a) for i, a in zip(self._inputs, arrays, strict=True)]
            for name, size in example_sizes(given).items():
                self._count_accepted(name, [size] if size != sizes[name] else [])

    def _count_accepted(self, name: str, sizes: Sequence[int]) -> None:
        index = next(i for i, d in enumerate(self.dimensions) if d.name == name)
        accepted = tuple(dict.fromkeys((*self.dimensions[index].accepted, *sizes)))
        self.dimensions[index] = dataclasses.replace(self.dimensions[index], accepted=accepted)

    def _at(self, sizes: Mapping[str, int], moved: Mapping[str, int], label: str, seed: int) -> CaseSpec:
        kinds = ladder(self._inputs)
        known = [kinds.index(self._kinds[pair]) for pair in moved.items() if pair in self._kinds]
        return CaseSpec(label, kinds[max(known, default=self._lowest)], seed, {**sizes, **moved})

    def _allows(self, sizes: Mapping[str, int]) -> bool:
        """Check that a run at these sizes is within the budget."""
        return self._budget.allows(sum(int(np.prod(i.shape(sizes), dtype=float)) for i in self._inputs))

    def _affordable(self, sizes: Mapping[str, int]) -> bool:
        """Check the same, and note the sizes if they are not tried."""
        if self._allows(sizes):
            return True
        text = ", ".join(f"{n}={s}" for n, s in sizes.items() if s != self._first.sizes[n])
        self._untried += [text] if text not in self._untried else []
        return False

    # --- one case -------------------------------------------------------------------------------------------------

    def _arrays(self, spec: CaseSpec) -> list[Array]:
        return [sample(i, spec) for i in self._inputs]

    def _output(self, spec: CaseSpec) -> list[Array] | Refusal:
        known = self._outputs.get(_key(spec))
        return self._remember(spec, self._run(self._arrays(spec))) if known is None else known

    def _remember(self, spec: CaseSpec, output: list[Array] | Refusal) -> list[Array] | Refusal:
        """Keep outputs for the next candidate, unless they are so large that another run is better."""
        if not isinstance(output, Refusal):
            self.observed.append((dict(spec.sizes), [a.shape for a in output]))
        if isinstance(output, Refusal) or sum(a.nbytes for a in output) <= _KEEP_BYTES:
            self._outputs[_key(spec)] = output
        return output

    def _run(self, arrays: Sequence[Array], how: Run | None = None) -> list[Array] | Refusal:
        try:
            return (how or self._reference)(arrays)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the model raises, it is its way to refuse
            lines = str(error).strip().splitlines()
            return Refusal(f"{type(error).__name__}: {lines[0] if lines else ''}")
        finally:
            if self._heavy:
                process.release()  # before the engine takes its own

    def _case(self, spec: CaseSpec, arrays: list[Array], candidate: Candidate) -> Case:
        shapes = {i.name: tuple(a.shape) for i, a in zip(self._inputs, arrays, strict=True)}
        varied = any(not np.array_equal(i.example, a) for i, a in zip(self._inputs, arrays, strict=True))

        def case(verdict: Verdict, checks: Sequence[OutputCheck] = (), note: str = "", node: str = "") -> Case:
            return Case(spec.label, shapes, dict(spec.sizes), tuple(checks), verdict, note, node, varied)

        output = self._output(spec) if spec.values != "example" or spec.label == "example" else self._run(arrays)
        if isinstance(output, Refusal):
            return case("outside", note=f"{self._called} refuses: {output.message}")
        try:
            given = candidate({i.name: a for i, a in zip(self._inputs, arrays, strict=True)})
        except EngineError as error:
            return case("error", note=error.what + (f" ({error.where})" if error.where else ""), node=error.node)
        missing = [n for n in self._output_names if n not in given]
        if missing or len(given) != len(self._output_names):
            return case("fail", note=f"outputs are {list(given)}, {self._called} gives {list(self._output_names)}")
        outputs = [given[n] for n in self._output_names]
        checks = self._compare(output, outputs)
        wrong = [c for c in checks if not c.ok]
        if not wrong:
            return case("pass", checks)
        excuses = self._excuses and self._wrong < _MOST_WRONG
        if excuses and self._ill_conditioned(arrays, output, outputs, checks):
            steps = [nudge_of(a.dtype.name, self._precision) for a in arrays if a.dtype.kind not in "biu"]
            moved = f"when the input moves by {max(steps, default=0.0):.0e}".replace("e-0", "e-")
            return case("ill-conditioned", checks, f"{self._called}'s own answer moves as much {moved}")
        if spec.values not in ("example", "resampled") and self._lost(output, outputs):
            return case("outside", note=f"{self._called} gives no number (NaN) for the values drawn here")
        self._wrong += 1
        return case("fail", checks, f"{wrong[0].name}: {wrong[0].problem}")

    def _lost(self, output: list[Array], outputs: list[Array]) -> bool:
        """Check that PyTorch gives NaN where it gave none for the example, and that all other numbers agree.

        The values are outside the model's domain then: a box without inside, a mean of nothing, a singular matrix.
        """
        example = self._output(self._first)
        assert not isinstance(example, Refusal)
        if not _has_nan(output) or _has_nan(example):
            return False
        known = [_without_nan(r, c) for r, c in zip(output, outputs, strict=True)]
        return all(check.ok for check in self._compare([r for r, _ in known], [c for _, c in known]))

    def _compare(self, reference: Sequence[Array], candidate: Sequence[Array]) -> list[OutputCheck]:
        names = self._output_names or [str(i) for i in range(len(reference))]
        return [
            check_output(n, r, c, self._requested.limit(n, tolerance(r.dtype.name, self._precision)))
            for n, r, c in zip(names, reference, candidate, strict=True)
        ]

    def _ill_conditioned(
        self, arrays: list[Array], output: list[Array], outputs: list[Array], checks: Sequence[OutputCheck]
    ) -> bool:
        """Check that every number that is off moves about as far in PyTorch itself, under a nudge or in float64.

        A whole number has no small differences: each that is off, an index among equal values, say, must have changed.
        A number that is clipped moves under every second nudge only: where few are left, further nudges tell. Of
        thousands that are off, a few by chance never move as far in all these runs.
        """
        off = [n for n, check in enumerate(checks) if not check.ok]
        if not all(_comparable(output[n], outputs[n]) for n in off):
            return False
        far: dict[int, Array] = {}
        left = beyond = wrong = 0
        for first in range(0, _MOST_NUDGES, _NUDGES):
            for run in self._moved_outputs(arrays, first):
                if isinstance(run, Refusal) or [a.shape for a in run] != [a.shape for a in output]:
                    continue
                far = {n: _farther(far.get(n), output[n], run[n]) for n in off}
                counts = [self._count_unmoved(n, output[n], outputs[n], far[n]) for n in off]
                left, beyond, wrong = (int(count) for count in np.sum(counts, axis=0))
                if not left:
                    return True
            if not far or left > wrong * _FEW:
                return False
        return not beyond and left <= wrong * _CHANCE

    def _moved_outputs(self, arrays: list[Array], first: int) -> Iterator[list[Array] | Refusal]:
        """Run PyTorch on slightly other inputs, the first time in float64 too."""
        for n in range(first, first + _NUDGES):
            yield self._run([nudged(a, n, self._precision) for a in arrays])
        if self._precise is not None and first == 0:
            yield self._run(arrays, self._precise)

    def _count_unmoved(self, place: int, reference: Array, candidate: Array, far: Array) -> tuple[int, int, int]:
        """Return how many numbers are off by more than they move, by much more, and at all."""
        name = self._output_names[place] if self._output_names else str(place)
        limit = self._requested.limit(name, tolerance(reference.dtype.name, self._precision))
        left = beyond = wrong = 0
        for piece in pieces(flat_parts(reference), flat_parts(candidate), limit):
            moves = far[piece.start : piece.start + piece.wrong.size]
            whole = reference.dtype.kind in "biu"
            enough, nearly = (
                moves > 0 if whole else piece.error <= times * moves for times in (_MOVES, _MOVES_BY_CHANCE)
            )
            left += int((piece.wrong & ~enough).sum())
            beyond += int((piece.wrong & ~nearly).sum())
            wrong += int(piece.wrong.sum())
        return left, beyond, wrong


def _key(spec: CaseSpec) -> str:
    """What the inputs of a case are made from: two of the same have the same outputs, whatever they are called."""
    return repr(dataclasses.replace(spec, label=""))


def _comparable(reference: Array, candidate: Array) -> bool:
    same = reference.shape == candidate.shape and reference.dtype == candidate.dtype
    return same and reference.dtype.kind not in "OSU"


def _farther(far: Array | None, reference: Array, moved: Array) -> Array:
    """Return the largest distance that each number moved, in one more run or in those before."""
    with np.errstate(invalid="ignore", over="ignore"):
        now = np.abs(flat_parts(moved).astype(np.float64) - flat_parts(reference).astype(np.float64))
    return now if far is None else np.maximum(far, now)


def _has_nan(arrays: Sequence[Array]) -> bool:
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in arrays)


def _without_nan(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Both arrays without the places at which the reference has no number."""
    if reference.dtype.kind != "f" or reference.shape != candidate.shape:
        return reference, candidate
    known = ~np.isnan(reference)
    return reference[known], candidate[known]
