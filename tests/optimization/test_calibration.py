"""Calibration data: one sample in memory, a part held out, and every kind of source."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchport.errors import InputError
from torchport.inputs.samples import Sample, save_call
from torchport.optimization.calibration import MOST, CalibrationData, given_data, made_up_data, stored
from torchport.optimization.static_int8 import Samples
from torchport.results import Bound, TensorInfo

X = TensorInfo("x", "float32", ("batch", 3))
IDS = TensorInfo("ids", "int64", ("batch",))


def row(number: float) -> np.ndarray:
    return np.full((1, 3), number, np.float32)


def read(source: Any, folder: Path, *, extras: bool = False, infos: Any = (X,)) -> CalibrationData:
    return given_data(source, infos, {}, folder, extras=extras)


def test_one_sample_is_in_memory_however_many_there_are(tmp_path: Path) -> None:
    class Counted(np.ndarray):
        pass

    alive: set[int] = set()
    most = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal most
        for n in itertools.count():
            array = row(n).view(Counted)
            alive.add(n)
            weakref.finalize(array, alive.discard, n)
            most = max(most, len(alive))
            yield {"x": array}
            del array

    data = read(endless(), tmp_path)
    assert len(data.calibration) + len(data.held_out) == MOST
    assert most <= 3
    assert f"the first {MOST} samples" in str(data.findings[0])


def test_every_fourth_sample_is_held_out_and_the_numbers_are_kept(tmp_path: Path) -> None:
    data = read([{"x": row(n)} for n in range(10)], tmp_path)
    assert data.held_out == ("s3", "s7")
    assert len(data.calibration) == 8
    assert [float(feeds["x"][0, 0]) for feeds in stored(data, data.calibration)] == [0, 1, 2, 4, 5, 6, 8, 9]


def test_of_two_samples_the_last_is_held_out_and_one_alone_is_said(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    two = read([{"x": row(0)}, {"x": row(1)}], tmp_path / "two")
    assert (two.calibration, two.held_out) == (("s0",), ("s1",))
    one = read([{"x": row(0)}], tmp_path / "one")
    assert one.calibration == one.held_out == ("s0",)
    assert "there is one sample" in str(one.findings[0])


def test_tensors_tuples_and_single_arrays_are_taken_in_order(tmp_path: Path) -> None:
    for n, source in enumerate(([torch.ones(1, 3)] * 2, [(row(1),)] * 2, [row(1)] * 2, [{"x": torch.ones(1, 3)}] * 2)):
        (tmp_path / str(n)).mkdir()
        data = read(source, tmp_path / str(n))
        np.testing.assert_array_equal(data.inputs("s0")["x"], row(1))


def test_recorded_calls_are_samples_whose_outputs_a_metric_may_see(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    (tmp_path / "kept").mkdir()
    for n in range(4):
        sample = Sample(f"call_{n}", {"x": row(n)}, {"y": row(-n)}, {"flag": True}, {"x": {"tensor": "x"}})
        save_call(tmp_path / "calls" / f"call_{n:05}.npz", sample)
    data = read(tmp_path / "calls", tmp_path / "kept", extras=True)
    assert set(data.inputs("s2")) == {"x"}
    assert float(data.whole("s2")["y"][0, 0]) == -2


def test_sizes_that_the_model_is_not_good_for_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'batch' is 1") as caught:
        given_data([{"x": row(0)}], [X], {"batch": Bound(2)}, tmp_path, extras=False)
    assert "sample 0" in str(caught.value.where)


def test_made_up_samples_differ_and_warn(tmp_path: Path) -> None:
    data = made_up_data({"x": row(0), "ids": np.zeros(4, np.int64)}, tmp_path, 0)
    arrays = [data.inputs(name)["x"] for name in (*data.calibration, *data.held_out)]
    assert len({array.tobytes() for array in arrays}) == len(arrays)
    assert data.inputs("s0")["ids"].dtype == np.int64
    assert data.made_up
    assert "made up" in str(data.findings[0])


def test_the_quantizers_read_a_sample_when_they_need_it() -> None:
    read_names: list[str] = []
    samples = Samples(lambda name: read_names.append(name) or name, ["a", "b", "c"])
    assert len(samples) == 3
    iterator = iter(samples)
    assert next(iterator) == "a"
    assert read_names == ["a"]
    assert samples[2] == "c"
    assert list(samples) == list(samples) == ["a", "b", "c"]
