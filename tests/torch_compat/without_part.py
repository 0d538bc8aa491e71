"""Export two models with private parts made to vanish, each in a process of its own; print a line of JSON for each.

A part vanishes by its path in the table: torch itself goes on using it. torch is imported once, then the process forks.
Usage: python without_part.py NAME...
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

import onnx  # noqa: F401 -- imported once, before the forks
import onnxruntime  # noqa: F401
import onnxscript  # noqa: F401
import torch
from torch import nn

from torchport.torch_compat import parts


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def exported(**options: Any) -> dict[str, Any]:
    import torchport as tp

    torch.manual_seed(0)
    result = tp.export(Plain().eval(), (torch.randn(2, 3, 6, 6),), **options)
    return {"route": result.route, "proven": result.proven, "findings": [f.message for f in result.findings]}


def report(name: str) -> dict[str, Any]:
    """Return what happens without a part: both exports, and the lines of doctor on private parts."""
    wanted = parts.PARTS[name]
    parts.PARTS[name] = dataclasses.replace(wanted, path=f"{wanted.path}_that_is_gone")
    plain, dynamic = exported(), exported(dynamic={"x": {0: "batch", 2: "height"}})
    from torchport.environment import doctor

    checks = [check for check in doctor().checks if check.group == "private parts"]
    off = {check.name: check.detail for check in checks if check.status != "ok"}
    return {"part": name, "plain": plain, "dynamic": dynamic, "doctor": off}


def main(names: list[str]) -> None:
    assert not parts.missing(), "the modules that hold the parts are imported here, before the forks"
    for name in names:
        child = os.fork()
        if child == 0:
            try:
                line = report(name)
            except BaseException as error:  # noqa: BLE001 - the parent reports it
                line = {"part": name, "error": f"{type(error).__name__}: {error}"}
            os.write(1, (json.dumps(line) + "\n").encode())
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
