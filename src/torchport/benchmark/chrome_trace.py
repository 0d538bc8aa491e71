"""A profile as a Chrome trace, which chrome://tracing and ui.perfetto.dev show: the kernels of one run in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchport.benchmark.kernel_costs import origins_in
from torchport.benchmark.profile_report import Profile
from torchport.engines.profiling import KernelTimes
from torchport.files.filesystem import write_atomically
from torchport.irtools.names import name_of


def write_trace(path: Path, profile: Profile, times: KernelTimes) -> None:
    """Write the calls of one run, each with its nodes, modules and lines.

    Raises:
        SaveError: the file cannot be written.
    """
    threads = {thread: n for n, thread in enumerate(dict.fromkeys(span.thread for span in times.spans))}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"{profile.model} in {profile.engine}"}},
    ]
    for span in times.spans:
        kernel = times.kernels[span.kernel]
        nodes = kernel.nodes or kernel.beside
        origins = [origin for node in nodes for origin in origins_in(node)]
        event = {
            "name": kernel.name or kernel.operator,
            "cat": kernel.operator,
            "ph": "X",
            "pid": 0,
            "tid": threads[span.thread],
            "ts": span.start * 1e6,
            "dur": span.seconds * 1e6,
            "args": {
                "operator": kernel.operator,
                "nodes": [name_of(node) for node in kernel.nodes],
                "module": next((o.module for o in origins if o.module), ""),
                "line": next((o.source for o in origins if o.source), ""),
                "modules": list(dict.fromkeys(o.module for o in origins if o.module)),
                "lines": list(dict.fromkeys(o.source for o in origins if o.source)),
                "inserted": not kernel.nodes,
            },
        }
        events.append(event)
    starts = "measured" if times.measured_starts else "laid end to end: the engine does not tell when kernels start"
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"starts": starts}}
    write_atomically(path, lambda part: part.write_text(json.dumps(content)))
