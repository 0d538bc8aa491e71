"""Shapes that come from values survive the export."""

from __future__ import annotations

import numpy as np
import pytest
import sizes_from_values
import torch

import torchport as tp


@pytest.mark.parametrize("name", sizes_from_values.MODELS)
def test_sizes_from_values_are_right_at_unseen_values(name: str) -> None:
    make, inputs, dynamic = sizes_from_values.MODELS[name]
    torch.manual_seed(5)
    model = make().eval()
    exported = tp.export(model, inputs(4), dynamic=dynamic)
    assert exported.route in ("export", "rewrite")
    session = tp.session(exported.model)
    names = [i.name for i in exported.inputs]
    for rows in (1, 2, 3, 7):
        for _ in range(3):
            given = inputs(rows)
            with torch.no_grad():
                answer = model(*given)
            expected = [np.asarray(a) for a in (answer if isinstance(answer, tuple) else (answer,))]
            feeds = {n: g.numpy() for n, g in zip(names, given, strict=True)}
            for own, theirs in zip(session.run(feeds).values(), expected, strict=True):
                assert own.shape == theirs.shape
                np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-6)
