"""Models and exports that many tests share: an export takes seconds, so each is made once."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from small_net import SmallNet

import torchport as tp
from torchport.engines import registry
from torchport.engines.protocol import Engine

ROOT = Path(__file__).parent.parent

# Files whose tests take more than ten seconds together: `make check` leaves them out, `make test` runs them.
SLOW = {
    "test_absent_tensors",
    "test_antialias",
    "test_attention",
    "test_audio_models",
    "test_backend_nodes",
    "test_bench",
    "test_browser",
    "test_calibration",
    "test_compare",
    "test_complex_numbers",
    "test_control_flow",
    "test_cpp_project",
    "test_crash_safety",
    "test_definition",
    "test_definition_kernels",
    "test_detectors",
    "test_error_texts",
    "test_examples",
    "test_float_layers",
    "test_fuzz",
    "test_gradients",
    "test_layer_times",
    "test_linear_algebra",
    "test_missing_parts",
    "test_native",
    "test_opset_coverage",
    "test_opset_exported",
    "test_optimize",
    "test_ordering",
    "test_other_sizes",
    "test_pair_torch",
    "test_picked_layers",
    "test_pooling",
    "test_profile",
    "test_quantize",
    "test_quantize_hard_models",
    "test_quantized",
    "test_random_programs",
    "test_repairs",
    "test_repairs_layers",
    "test_repairs_sizes",
    "test_repairs_views",
    "test_repairs_written_out",
    "test_repeated_exports",
    "test_report",
    "test_scaled_dot_product_attention",
    "test_sequences",
    "test_sizes_elsewhere",
    "test_sizes_from_values",
    "test_sparse_and_lazy",
    "test_special_functions",
    "test_statistics",
    "test_stories",
    "test_symbolic",
    "test_torch_operators",
    "test_transforms",
    "test_try_engines",
    "test_tune",
    "test_types",
    "test_varying_sizes",
    "test_weight_only",
    "test_without_torch",
    "test_wrappers",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


settings.register_profile("torchport", deadline=None)  # two processes share two cores: a time limit fails at random
settings.load_profile("torchport")


@pytest.fixture(scope="session")
def small_net() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet().eval()


@pytest.fixture(scope="session")
def exported(small_net: SmallNet) -> tp.Exported:
    """SmallNet with batch, height and width dynamic, from an example of batch 1."""
    torch.manual_seed(0)
    return tp.export(small_net, (torch.randn(1, 3, 8, 8),), dynamic={"x": {0: "batch", 2: "height", 3: "width"}})


@pytest.fixture(scope="session")
def onnx_file(exported: tp.Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "small.onnx"
    tp.graph.save(exported.model, path)
    return path


@pytest.fixture(scope="session")
def torchport() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line as a user does."""

    def run(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("torchport")), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)

    return run


@pytest.fixture
def register_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, type[Engine]], None]:
    """Register an engine for the time of one test, as an installed package does."""

    def register(name: str, engine: type[Engine]) -> None:
        module = types.ModuleType(f"engine_{id(engine)}")
        module.Mine = engine  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        entries = {**registry._entries(), name: EntryPoint(name, f"{module.__name__}:Mine", registry.GROUP)}
        monkeypatch.setattr(registry, "_entries", lambda: entries)

    return register
