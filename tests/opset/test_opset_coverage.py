"""Every operator that onnx changed is known, and onnx's own tests agree."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from conversions import run

from torchport.errors import OpsetError
from torchport.irtools import schemas
from torchport.opset import convert, rules


def test_every_change_of_wording_has_a_rule_or_was_read() -> None:
    """Fails when a newer onnx changes an operator: then somebody has to read what changed."""
    unread = []
    for op, versions in schemas.history().items():
        since = sorted(versions)
        for old, new in itertools.pairwise(since):
            if new < 8 or schemas.wording(op, old) == schemas.wording(op, new):
                continue
            down = (op, new) in rules.DOWN or rules.is_harmless(op, new, downwards=True)
            up = (op, new) in rules.UP or rules.is_harmless(op, new, downwards=False)
            gone = versions[new].deprecated
            unread += [] if (down or gone) and up else [(op, new)]
    assert not unread


def test_every_rule_belongs_to_a_border_that_exists() -> None:
    for op, at in {*rules.DOWN, *rules.UP}:
        assert at in schemas.history()[op], (op, at)


def samples() -> Iterator[Any]:
    """Every fortieth of onnx's own node tests that ONNX Runtime runs as it stands."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    yield from (case for case in cases[::40] if [o.domain for o in case.model.opset_import] == [""])


def test_onnx_own_node_tests_give_the_same_numbers_or_are_refused() -> None:
    same = refused = 0
    for case in samples():
        arrays = [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in case.data_sets[0][0]]
        feeds = {value.name: array for value, array in zip(case.model.graph.input, arrays, strict=True)}
        source = case.model.opset_import[0].version
        try:
            want = run(case.model, feeds)
        except Exception:  # noqa: BLE001  (an operator this runtime does not have)
            continue
        for target in {source - 1, 17, 13, 11} & set(range(11, source)):
            try:
                got = run(convert.convert(ir.from_proto(case.model), target), feeds)
            except OpsetError:
                refused += 1
                continue
            except Exception as error:  # noqa: BLE001
                assert "NOT_IMPLEMENTED" in str(error), (case.name, target, error)  # noqa: PT017
                continue
            assert_same_any(got, want, f"{case.name} to {target}")
            same += 1
    assert same > 40
    assert refused > 5


def assert_same_any(got: Any, want: Any, label: str) -> None:
    if isinstance(want, list):
        assert len(got) == len(want), label
        for x, y in zip(got, want, strict=True):
            assert_same_any(x, y, label)
    elif isinstance(want, np.ndarray) and want.dtype.kind in "fc":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=label)
    else:
        np.testing.assert_array_equal(got, want, err_msg=label)
