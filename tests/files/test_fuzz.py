"""Broken and hostile files against every verb: only torchport's own errors come out, in little memory and time.

About a minute of it; `make fuzz SECONDS=600` goes on for as long as wanted. A failure names its seed and number, with
which `mutations.endless` makes the same file again.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import hostile_models
import mutations
import pytest
import trying
from made_models import node, proto_of, written
from onnx import TensorProto, helper

import torchport as tp
from torchport.errors import InputError

SEED = int(os.environ.get("TORCHPORT_FUZZ_SEED", "20240611"))
SECONDS = 30.0


@pytest.fixture(scope="module")
def worker() -> Iterator[trying.Worker]:
    with trying.Worker() as one:
        yield one


def _all_well(worker: trying.Worker, files: Iterator[tuple[str, bytes]]) -> None:
    found = [f"{failure.name}: {failure.what}" for failure in trying.failures(worker, files)]
    assert not found, "\n".join(found)


def test_files_made_to_break_whoever_opens_them(worker: trying.Worker) -> None:
    _all_well(worker, hostile_models.files())


def test_files_cut_at_every_length(worker: trying.Worker) -> None:
    _all_well(worker, mutations.truncations())


def test_files_with_faults_at_random(worker: trying.Worker) -> None:
    print(f"seed {SEED}")
    end = time.monotonic() + SECONDS
    before = worker.count
    _all_well(worker, itertools.takewhile(lambda _: time.monotonic() < end, mutations.endless(SEED)))
    assert worker.count - before > 200


def test_what_is_spoiled_is_sound_before(tmp_path: Path) -> None:
    (tmp_path / mutations.DATA).write_bytes(bytes(4096))
    for name, model in mutations.models().items():
        path = written(model, tmp_path)
        assert tp.graph.describe(path).nodes > 0, name
        assert len(tp.graph.cut(path).graph) > 0, name
        assert tp.graph.split(path, at=2), name


def test_a_worker_that_dies_hangs_or_raises_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "SECONDS", 2.0)
    ways = {
        "os.abort()": "died",
        "time.sleep(9)": "took more",
        "1 / 0": "ZeroDivisionError",
        "bytearray(1 << 33)": "MemoryError",
    }
    for way, told in ways.items():
        with trying.Worker(way) as worker:
            assert told in worker.try_file(b"")


def test_a_loop_in_a_loop_that_inference_chokes_on_is_an_error_of_ours(tmp_path: Path) -> None:
    content = mutations.models()["branches"].SerializeToString()
    path = written(content.replace(b'\x1a\x04relu"\x04Relu', b'\x1a\x04relu"\x04Loop'), tmp_path)
    for source in (path, tp.graph.load(path)):
        with pytest.raises(InputError, match="nothing tells the type of 'd'"):
            tp.graph.cut(source, ["x"], ["d"], complete=True)


def test_a_text_has_no_size_to_split_by(tmp_path: Path) -> None:
    proto = proto_of(node("Identity", "x", to="a"), node("Concat", "a", "w", axis=0))
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.elem_type = TensorProto.STRING
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.STRING, [0, 32], []))
    parts = tp.graph.split(written(proto, tmp_path), at=2)
    assert [[n.op_type for n in part.graph] for part in parts] == [["Identity"], ["Concat"]]


def test_a_node_whose_name_is_no_text_is_described(tmp_path: Path) -> None:
    content = mutations.models()["branches"].SerializeToString()
    path = written(content.replace(b"\x1a\x02if", b"\x1a\x02\xff\xfe"), tmp_path)
    assert "branches and bodies" in str(tp.graph.describe(path))


def test_more_nodes_take_time_and_memory_in_proportion() -> None:
    few, many = (_seconds(count) for count in (10_000, 100_000))
    assert many < 20 * few + 2


def _seconds(count: int) -> float:
    content = hostile_models.many(count)
    with trying.Worker("tp.graph.lint(path)") as worker:
        assert worker.try_file(b"\x08\x0a") == ""
        start = time.perf_counter()
        found = worker.try_file(content)
    assert found == ""
    return time.perf_counter() - start
