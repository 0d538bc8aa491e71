"""Measure the C++ runner: latency beside ONNX Runtime's C++ API by hand, first answer beside Python, leaks, the build.

    make bench-native

Everything runs side by side in one go; each line has a ratio, its bar, and whether it holds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import torchport as tp
from torchport.engines.onnxruntime import headers

ROOT = Path(__file__).parents[1]
PYTHON = """
import sys, numpy, onnxruntime
with numpy.load(sys.argv[2]) as feeds:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    print(session.run(None, {name: feeds[name] for name in feeds.files})[0].shape, flush=True)
"""
TORCHPORT = """
import sys, numpy, torchport
with numpy.load(sys.argv[2]) as feeds:
    print(torchport.session(sys.argv[1]).run(dict(feeds))["y"].shape, flush=True)
"""
LATENCY = r"""
// One process, one input, both ways in turn: torchport::Session, and ONNX Runtime's C++ API as its samples use it.
#include <torchport/torchport.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>

using Clock = std::chrono::steady_clock;

template <typename Run> double seconds(int count, Run run) {
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) run();
  return std::chrono::duration<double>(Clock::now() - start).count() / count;
}

int main(int, char** arguments) {
  const torchport::Tensors inputs = torchport::read_npz(arguments[2]);
  const int count = std::atoi(arguments[3]), rounds = std::atoi(arguments[4]);
  torchport::SessionOptions options;
  options.threads = 1;
  const torchport::Session session(arguments[1], options);
  const torchport::Tensor& x = inputs[0].second;

  Ort::Env env(ORT_LOGGING_LEVEL_FATAL, "hand");
  Ort::SessionOptions ort_options;
  ort_options.SetIntraOpNumThreads(1);
  Ort::Session hand(env, arguments[1], ort_options);
  const std::string in = session.inputs()[0].name, out = session.outputs()[0].name;
  const std::array<const char*, 1> in_names{in.c_str()}, out_names{out.c_str()};
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);

  volatile float sink = 0;
  const std::array<const torchport::Tensor*, 1> given{&x};
  const auto ours = [&] {
    const std::vector<torchport::Tensor> outputs = session.run_in_order(given.data(), 1);
    sink = outputs[0].data_as<float>()[0] + static_cast<float>(outputs[0].shape()[0]);
  };
  const auto by_hand = [&] {
    float* numbers = x.data_as<float>();
    Ort::Value value = Ort::Value::CreateTensor<float>(memory, numbers, x.size(), x.shape().data(), x.rank());
    auto outputs = hand.Run(Ort::RunOptions{nullptr}, in_names.data(), &value, 1, out_names.data(), 1);
    const auto shape = outputs[0].GetTensorTypeAndShapeInfo().GetShape();  // the batch is dynamic: its size is needed
    sink = outputs[0].GetTensorData<float>()[0] + static_cast<float>(shape[0]);
  };
  seconds(count, ours);
  seconds(count, by_hand);
  for (int round = 0; round < rounds; ++round) {
    const bool first = round % 2 == 0;
    const double a = first ? seconds(count, ours) : 0;
    const double b = seconds(count, by_hand);
    std::printf("%.9g %.9g\n", first ? a : seconds(count, ours), b);
  }
}
"""
LEAKS = r"""
// Open and run a model again and again in one process; print what is resident after a tenth and at the end.
#include <torchport/torchport.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>

static long resident() {
  long pages = 0, all = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * sysconf(_SC_PAGESIZE) / 1024;
}

int main(int, char** arguments) {
  const int count = std::atoi(arguments[3]);
  torchport::SessionOptions options;
  options.threads = 1;
  long early = 0;
  for (int i = 0; i < count; ++i) {
    const torchport::Session session(arguments[1], options);
    session.run(torchport::read_npz(arguments[2]));
    if (i == count / 10) early = resident();
  }
  std::printf("%ld %ld\n", early, resident());
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.21)
project(measured LANGUAGES CXX)
set(CMAKE_CXX_EXTENSIONS OFF)
find_package(torchport REQUIRED)
foreach(_name latency leaks)
  add_executable(${_name} ${_name}.cpp)
  target_link_libraries(${_name} PRIVATE torchport::torchport)
endforeach()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--starts", type=int, default=1000, help="how often the program is started, and sessions opened"
    )
    parser.add_argument("--rounds", type=int, default=60, help="interleaved rounds of the latency")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        held = [*_figures(work, options.starts, options.rounds)]
    return 0 if all(held) else 1


def _figures(work: Path, starts: int, rounds: int) -> Sequence[bool]:
    install = _install(work)
    program = install / "bin" / "torchport-run"
    models = {
        "small": _perceptron(work / "small.onnx", [16, 16]),
        "medium": _perceptron(work / "medium.onnx", [512] * 6),
    }
    found = [_project(work, models["medium"])]
    measured = _measured(work, install)
    for name, model in models.items():
        found.append(_latency(measured / "latency", name, model, rounds))
    found.append(_first_answer(program, models["small"]))
    found.append(_starts(program, models["small"], starts))
    found.append(_sessions(measured / "leaks", models["small"], starts))
    return found


def _say(text: str, held: bool) -> bool:
    print(f"{'ok ' if held else 'MISSED'}  {text}", flush=True)
    return held


def _run(command: Sequence[object]) -> str:
    environment = {
        **os.environ,
        "TORCHPORT_ORT_LIBRARY": str(Path(onnxruntime.__file__).parent / "capi"),
        "TORCHPORT_ORT_INCLUDE": headers.find().folder,
    }
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def _install(work: Path) -> Path:
    _run(["cmake", "-S", ROOT / "native", "-B", work / "native", "-DTORCHPORT_BUILD_TESTS=OFF"])
    _run(["cmake", "--build", work / "native"])
    _run(["cmake", "--install", work / "native", "--prefix", work / "prefix"])
    return work / "prefix"


def _measured(work: Path, install: Path) -> Path:
    folder = work / "measured"
    folder.mkdir()
    for name, text in (("latency.cpp", LATENCY), ("leaks.cpp", LEAKS), ("CMakeLists.txt", CMAKE)):
        (folder / name).write_text(text)
    _run(
        ["cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={install}", "-DCMAKE_BUILD_TYPE=Release"]
    )
    _run(["cmake", "--build", folder / "build"])
    return folder / "build"


def _perceptron(path: Path, widths: list[int]) -> tuple[Path, Path]:
    """A model of matrix products and ReLUs, and a file with inputs."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for n, (before, after) in enumerate(zip(widths, [*widths[1:], widths[-1]], strict=True)):
        weights.append(numpy_helper.from_array(rng.standard_normal((before, after), dtype=np.float32), f"w{n}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{n}"], [f"p{n}"]),
            helper.make_node("Relu", [f"p{n}"], [f"r{n}"]),
        ]
        last = f"r{n}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", w])
        for n, w in (("x", widths[0]), ("y", widths[-1]))
    ]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    feeds = path.with_suffix(".npz")
    np.savez(feeds, x=rng.standard_normal((4, widths[0]), dtype=np.float32))
    return path, feeds


def _project(work: Path, model: tuple[Path, Path]) -> bool:
    project = tp.cpp_project(model[0], work / "app")
    start = time.monotonic()
    _run(["cmake", "-S", work / "app", "-B", work / "app" / "build"])
    _run(["cmake", "--build", work / "app" / "build"])
    _run(["ctest", "--test-dir", work / "app" / "build"])
    _run([work / "app" / "build" / "test_golden", "--exact"])
    took = time.monotonic() - start
    return _say(
        f"generated project '{project.target}' builds and passes from nothing in {took:.1f} s (bar: 60 s)", took < 60
    )


def _latency(program: Path, name: str, model: tuple[Path, Path], rounds: int) -> bool:
    count = 2000 if name == "small" else 200
    pairs = [tuple(map(float, line.split())) for line in _run([program, *model, count, rounds]).splitlines()]
    ours, hand = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    text = f"latency, {name} model: {ours * 1e6:.2f} us, by hand {hand * 1e6:.2f} us: {ratio:.3f} times (bar: 1.02)"
    return _say(text, ratio <= 1.02)


def _first_answer(program: Path, model: tuple[Path, Path], repeats: int = 21) -> bool:
    """From the start of a process to its first line of output, in turn."""
    commands = {
        "C++": [program, model[0], "-i", model[1]],
        "Python with onnxruntime": [sys.executable, "-c", PYTHON, *model],
        "Python with torchport": [sys.executable, "-c", TORCHPORT, *model],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            times[name].append(_until_a_line(command))
    ours, bare, full = (statistics.median(times[name]) for name in commands)
    _say(
        f"start to first answer beside Python with torchport, {full * 1e3:.0f} ms: {full / ours:.1f} times faster", True
    )
    text = f"start to first answer: {ours * 1e3:.1f} ms, Python with onnxruntime {bare * 1e3:.0f} ms"
    return _say(f"{text}: {bare / ours:.1f} times faster (bar: 10)", bare / ours >= 10)


def _until_a_line(command: Sequence[object]) -> float:
    start = time.perf_counter()
    with subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - start
        process.stdout.read()
    if not line or process.returncode:
        sys.exit(f"{command[0]} failed")
    return took


def _starts(program: Path, model: tuple[Path, Path], count: int) -> bool:
    for _ in range(count):
        _run([program, model[0], "-i", model[1]])
    return _say(f"started {count} times: exit code 0 each time", True)


def _sessions(program: Path, model: tuple[Path, Path], count: int) -> bool:
    early, late = map(int, _run([program, *model, count]).split())
    grown = late - early
    text = f"{count} sessions opened, run and closed in one process: {early} KiB resident early, {late} KiB at the end"
    return _say(f"{text} (bar: 1024 KiB more)", grown < 1024)


if __name__ == "__main__":
    if shutil.which("cmake") is None:
        sys.exit("there is no CMake here; apt install cmake g++")
    sys.exit(main())
