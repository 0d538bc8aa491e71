"""Values reach a model's inputs by name, and arguments their containers by dotted names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchport.errors import InputError
from torchport.inputs.binding import Binder, flat, nested
from torchport.results import Bound, TensorInfo


def bind(feeds: dict[str, Any], infos: list[TensorInfo]) -> dict[str, Any]:
    return Binder(infos).bind(feeds)[0]


IMAGE = TensorInfo("image", "float32", ("batch", 3))
MASK = TensorInfo("mask", "int64", ("batch",))
X = np.ones((2, 3), np.float32)
M = np.ones(2, np.int64)


def test_values_come_in_the_models_order_whatever_they_are() -> None:
    bound = bind({"mask": [1, 1], "image": torch.from_numpy(X)}, [IMAGE, MASK])
    assert list(bound) == ["image", "mask"]
    assert bound["mask"].dtype == np.int64
    np.testing.assert_array_equal(bound["image"], X)
    assert bind({"image": X, "mask": M}, [IMAGE, MASK])["image"] is X


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"image": X}, "input 'mask' is missing"),
        ({"image": X, "mask": M, "label": M}, "there is no input 'label'"),
        ({"image": X.astype(np.float64), "mask": M}, "input 'image' is float64, the model takes float32"),
        ({"image": X[0], "mask": M}, "input 'image' has rank 1, the model takes 2"),
        ({"image": X[:, :2], "mask": M}, "input 'image' has size 2 at axis 1, the model is fixed to 3"),
    ],
)
def test_what_does_not_fit_is_named(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        bind(feeds, [IMAGE, MASK])
    assert caught.value.what == message


def test_contiguous_inputs_are_not_copied() -> None:
    tensor = torch.ones(2, 3)
    assert np.shares_memory(bind({"image": X}, [IMAGE])["image"], X)
    assert bind({"image": tensor}, [IMAGE])["image"].ctypes.data == tensor.data_ptr()


def test_numbers_of_the_other_byte_order_keep_their_values() -> None:
    bound = bind({"image": X.astype(">f4")}, [IMAGE])["image"]
    assert bound.dtype.isnative
    np.testing.assert_array_equal(bound, X)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 3), "dimension 'batch' has two sizes: 2 and 3"),
        ((6, 6), "dimension 'batch' is 6; the model was exported for batch multiples of 4"),
    ],
)
def test_a_dimension_has_one_size_that_the_model_is_good_for(sizes: tuple[int, int], message: str) -> None:
    binder = Binder([IMAGE, MASK], {"batch": Bound(step=4)})
    with pytest.raises(InputError) as caught:
        binder.bind({"image": np.ones((sizes[0], 3), np.float32), "mask": np.ones(sizes[1], np.int64)})
    assert caught.value.what == message
    binder.bind({"image": np.ones((8, 3), np.float32), "mask": np.ones(8, np.int64)})


def test_a_close_name_is_offered_among_the_missing_ones() -> None:
    with pytest.raises(InputError) as caught:
        bind({"imag": X, "mask": M}, [IMAGE, MASK])
    assert caught.value.next_step == "did you mean 'image'?"


@pytest.mark.parametrize(
    ("dotted", "expected"),
    [
        ({"x": 1}, {"x": 1}),
        ({"s.0": 1, "s.1": 2}, {"s": [1, 2]}),
        ({"b.mask": 1, "b.ids.0": 2}, {"b": {"mask": 1, "ids": [2]}}),
        ({"x": {"0": 1}}, {"x": {"0": 1}}),
    ],
)
def test_dotted_names_become_containers(dotted: dict[str, Any], expected: dict[str, Any]) -> None:
    assert nested(dotted) == expected


def test_nested_and_flat_are_inverse() -> None:
    dotted = {"x": 1, "states.0": 2, "states.1.h": 3, "batch.mask": 4}
    assert flat(nested(dotted)) == dotted


@pytest.mark.parametrize(
    ("dotted", "message"),
    [
        ({"x": 1, "x.y": 2}, "'x' is given as a whole and in part, as 'x.y'"),
        ({"x.y.z": 1, "x.y": 2}, "'x.y' is given as a whole and in part, as 'x.y.z'"),
        ({"x.1": 1}, "the items of 'x' are not numbered"),
        ({"x.0": 1, "x.a": 2}, "the items of 'x' are not numbered"),
    ],
)
def test_names_that_contradict_each_other_are_refused(dotted: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        nested(dotted)
