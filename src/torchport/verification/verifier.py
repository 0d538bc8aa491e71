"""Put the same questions to PyTorch and to the ONNX model, and record how the answers compare.

This room knows nothing of how the ONNX model came to be: it is given two functions and the example inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np

from torchport import process
from torchport.engines.registry import DEFAULT
from torchport.errors import EngineError, RandomModelError
from torchport.numerics.check import check_output
from torchport.numerics.tolerance import tolerance
from torchport.results import Case, Finding, OutputCheck, Proof, Verdict
from torchport.tensors import Array
from torchport.verification.cases import (
    ProofInput,
    Question,
    Values,
    branch_questions,
    example_sizes,
    is_batch,
    is_heavy,
    nudge_of,
    nudged,
    padding_questions,
    pair_sizes,
    roots,
    sample,
    shown_role,
    size_candidates,
    value_questions,
    with_lengths,
)

T = TypeVar("T")

Ask = Callable[[Sequence[Array]], list[Array]]
Candidate = Callable[[Mapping[str, Array]], Mapping[str, Array]]

_NUDGES = 6  # slightly other inputs, to see which whole numbers of an answer hang by a thread
_KEEP_BYTES = 32 << 20  # answers up to this size are kept for the next attempt


@dataclasses.dataclass(frozen=True)
class Refusal:
    """What the PyTorch model said to a question outside its domain."""

    message: str


@dataclasses.dataclass(frozen=True)
class DimensionReport:
    """What the questions showed about one dynamic dimension."""

    name: str
    accepted: tuple[int, ...]
    refused: tuple[int, ...]
    message: str = ""

    @property
    def refused_sizes(self) -> str:
        shown = ", ".join(map(str, self.refused[:4]))
        return shown + (", …" if len(self.refused) > 4 else "")


class Examiner:
    """Holds the questions and PyTorch's answers; `examine` puts them to one ONNX model after the other.

    Args:
        reference: the PyTorch model, arrays in and out by position. May raise on what it does not accept.
        inputs: example inputs with the axes that may vary.
        output_names: names of the outputs in the reference's order.
        first: the reference's answer to the example.
        precision: the coarsest float dtype the model computes in.
        examples: further sets of input arrays to try as they are.
        engine: name of the engine that runs the candidates.
        costly: whether one run takes so long that few questions must do.
        called: what the reference is called in the proof.
    """

    def __init__(
        self,
        reference: Ask,
        inputs: Sequence[ProofInput],
        output_names: Sequence[str],
        *,
        first: Sequence[Array],
        precision: str | None = None,
        examples: Sequence[Sequence[Array]] = (),
        engine: str = DEFAULT,
        costly: bool = False,
        called: str = "PyTorch",
    ) -> None:
        self._reference = reference
        self._called = called
        self._inputs = with_lengths(inputs)
        self._output_names = tuple(output_names)
        self._precision = precision
        self._examples = tuple(examples)
        self._engine = engine
        self._heavy = is_heavy(self._inputs)
        self._costly = costly
        self._answers: dict[str, list[Array] | Refusal] = {}
        self._planned: list[Question] | None = None
        self._excuses = True
        self._has_integers = any(i.example.dtype.kind in "iu" for i in self._inputs)
        self._kept: set[tuple[str, int]] = set()  # sizes at which integers stay as in the example
        self.dimensions: list[DimensionReport] = []
        self.observed: list[tuple[dict[str, int], list[tuple[int, ...]]]] = []
        self._first = Question("example", "example", 0, example_sizes(self._inputs))
        self._remember(self._first, list(first))

    def check_repeatable(self) -> None:
        """Raise RandomModelError if the model answers the example otherwise than the first time."""
        asked = self._cheapest() if self._costly else self._first
        first = self._answer(asked)
        again = self._ask(self._arrays(asked))
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

    def _cheapest(self) -> Question:
        """The question with the smallest inputs that PyTorch answers."""
        answered = [q for q in self._questions() if not isinstance(self._answer(q), Refusal)]
        return min(answered, key=lambda q: sum(a.size for a in self._arrays(q)))

    def plan(self) -> list[DimensionReport]:
        """Find which sizes PyTorch accepts, before anything is captured."""
        self._questions()
        return self.dimensions

    def examine(
        self,
        candidate: Candidate,
        *,
        branch_rounds: int = 0,
        excuses: bool = True,
        sizes: Sequence[Mapping[str, int]] = (),
    ) -> Proof:
        """Put every question to `candidate`.

        Args:
            candidate: the ONNX model, arrays in and out by name.
            branch_rounds: how many further random values to try, where the capture may have frozen a branch.
            excuses: whether a wrong answer may be excused as ill-conditioned. Not where a branch is in doubt.
            sizes: further sizes to try, at which the capture is in doubt.
        """
        self._excuses = excuses
        questions = list(self._questions())
        example = example_sizes(self._inputs)
        asked = [q.sizes for q in questions]
        doubted = [s for s in sizes if {**example, **s} not in asked]
        questions += [self._at(example, s, f"doubt {n}", 5) for n, s in enumerate(doubted, start=1)]
        if branch_rounds:
            questions += branch_questions(example_sizes(self._inputs), branch_rounds)
        cases = [self._case(q, self._arrays(q), candidate) for q in questions]
        for number, arrays in enumerate(self._examples, start=2):
            cases.append(self._case(Question(f"example {number}", "example", 0, {}), list(arrays), candidate))
        return Proof(tuple(cases), tuple(self._findings()), self._engine, self._called)

    def replay(self, watch: Callable[[], AbstractContextManager[T]], *, branch_rounds: int) -> list[T]:
        """Ask PyTorch every question again, each under a watch, and return what the watches saw."""
        questions = [*self._questions(), *branch_questions(self._first.sizes, branch_rounds)]
        seen: list[T] = []
        for arrays in [*(self._arrays(q) for q in questions), *(list(e) for e in self._examples)]:
            with watch() as watched:
                self._ask(arrays)
            seen.append(watched)
        return seen

    def _findings(self) -> list[Finding]:
        few = "one run takes long: each dimension was tried at one other size, and at no further values"
        return [Finding(few)] * self._costly + [
            Finding(f"{self._called} itself refuses {d.name} = {d.refused_sizes}: {d.message}")
            for d in self.dimensions
            if d.refused
        ]

    # --- the plan -------------------------------------------------------------------------------------------------

    def _questions(self) -> list[Question]:
        """The plan is made once: which sizes PyTorch accepts does not depend on the candidate."""
        if self._planned is None:
            sizes = example_sizes(self._inputs)
            by_size = self._size_questions(sizes)
            one = {d.name: 1 for d in self.dimensions if 1 in d.accepted and is_batch(d.name, self._inputs)}
            by_value = [] if self._costly and by_size else value_questions(self._inputs, {**sizes, **one})
            padded = padding_questions(self._inputs, {**sizes, **self._several_rows(sizes)})
            self._planned = [self._first, *by_value, *padded, *by_size]
        return self._planned

    def _several_rows(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Batches of more than one row, where PyTorch was seen to take them: one row shows little padding."""
        larger = {d.name: max(d.accepted, default=0) for d in self.dimensions}
        return {n: s for n, s in larger.items() if is_batch(n, self._inputs) and s > sizes[n]}

    def _size_questions(self, sizes: dict[str, int]) -> list[Question]:
        found: dict[str, dict[str, int]] = {}
        questions: list[Question] = []
        for name, dim in roots(self._inputs).items():
            close_by = self._heavy and is_batch(name, self._inputs)
            options = size_candidates(dim, sizes[name], list(sizes.values()), heavy=close_by)
            found[name] = self._accepted_sizes(name, options, sizes)
            questions += [
                self._at(sizes, {name: size}, f"{name} {shown_role(role, size)}", seed)
                for seed, (role, size) in enumerate(found[name].items(), start=1)
            ]
        # A dimension that PyTorch only lets go to 1 was broadcast, not moved.
        moved = {"neighbor", "prime", *(["smallest"] if self._costly else [])}
        joint = self._joint_questions(sizes, [n for n, f in found.items() if not f.keys() & moved])
        pairs = [
            self._at(sizes, both, "pair " + "×".join(both), 3)
            for both in pair_sizes({n: f for n, f in found.items() if f})
        ]
        return questions + joint + pairs

    def _accepted_sizes(self, name: str, candidates: dict[str, list[int]], sizes: dict[str, int]) -> dict[str, int]:
        """For each role the first size PyTorch accepts."""
        accepted: dict[str, int] = {}
        refused: dict[int, str] = {}
        for role, options in candidates.items():
            if accepted and self._costly:
                break
            for size in options:
                if size in refused or size in accepted.values():
                    continue
                shown = shown_role(role, size)
                answer = self._answer(self._at(sizes, {name: size}, f"{name} {shown}", len(accepted) + 1))
                if isinstance(answer, Refusal) and self._has_integers:
                    # whole numbers drawn by chance may be what it refuses: sizes that must add up, say
                    self._kept.add((name, size))
                    answer = self._answer(self._at(sizes, {name: size}, f"{name} {shown}", len(accepted) + 1))
                if not isinstance(answer, Refusal):
                    accepted[role] = size
                    break
                refused[size] = answer.message
                if len(refused) >= 12:
                    break
        message = next(iter(refused.values()), "")
        self.dimensions.append(DimensionReport(name, tuple(accepted.values()), tuple(refused), message))
        return accepted

    def _joint_questions(self, sizes: dict[str, int], stuck: list[str]) -> list[Question]:
        """Dimensions that cannot move alone may move together: x's batch and h's batch under two names."""
        questions: list[Question] = []
        for change in (1, 3, 4, 8, 32):
            moved = {n: sizes[n] + change for n in stuck}
            question = self._at(sizes, moved, f"together +{change}", 1)
            if len(stuck) > 1 and len(questions) < 2 and not isinstance(self._answer(question), Refusal):
                questions.append(question)
        for n in stuck if questions else ():
            index = next(i for i, d in enumerate(self.dimensions) if d.name == n)
            accepted = (*self.dimensions[index].accepted, *(q.sizes[n] for q in questions))
            self.dimensions[index] = dataclasses.replace(self.dimensions[index], accepted=accepted)
        return questions

    def _at(self, sizes: Mapping[str, int], moved: Mapping[str, int], label: str, seed: int) -> Question:
        values: Values = "kept" if self._kept & moved.items() else "random"
        return Question(label, values, seed, {**sizes, **moved})

    # --- one case -------------------------------------------------------------------------------------------------

    def _arrays(self, question: Question) -> list[Array]:
        return [sample(i, question) for i in self._inputs]

    def _answer(self, question: Question) -> list[Array] | Refusal:
        key = repr(question)
        if key not in self._answers:
            return self._remember(question, self._ask(self._arrays(question)))
        return self._answers[key]

    def _remember(self, question: Question, answer: list[Array] | Refusal) -> list[Array] | Refusal:
        """Keep an answer for the next candidate, unless it is so large that asking again is better."""
        if not isinstance(answer, Refusal):
            self.observed.append((dict(question.sizes), [a.shape for a in answer]))
        if isinstance(answer, Refusal) or sum(a.nbytes for a in answer) <= _KEEP_BYTES:
            self._answers[repr(question)] = answer
        return answer

    def _ask(self, arrays: Sequence[Array]) -> list[Array] | Refusal:
        try:
            return self._reference(arrays)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the model raises, it is its way to refuse
            lines = str(error).strip().splitlines()
            return Refusal(f"{type(error).__name__}: {lines[0] if lines else ''}")
        finally:
            if self._heavy:
                process.release()  # before the engine takes its own

    def _case(self, question: Question, arrays: list[Array], candidate: Candidate) -> Case:
        shapes = {i.name: tuple(a.shape) for i, a in zip(self._inputs, arrays, strict=True)}

        def case(verdict: Verdict, checks: Sequence[OutputCheck] = (), note: str = "", node: str = "") -> Case:
            return Case(question.label, shapes, dict(question.sizes), tuple(checks), verdict, note, node)

        answer = (
            self._answer(question) if question.values != "example" or question.label == "example" else self._ask(arrays)
        )
        if isinstance(answer, Refusal):
            return case("outside", note=f"{self._called} refuses: {answer.message}")
        try:
            given = candidate({i.name: a for i, a in zip(self._inputs, arrays, strict=True)})
        except EngineError as error:
            return case("error", note=error.what + (f" ({error.where})" if error.where else ""), node=error.node)
        missing = [n for n in self._output_names if n not in given]
        if missing or len(given) != len(self._output_names):
            return case("fail", note=f"outputs are {list(given)}, {self._called} gives {list(self._output_names)}")
        outputs = [given[n] for n in self._output_names]
        checks = self._compare(answer, outputs)
        wrong = [c for c in checks if not c.ok]
        if not wrong:
            return case("pass", checks)
        if self._excuses and self._ill_conditioned(arrays, answer, outputs, checks):
            steps = [nudge_of(a.dtype.name, self._precision) for a in arrays if a.dtype.kind not in "biu"]
            moved = f"when the input moves by {max(steps, default=0.0):.0e}".replace("e-0", "e-")
            return case("ill-conditioned", checks, f"{self._called}'s own answer moves as much {moved}")
        if question.values not in ("example", "kept") and self._has_integers and self._lost(answer):
            return case("outside", note=f"{self._called} gives no number (NaN) for the whole numbers drawn here")
        return case("fail", checks, f"{wrong[0].name}: {wrong[0].problem}")

    def _lost(self, answer: list[Array]) -> bool:
        """Whether PyTorch answers NaN where it did not for the example: a box without inside, a mean of nothing."""
        example = self._answer(self._first)
        assert not isinstance(example, Refusal)
        return _has_nan(answer) and not _has_nan(example)

    def _compare(self, reference: Sequence[Array], candidate: Sequence[Array]) -> list[OutputCheck]:
        names = self._output_names or [str(i) for i in range(len(reference))]
        return [
            check_output(n, r, c, tolerance(r.dtype.name, self._precision))
            for n, r, c in zip(names, reference, candidate, strict=True)
        ]

    def _ill_conditioned(
        self, arrays: list[Array], answer: list[Array], outputs: list[Array], checks: Sequence[OutputCheck]
    ) -> bool:
        """Whether every output that is off is off by no more than PyTorch itself moves under a nudge.

        Whole numbers have no small differences: each that is off, an index among equal values, say, must have moved
        under one of a few nudges.
        """
        nudges = [self._ask([nudged(a, seed, self._precision) for a in arrays]) for seed in range(_NUDGES)]
        moved = [n for n in nudges if not isinstance(n, Refusal) and [a.shape for a in n] == [a.shape for a in answer]]
        if not moved:
            return False
        by_nudge = self._compare(answer, moved[0])
        for n, (own, nudge) in enumerate(zip(checks, by_nudge, strict=True)):
            if own.ok:
                continue
            if answer[n].dtype.kind in "biu" and outputs[n].shape == answer[n].shape:
                off = outputs[n] != answer[n]
                if (off & ~np.any([m[n] != answer[n] for m in moved], axis=0)).any():
                    return False
            elif nudge.ok or nudge.max_abs < own.max_abs:
                return False
        return True


def _has_nan(arrays: Sequence[Array]) -> bool:
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in arrays)
