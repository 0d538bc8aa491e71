"""What `torchport run -o` writes."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from torchport.errors import SaveError
from torchport.inputs import arrays
from torchport.inputs.samples import read_samples

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_outputs_of_any_name_come_back_from_an_npz(tmp_path: Path) -> None:
    outputs = {"file": X, "allow_pickle": X + 1, "/head/Relu:0": X.T, "texts": np.array(["a", "bc"], object)}
    arrays.save(str(tmp_path / "out.npz"), outputs)
    with np.load(tmp_path / "out.npz") as saved:
        assert saved.files == list(outputs)
        for name, array in outputs.items():
            np.testing.assert_array_equal(saved[name], array)
    assert os.listdir(tmp_path) == ["out.npz"]


def test_bfloat16_comes_back_as_bfloat16(tmp_path: Path) -> None:
    arrays.save(str(tmp_path / "out.npz"), {"y": X.astype(ml_dtypes.bfloat16)})
    (sample,) = read_samples(tmp_path / "out.npz")
    assert sample.arrays["y"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(sample.arrays["y"].astype(np.float32), X)


def test_an_npy_holds_the_one_output_and_refuses_several(tmp_path: Path) -> None:
    arrays.save(str(tmp_path / "out.npy"), {"file": X})
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), X)
    with pytest.raises(SaveError, match="there are 2 outputs"):
        arrays.save(str(tmp_path / "out.npy"), {"y": X, "z": X})
