"""The proof asks what the capture was not shown, and says what it could not check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from torchport.errors import EngineError, RandomModelError
from torchport.results import Dim
from torchport.verification import values as drawing
from torchport.verification.values import CaseSpec, ProofInput
from torchport.verification.verifier import Verifier

Array = np.ndarray[Any, Any]
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def double(arrays: Sequence[Array]) -> list[Array]:
    return [arrays[0] * 2]


def verifier(reference: Any = double, *inputs: ProofInput, outputs: Sequence[str] = ("y",), **options: Any) -> Verifier:
    given = inputs or (ProofInput("x", X, {0: Dim("n")}),)
    first = reference([i.example for i in given])
    return Verifier(reference, given, outputs, first=first, **options)


def candidate(function: Any) -> Any:
    return lambda feeds: {"y": function(feeds["x"])}


def test_a_right_model_is_proven_at_one_a_neighbor_and_a_prime() -> None:
    proof = verifier().verify(candidate(lambda x: x * 2))
    assert proof.passed
    assert {c.sizes["n"] for c in proof.cases} == {1, 3, 4, 5}
    assert {c.label for c in proof.cases} >= {"example", "sign flipped", "zeros", "larger"}
    assert proof.summary()["cases"]["pass"] == len(proof.cases)


@pytest.mark.parametrize(
    ("wrong", "label"),
    [
        (lambda x: x * 2 if x.shape[0] == 3 else x, "n neighbor"),
        (lambda x: x * 2 if x.shape[0] != 5 else x, "n prime"),
        (lambda x: x * 2 if x.shape[0] != 1 else x, "n smallest"),
        (lambda x: np.abs(x) * 2, "example"),
        (lambda x: np.clip(x, -3, 3) * 2, "larger"),
        (lambda x: np.where(x == 0, 1, x * 2).astype(np.float32), "zeros"),
    ],
)
def test_a_model_wrong_anywhere_is_found_there(wrong: Any, label: str) -> None:
    proof = verifier().verify(candidate(wrong))
    assert not proof.passed
    assert label in {c.label for c in proof.failures}


def test_an_engine_that_fails_is_a_failed_case_with_its_message() -> None:
    def fails(x: Array) -> Array:
        if x.shape[0] != 3:
            raise EngineError("cannot reshape", where="node 'r'")
        return x * 2

    proof = verifier().verify(candidate(fails))
    assert not proof.passed
    assert "cannot reshape (node 'r')" in proof.failures[0].note


def test_sizes_pytorch_refuses_are_noted_and_others_found() -> None:
    def multiples_of_four(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0].shape[0] % 4:
            raise ValueError("length must be a multiple of 4")
        return [arrays[0] * 2]

    given = ProofInput("x", np.ones((8, 2), np.float32), {0: Dim("n")})
    exam = verifier(multiples_of_four, given)
    proof = exam.verify(candidate(lambda x: x * 2))
    assert proof.passed
    assert {c.sizes["n"] for c in proof.cases} > {8}
    assert exam.dimensions[0].accepted
    assert any("multiple of 4" in str(f) for f in proof.findings)


@pytest.mark.parametrize(("size", "step"), [(64, 32), (48, 24), (32, 32)])
def test_a_model_that_takes_multiples_only_is_proven_at_multiples(size: int, step: int) -> None:
    def halved_often(arrays: Sequence[Array]) -> list[Array]:
        if len(arrays[0]) % step:
            raise ValueError(f"no multiple of {step}")
        return [arrays[0] * 2]

    x = ProofInput("x", np.linspace(-1, 1, size, dtype=np.float32), {0: Dim("depth")})
    checked = verifier(halved_often, x)
    proof = checked.verify(candidate(lambda x: x * 2))
    assert proof.passed
    sizes = {c.sizes["depth"] for c in proof.cases}
    assert sizes >= {size, size + step, size + 3 * step}
    assert all(s % step == 0 for s in sizes)
    assert checked.dimensions[0].step == step
    assert f"it runs at multiples of {step}" in str(proof.findings[0])


def test_dimensions_that_only_move_together_are_moved_together() -> None:
    def add(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0].shape != arrays[1].shape:
            raise ValueError("shapes differ")
        return [arrays[0] + arrays[1]]

    inputs = [ProofInput(n, X, {0: Dim(f"{n}_0")}) for n in "ab"]
    exam = verifier(add, *inputs)
    proof = exam.verify(lambda feeds: {"y": feeds["a"] + feeds["b"]})
    assert proof.passed
    assert {c.sizes["a_0"] for c in proof.cases} > {3}
    assert all(d.accepted for d in exam.dimensions)


def test_dimensions_of_which_one_is_a_multiple_of_the_other_are_moved_together() -> None:
    """A latent and the picture that it was made from; one row of the latent is four of the picture."""

    def pooled(arrays: Sequence[Array]) -> list[Array]:
        latent, picture = arrays
        rows = picture[: len(picture) // 4 * 4].reshape(-1, 4, 2).mean(1)
        if rows.shape != latent.shape:
            raise ValueError("sizes of tensors must match")
        return [latent + rows]

    latent = ProofInput("latent", np.ones((6, 2), np.float32), {0: Dim("height")})
    picture = ProofInput("picture", np.ones((24, 2), np.float32), {0: Dim("rows")})
    exam = verifier(pooled, latent, picture)
    proof = exam.verify(lambda feeds: {"y": pooled(list(feeds.values()))[0]})
    assert proof.passed
    assert {(c.sizes["height"], c.sizes["rows"]) for c in proof.cases} >= {(6, 24), (12, 48), (9, 36)}


def test_a_dimension_that_cannot_move_does_not_hold_back_those_that_move_together() -> None:
    def add(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0].shape != arrays[1].shape or arrays[0].shape[1] != 4:
            raise ValueError("shapes differ")
        return [arrays[0] + arrays[1]]

    inputs = [ProofInput("a", X, {0: Dim("a_0"), 1: Dim("a_1")}), ProofInput("b", X, {0: Dim("b_0")})]
    exam = verifier(add, *inputs)
    exam.verify(lambda feeds: {"y": feeds["a"] + feeds["b"]})
    assert {d.name: bool(d.accepted) for d in exam.dimensions} == {"a_0": True, "a_1": False, "b_0": True}


def test_bounds_are_kept() -> None:
    given = ProofInput("x", X, {0: Dim("n", min=2, max=4)})
    proof = verifier(double, given).verify(candidate(lambda x: x * 2))
    assert {c.sizes["n"] for c in proof.cases} <= {2, 3, 4}


def test_pairs_of_dimensions_are_moved_at_once() -> None:
    given = ProofInput("x", X, {0: Dim("n"), 1: Dim("m")})
    proof = verifier(double, given).verify(candidate(lambda x: x * 2))
    assert any(c.sizes["n"] != 3 and c.sizes["m"] != 4 for c in proof.cases)


def test_a_threshold_that_pytorch_itself_crosses_under_a_nudge_is_not_counted() -> None:
    edge = np.ones((3, 4), np.float32)

    def above(arrays: Sequence[Array]) -> list[Array]:
        return [(arrays[0] > 1).astype(np.float32)]

    proof = verifier(above, ProofInput("x", edge, {})).verify(candidate(lambda x: (x >= 1).astype(np.float32)))
    example = proof.cases[0]
    assert example.verdict == "ill-conditioned"


def test_what_makes_a_wrong_number_is_examined_for_few_cases() -> None:
    runs: list[int] = []

    def counting(arrays: Sequence[Array]) -> list[Array]:
        runs.append(1)
        return double(arrays)

    exam = verifier(counting, ProofInput("x", X, {0: Dim("n")}))
    proof = exam.verify(candidate(lambda x: x * 2.1))
    assert len(proof.failures) > 4
    assert len(runs) < len(proof.cases) + 2 * 7  # a run of each case, and seven to examine each of two
    assert exam.run_at(candidate(lambda x: x * 2.1), {"n": 8}).verdict == "fail"


def test_other_values_are_not_tried_at_sizes_that_are_refused_for_what_is_known_of_sizes() -> None:
    refused: list[int] = []

    def halved_twice(arrays: Sequence[Array]) -> list[Array]:
        size = arrays[0].shape[0]
        if size % 4:
            refused.append(size)
            raise RuntimeError(f"sizes must match: {size} and {size // 2 * 2}")
        return double(arrays)

    exam = verifier(halved_twice, ProofInput("x", np.ones((8, 4), np.float32), {0: Dim("n")}))
    (report,) = exam.plan()
    assert report.step == 4
    assert len(refused) <= len(set(refused)) + 2  # the first one with all kinds of values


def test_nothing_else_is_run_where_the_example_is_wrong_and_a_brief_proof_is_wanted() -> None:
    proof = verifier().verify(candidate(lambda x: x * 2.1), brief=True)
    assert [case.label for case in proof.failures] == ["example"]
    assert "nothing else was run" in str(proof.findings[-1])
    assert len(verifier().verify(candidate(lambda x: x * 2), brief=True).cases) > 4


def test_nothing_counted_is_nothing_proven() -> None:
    proof = verifier(double).verify(candidate(lambda x: x * 2))
    emptied = type(proof)(tuple(c for c in proof.cases if c.verdict != "pass"))
    assert not emptied.passed


def test_a_random_model_is_said_to_be_random() -> None:
    rng = np.random.default_rng()
    exam = verifier(lambda arrays: [arrays[0] + rng.standard_normal(arrays[0].shape).astype(np.float32)])
    with pytest.raises(RandomModelError, match="differently each time"):
        exam.check_repeatable()


def test_missing_and_additional_outputs_fail() -> None:
    assert not verifier().verify(lambda feeds: {}).passed
    assert not verifier().verify(lambda feeds: {"y": feeds["x"] * 2, "z": feeds["x"]}).passed


def test_further_examples_join_the_proof() -> None:
    exam = verifier(double, ProofInput("x", X, {}), examples=[[X * 3]])
    proof = exam.verify(candidate(lambda x: np.where(np.abs(x) > 2.5, 0, x * 2).astype(np.float32)))
    assert "example 2" in {c.label for c in proof.failures}


def test_answers_are_asked_of_pytorch_once_for_many_candidates() -> None:
    asked: list[int] = []

    def counting(arrays: Sequence[Array]) -> list[Array]:
        asked.append(1)
        return double(arrays)

    exam = verifier(counting)
    exam.verify(candidate(lambda x: x * 2))
    before = len(asked)
    exam.verify(candidate(lambda x: x * 2))
    assert len(asked) == before


def test_the_table_fits_a_terminal() -> None:
    text = str(verifier().verify(candidate(lambda x: x * 2)))
    assert max(map(len, text.splitlines())) <= 80
    assert "proven: " in text.splitlines()[-1]


# --- sampling ---------------------------------------------------------------------------------------------------------


def sample(example: Array, values: Any = "random", shape: Mapping[str, int] | None = None, seed: int = 1) -> Array:
    dims = {0: Dim("n")} if shape else {}
    return drawing.sample(ProofInput("x", example, dims), CaseSpec("q", values, seed, shape or {}))


def test_the_same_question_gives_the_same_array() -> None:
    assert np.array_equal(sample(X), sample(X))
    assert not np.array_equal(sample(X), sample(X, seed=2))


def test_integers_stay_within_the_examples_range() -> None:
    ids = np.array([[3, 7], [5, 4]])
    drawn = sample(ids, shape={"n": 500})
    assert (drawn.min(), drawn.max()) == (3, 7)
    assert drawn.dtype == ids.dtype


def test_masks_stay_masks() -> None:
    mask = np.zeros((4, 4), np.float32)
    mask[0] = -np.inf
    assert set(np.unique(sample(mask))) <= {0.0, -np.inf}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.uint8, bool, np.complex64])
def test_every_dtype_is_kept_at_every_size(dtype: Any) -> None:
    example = np.ones((2, 3), dtype)
    for values in ("random", "flipped", "zeros", "larger", "huge", "tiny", "ones"):
        drawn = sample(example, values, {"n": 5})
        assert drawn.dtype == example.dtype
        assert drawn.shape == (5, 3)


def test_an_empty_example_can_grow() -> None:
    for dtype in (np.float32, np.int64, bool):
        assert sample(np.zeros((0, 3), dtype), shape={"n": 4}).shape == (4, 3)


def test_a_costly_model_is_asked_little_and_says_so() -> None:
    asked: list[tuple[int, ...]] = []

    def counting(arrays: Sequence[Array]) -> list[Array]:
        asked.append(arrays[0].shape)
        return double(arrays)

    given = ProofInput("x", X, {0: Dim("n")})
    exam = verifier(counting, given, seconds=6.0)
    exam.check_repeatable()
    proof = exam.verify(candidate(lambda x: x * 2))
    assert proof.passed
    assert [c.sizes["n"] for c in proof.cases] == [3, 1]
    assert asked == [(3, 4), (1, 4), (1, 4)]  # the example only once
    assert any("takes long" in str(f) for f in proof.findings)


def test_a_model_that_takes_a_second_is_asked_at_two_sizes_of_each_dimension() -> None:
    exam = verifier(double, ProofInput("x", X, {0: Dim("n"), 1: Dim("m")}), seconds=2.0)
    proof = exam.verify(candidate(lambda x: x * 2))
    assert proof.passed
    assert {c.sizes["n"] for c in proof.cases} == {3, 1, 4}
    assert {c.sizes["m"] for c in proof.cases} == {4, 1, 5}
    assert len(proof.cases) <= 7
    assert any("two other sizes" in str(f) for f in proof.findings)


def test_a_costly_model_that_takes_multiples_only_is_asked_at_multiples() -> None:
    def halved_thrice(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0].shape[0] % 8:
            raise ValueError("sizes of tensors must match")
        return double(arrays)

    exam = verifier(halved_thrice, ProofInput("x", np.ones((16, 2), np.float32), {0: Dim("n")}), seconds=6.0)
    proof = exam.verify(candidate(lambda x: x * 2))
    assert proof.passed
    assert {c.sizes["n"] for c in proof.cases if c.verdict == "pass"} > {16}


def test_a_costly_model_that_is_random_is_found_out() -> None:
    rng = np.random.default_rng()
    exam = verifier(lambda arrays: [arrays[0] + rng.standard_normal(arrays[0].shape).astype(np.float32)], seconds=6.0)
    with pytest.raises(RandomModelError, match="differently each time"):
        exam.check_repeatable()


@pytest.mark.parametrize(("off", "verdict"), [(0.02, "ill-conditioned"), (0.2, "fail")])
def test_errors_as_large_as_the_references_own_rounding_are_ill_conditioned(off: float, verdict: str) -> None:
    def rounded(arrays: Sequence[Array]) -> list[Array]:
        return [arrays[0] * np.float32(2.02)]  # as if float32 lost a hundredth

    def precise(arrays: Sequence[Array]) -> list[Array]:
        return [arrays[0].astype(np.float64) * 2]

    exam = verifier(rounded, ProofInput("x", X, {}), precise=precise)
    proof = exam.verify(candidate(lambda x: x * np.float32(2.02 - off)))
    assert {c.verdict for c in proof.cases if c.label != "zeros"} == {verdict}


@pytest.mark.parametrize(("off", "verdict"), [(2e-5, "ill-conditioned"), (0.5, "fail")])
def test_numbers_that_are_clipped_in_most_nudges_are_ill_conditioned_too(off: float, verdict: str) -> None:
    """A batch norm of equal numbers, then ReLU: rounding is amplified, and half of what moves is clipped to zero."""
    mixed = np.random.default_rng(0).normal(size=(4, 5000)).astype(np.float32) * 300

    def clipped(arrays: Sequence[Array]) -> list[Array]:
        return [np.maximum(arrays[0] @ mixed, 0)]

    def onnx(x: Array) -> Array:
        return clipped([x])[0] + np.float32(off) * (not x.any())

    proof = verifier(clipped).verify(candidate(onnx))
    (case,) = [c for c in proof.cases if c.label == "zeros"]
    assert case.verdict == verdict
    assert proof.passed == (verdict != "fail")


@pytest.mark.parametrize(("off", "verdict"), [(2e-4, "ill-conditioned"), (5e-4, "fail")])
def test_one_number_in_thousands_that_moves_less_is_ill_conditioned_too(off: float, verdict: str) -> None:
    """Of so many numbers that are off, one moves less than it is off by in each of two dozen runs."""
    mixed = np.random.default_rng(0).normal(size=(4, 5000)).astype(np.float32) * 300
    mixed[:, 7] = [10, 0, 0, 0]  # moves by 1e-5

    def onnx(x: Array) -> Array:
        wrong = np.full(5000, 2e-5, np.float32)
        wrong[7] = off / 2
        return x @ mixed + wrong * (not x.any())

    proof = verifier(lambda arrays: [arrays[0] @ mixed]).verify(candidate(onnx))
    (case,) = [c for c in proof.cases if c.label == "zeros"]
    assert case.verdict == verdict


@pytest.mark.parametrize("columns", [500, 5000])
def test_a_few_numbers_that_do_not_move_are_wrong(columns: int) -> None:
    mixed = np.random.default_rng(0).normal(size=(4, columns)).astype(np.float32) * 300
    mixed[:, 7] = 0  # this one depends on no input

    def onnx(x: Array) -> Array:
        return np.maximum(x @ mixed, 0) + np.float32(2e-5) * (not x.any())

    proof = verifier(lambda arrays: [np.maximum(arrays[0] @ mixed, 0)]).verify(candidate(onnx))
    assert [c.label for c in proof.failures] == ["zeros"]
