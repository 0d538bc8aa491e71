"""Arrays for a case stay in the domain that the example shows, and have other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from torchport.errors import EngineError
from torchport.results import Dim
from torchport.verification.values import TURN, CaseSpec, ProofInput, resampled, sample
from torchport.verification.verifier import Verifier

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def drawn(example: Array, values: Any = "random", size: int | None = None, **given: Any) -> Array:
    dims = {0: Dim("n")}
    spec = CaseSpec("case", values, 1, {"n": size if size is not None else len(example)})
    return sample(ProofInput("x", example, dims, **given), spec)


def test_numbers_between_zero_and_one_stay_there() -> None:
    example = RNG.random((4, 5)).astype(np.float32)
    numbers = drawn(example, size=50)
    assert numbers.min() >= 0
    assert numbers.max() <= 1
    assert not np.array_equal(numbers[:4], example)


def test_positive_numbers_stay_positive_and_whole_numbers_whole() -> None:
    assert drawn(RNG.random((4, 5)) * 9 + 0.5, size=99).min() > 0
    pixels = RNG.integers(0, 255, (4, 5)).astype(np.float32)
    numbers = drawn(pixels, size=99)
    assert np.array_equal(numbers, np.round(numbers))
    assert numbers.max() <= pixels.max()


def test_labels_with_an_ignored_one_are_labels_or_the_ignored_one() -> None:
    numbers = drawn(np.array([1, 0, -100, 4, 2, -100]), size=200)
    assert set(np.unique(numbers)) == {-100, 0, 1, 2, 3, 4}


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_matrices_near_the_identity_stay_near_it(rows: int) -> None:
    example = np.eye(3)[None].repeat(rows, 0) + 0.02 * RNG.random((rows, 3, 3))
    numbers = drawn(example, size=40)
    assert np.abs(numbers - np.eye(3)).max() < 0.1
    assert numbers.std(0).min() > 0.001
    exact = drawn(np.eye(3, dtype=np.float32)[None], size=40)
    assert 0 < np.abs(exact - np.eye(3)).max() < 0.1


def test_rows_that_are_alike_keep_what_they_have_in_common() -> None:
    camera = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
    example = camera * (1 + 0.01 * RNG.standard_normal((3, 1, 1)))
    numbers = drawn(example, size=40)
    assert np.allclose(numbers, camera, rtol=0.1)
    assert np.array_equal(numbers[:, 2, 0], np.zeros(40))
    assert numbers[:, 0, 0].std() > 0.1


def test_a_large_id_takes_no_memory() -> None:
    given = ProofInput("x", np.array([2_000_000_000, 5]), {0: Dim("n")})
    assert sample(given, CaseSpec("case", "in turn", TURN, {"n": 5})).tolist() == [0, 1, 2, 3, 4]


def test_bytes_of_every_value_are_resampled() -> None:
    example = np.arange(256, dtype=np.uint8)
    assert np.array_equal(drawn(example, "resampled"), example)


def test_indices_stay_below_the_size_they_index() -> None:
    edges = np.array([0, 5, 3, 2])
    assert drawn(edges, size=3, below=("n",)).max() <= 2
    assert drawn(edges, "resampled", size=3, below=("n",)).max() <= 2


def test_lengths_that_another_input_depends_on_are_kept_within_the_size() -> None:
    given = ProofInput("lengths", np.array([5, 2, 4]), counts="steps")
    for steps, want in ((7, [5, 2, 4]), (3, [3, 2, 3])):
        spec = CaseSpec("other size", "kept", 1, {"steps": steps})
        assert sample(given, spec).tolist() == want


@pytest.mark.parametrize("one_hot", [False, True])
def test_distributions_add_up_to_one(one_hot: bool) -> None:
    example = np.eye(4)[[1, 0, 2]] if one_hot else RNG.dirichlet(np.ones(4), 3)
    numbers = drawn(example, "structured", size=20)
    assert np.allclose(numbers.sum(-1), 1)
    assert (set(np.unique(numbers)) <= {0.0, 1.0}) == one_hot


def test_matrices_stay_positive_definite() -> None:
    example = np.eye(3)[None] + 0.1
    assert np.linalg.eigvalsh(drawn(example, "structured", size=6)).min() > 0


def test_boxes_directions_and_ordered_numbers_keep_their_structure() -> None:
    boxes = drawn(np.array([[0, 0, 5, 6.0], [1, 2, 3, 9], [2, 2, 8, 8]]), "structured", size=30)
    assert (boxes[:, 2:] >= boxes[:, :2]).all()
    directions = np.array([[0.6, 0.8], [1.0, 0.0], [0.0, -1.0]])
    assert np.allclose(np.linalg.norm(drawn(directions, "structured", size=9), axis=1), 1)
    assert (np.diff(drawn(np.array([0.0, 1, 2, 5]), "structured", size=9)) >= 0).all()


def test_the_examples_own_rows_are_repeated_or_left_out_and_an_order_is_kept() -> None:
    rows = np.array([[1, 7], [5, 2]])
    assert resampled(rows, (3, 2)).tolist() == [[1, 7], [5, 2], [1, 7]]
    assert resampled(rows, (1, 2)).tolist() == [[1, 7]]
    assert resampled(np.array([0.0, 1, 2, 3, 4]), (3,)).tolist() == [0, 2, 4]


def verified(reference: Any, example: Array, candidate: Any) -> Any:
    given = ProofInput("x", example, {0: Dim("n")})
    exam = Verifier(reference, [given], ["y"], first=reference([example]))
    return exam, exam.verify(lambda feeds: {"y": candidate(feeds["x"])})


def test_a_model_that_validates_probabilities_is_proven_at_other_sizes_and_values() -> None:
    def validated(arrays: Sequence[Array]) -> list[Array]:
        if not np.allclose(arrays[0].sum(-1), 1, atol=1e-4):
            raise ValueError("must sum to one")
        return [np.log(arrays[0])]

    example = RNG.dirichlet(np.ones(4), 3).astype(np.float32)
    exam, proof = verified(validated, example, np.log)
    assert proof.passed
    assert len(exam.dimensions[0].accepted) == 3
    assert sum(c.varied and c.verdict == "pass" for c in proof.cases) >= 5


def test_the_example_alone_proves_nothing() -> None:
    example = RNG.random((3, 4)).astype(np.float32)

    def only_that(arrays: Sequence[Array]) -> list[Array]:
        if not np.array_equal(arrays[0], example):
            raise ValueError("another input")
        return [arrays[0] * arrays[0].max()]

    _, proof = verified(only_that, example, lambda x: x * example.max())
    assert not proof.failures
    assert not proof.passed
    assert "refuses every input but the example" in proof.verdict_line()


def test_a_size_beyond_the_budget_is_reported_and_not_tried() -> None:
    seen: list[int] = []

    def counting(arrays: Sequence[Array]) -> list[Array]:
        seen.append(arrays[0].size)
        return [arrays[0]]

    given = ProofInput("x", np.ones((4, 256), np.float32), {0: Dim("n")})
    exam = Verifier(counting, [given], ["y"], first=[given.example], seconds=0.5)
    proof = exam.verify(lambda feeds: {"y": feeds["x"]}, sizes=[{"n": 4096}])
    assert proof.passed
    assert max(seen) < 40_000
    assert any("not tried, too large beside the example: n=4096" in str(f) for f in proof.findings)


def test_values_of_a_small_input_that_only_the_engine_refuses_are_kept() -> None:
    def scaled(arrays: Sequence[Array]) -> list[Array]:
        return [arrays[0] * arrays[1][-1]]  # the first of the factors is ignored

    def engine(feeds: Any) -> dict[str, Array]:
        if feeds["factors"][0] != 1:
            raise EngineError("the first factor must be 1")
        return {"y": feeds["x"] * feeds["factors"][-1]}

    inputs = [ProofInput("x", RNG.random((3, 4)), {0: Dim("n")}), ProofInput("factors", np.array([1.0, 3.0]))]
    exam = Verifier(scaled, inputs, ["y"], first=scaled([i.example for i in inputs]))
    proof = exam.verify(engine)
    assert proof.passed
    assert sum(c.varied and c.verdict == "pass" for c in proof.cases) >= 5
    wrong = exam.verify(lambda feeds: {"y": engine(feeds)["y"] + (feeds["x"].shape[0] > 3)})
    assert not wrong.passed
