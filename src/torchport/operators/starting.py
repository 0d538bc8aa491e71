"""The files of a new operator."""

from __future__ import annotations

import re
from pathlib import Path

from torchport.errors import OptionError, SaveError

_STARTER = Path(__file__).parent / "starter"
_FILES = {"operator.py.txt": "{file}.py", "kernel.cc.txt": "{file}.cc", "test.py.txt": "test_{file}.py"}


def start(name: str, folder: Path) -> list[Path]:
    """Write a working starter for an operator: PyTorch implementation, lowering, kernel, test.

    Args:
        name: ``mylib::my_op``.
        folder: where to; made if it is not there. Files that are there are not overwritten.
    """
    if re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name) is None:
        raise OptionError(f"'{name}' names no operator", next_step='write it as "domain::name": mylib::my_op')
    domain, _, own = name.partition("::")
    if domain in ("aten", "prims", "onnx", "torchport"):
        raise OptionError(f"'{domain}' is not yours to define operators in", next_step="take a domain of your own")
    node = f"{domain}::{''.join(part.capitalize() for part in own.split('_'))}"
    words = {"name": name, "own": own, "file": own, "node": node}
    targets = {source: folder / target.format(**words) for source, target in _FILES.items()}
    there = [t for t in targets.values() if t.exists()]
    if there:
        raise SaveError(f"'{there[0]}' is there already", next_step="take another folder with --folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in targets.items():
        target.write_text((_STARTER / source).read_text().format(**words))
    return list(targets.values())
