"""The options of an ONNX Runtime session: threads, graph optimization, and execution providers with their options.

ONNX Runtime leaves a provider out with a warning where it is not built in or does not load, and gives the nodes that a
provider does not take to the CPU. Here the first is an error, and the second a finding that names the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime as ort

from torchport.engines.protocol import OpenOptions, Setting, Trial
from torchport.errors import EngineError, OptionError, did_you_mean
from torchport.results import Finding

CPU = "CPUExecutionProvider"
OPTIMIZED = "optimized graph"  # no setting of the user: where the profiler wants the graph that is run
OPTIMIZED_WEIGHTS = "optimized.data"  # beside that graph
_SUFFIX = "ExecutionProvider"
_REMOTE = "azure"  # calls servers that a model names, and is in every build
_LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": ort.GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_RECORD = "session.record_ep_graph_assignment_info"
_SPINNING = "session.intra_op.allow_spinning"
_EXTERNAL_NAME = "session.optimized_model_external_initializers_file_name"
_EXTERNAL_SIZE = "session.optimized_model_external_initializers_min_size_in_bytes"
_SHOWN = 8  # nodes that a message names

SETTINGS: Mapping[str, Setting] = {
    "providers": Setting("execution providers in order, tensorrt,cuda say; the CPU takes the rest", list),
    "graph_optimization": Setting("how far the graph is optimized", words=tuple(_LEVELS)),
    "inter_op_threads": Setting("threads that run nodes side by side", int, most=64),
    "spinning": Setting("threads wait for work by spinning: quicker, and it slows other sessions", bool),
    "profile": Setting("the beginning of the path of a profile that is written when the session ends", str),
}
_PROVIDER_OPTION = Setting("an option of a provider, by the provider's own documentation", str)


def setting(name: str) -> Setting | None:
    """Return a setting; ``tensorrt.trt_fp16_enable`` is an option of a provider."""
    return _PROVIDER_OPTION if "." in name.strip(".") else SETTINGS.get(name)


def trials(cpus: int) -> tuple[Trial, ...]:
    """Return options worth measuring: fewer threads, fewer graph optimizations, nodes side by side."""
    fewer = sorted({n for n in (cpus // 2, 1) if 0 < n < cpus}, reverse=True)
    return (
        *(Trial(threads=n) for n in fewer),
        Trial(settings={"graph_optimization": "extended"}),
        Trial(settings={"graph_optimization": "basic"}),
        Trial(settings={"spinning": False}),
        *([Trial(settings={"inter_op_threads": 2})] if cpus > 1 else []),
    )


def session_options(how: OpenOptions) -> ort.SessionOptions:
    """Return ONNX Runtime's own options for ours."""
    options, settings = ort.SessionOptions(), how.settings
    if how.threads is not None:
        options.intra_op_num_threads = how.threads
    if "graph_optimization" in settings:
        options.graph_optimization_level = _LEVELS[settings["graph_optimization"]]
    if "inter_op_threads" in settings:
        options.inter_op_num_threads = settings["inter_op_threads"]
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    if "spinning" in settings:
        options.add_session_config_entry(_SPINNING, str(int(settings["spinning"])))
    if "profile" in settings:
        options.enable_profiling, options.profile_file_prefix = True, settings["profile"]
    if OPTIMIZED in settings:
        options.optimized_model_filepath = settings[OPTIMIZED]
        options.add_session_config_entry(_EXTERNAL_NAME, OPTIMIZED_WEIGHTS)
        options.add_session_config_entry(_EXTERNAL_SIZE, "1024")
    if "providers" in settings:
        options.add_session_config_entry(_RECORD, "1")
    return options


def asked_providers(settings: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return the providers in order, each with its options. The CPU is the last one, as in ONNX Runtime.

    Raises:
        OptionError: a provider is not in this ONNX Runtime, or options are given for one that is not asked for.
    """
    names = [_provider(text) for text in settings.get("providers", ())] or [CPU]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for key, value in settings.items():
        short, dot, option = key.partition(".")
        if not dot:
            continue
        name = _provider(short)
        if name not in found:
            raise OptionError(
                f"'{key}' is an option of {name}, which is not among the providers",
                next_step=f"ask for it: --option providers={','.join([short, *_shorts(names)])}",
            )
        found[name][option] = value
    found.setdefault(CPU, {})
    return list(found.items())


def further_providers() -> list[str]:
    """Return the short names of the providers beside the CPU that compute on this machine."""
    return [n for n in _shorts(ort.get_available_providers()) if n not in (*_shorts([CPU]), _REMOTE)]


def _shorts(names: Sequence[str]) -> list[str]:
    return [name.removesuffix(_SUFFIX).lower() for name in names]


def _provider(text: str) -> str:
    """Return a provider's full name: ``cuda`` is CUDAExecutionProvider."""
    short = text.strip().lower().removesuffix(_SUFFIX.lower())
    available, known = ort.get_available_providers(), ort.get_all_providers()
    by_short = dict(zip(_shorts([*known, *available]), [*known, *available], strict=True))
    name = by_short.get(short)
    here = f"here are: {', '.join(_shorts(available))}"
    if name is None:
        raise OptionError(
            f"ONNX Runtime has no execution provider '{text}'",
            next_step=did_you_mean(short, by_short, here, more=here),
        )
    if name not in available:
        raise OptionError(
            f"the execution provider {name} is not in this ONNX Runtime ({ort.__version__})",
            where=here,
            next_step="install the build of onnxruntime that has it, onnxruntime-gpu for cuda and tensorrt",
        )
    return name


def check_active(asked: Sequence[str], active: Sequence[str]) -> None:
    """Check that every provider that was asked for is part of the session.

    Raises:
        EngineError: ONNX Runtime left one out.
    """
    lacking = [name for name in asked if name not in active]
    if lacking:
        raise EngineError(
            f"the execution provider {lacking[0]} is not active: ONNX Runtime could not load it and left it out",
            where=f"active are: {', '.join(active)}",
            next_step="see that its device, driver and libraries are there, or ask for providers=cpu",
        )


def fallbacks(session: ort.InferenceSession, asked: Sequence[str]) -> tuple[Finding, ...]:
    """Return the nodes that a provider was asked for and the CPU runs.

    Raises:
        EngineError: a provider takes none of the nodes.
    """
    if not [name for name in asked if name != CPU]:
        return ()
    taken: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        taken.setdefault(part.ep_name, []).extend(_title(node) for node in part.get_nodes())
    for name in asked:
        if name != CPU and not taken.get(name):
            raise EngineError(
                f"the execution provider {name} takes none of the model's nodes",
                where=f"the CPU would run {_listed(taken.get(CPU, []))}" if taken.get(CPU) else None,
                next_step="ask for providers=cpu, or for one that has kernels of these operators",
            )
    rest = taken.get(CPU, [])
    if not rest or asked[0] == CPU:
        return ()
    total = sum(map(len, taken.values()))
    return (Finding(f"the CPU runs {len(rest)} of {total} nodes that {asked[0]} does not take: {_listed(rest)}"),)


def _title(node: Any) -> str:
    return f"'{node.name}' ({node.op_type})" if node.name else node.op_type


def _listed(nodes: Sequence[str]) -> str:
    more = len(nodes) - _SHOWN
    return ", ".join(nodes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
