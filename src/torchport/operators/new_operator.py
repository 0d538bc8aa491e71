"""The files of a new operator."""

from __future__ import annotations

import builtins
import re
import sys
from pathlib import Path

from torchport.errors import OptionError, SaveError
from torchport.operators import definition

_STARTER = Path(__file__).parent / "starter"
_FILES = {"operator.py.txt": "{file}.py", "kernel.cc.txt": "{file}.cc", "test.py.txt": "test_{file}.py"}

# a file or a function of such a name would stand before something the starter uses
_NOT_FOR_FILES = frozenset(
    {*sys.stdlib_module_names, *dir(builtins), "_", "torch", "Tensor", "tp", "Net", "example_inputs"}
    | {"torchport", "numpy", "onnx", "onnxruntime", "onnxscript", "pytest"}
)


def start(name: str, folder: Path) -> list[Path]:
    """Write a working starter for an operator: PyTorch implementation, lowering, kernel, test.

    Args:
        name: ``mylib::my_op``.
        folder: where to; made if it is not there. Files that are there are not overwritten.
    """
    if re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name) is None:
        raise OptionError(f"'{name}' names no operator", next_step='write it as "domain::name": mylib::my_op')
    definition.check_words(name)
    domain, _, own = name.partition("::")
    if domain in definition.TAKEN:
        raise OptionError(f"'{domain}' is not yours to define operators in", next_step="take a domain of your own")
    node = f"{domain}::{''.join(part[:1].upper() + part[1:] for part in own.split('_')) or own}"
    python = f"{own}_op" if own in _NOT_FOR_FILES else own
    words = {"name": name, "own": python, "file": python, "node": node}
    targets = {source: folder / target.format(**words) for source, target in _FILES.items()}
    there = [t for t in targets.values() if t.exists()]
    if there:
        raise SaveError(f"'{there[0]}' is there already", next_step="take another folder with --folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in targets.items():
        target.write_text((_STARTER / source).read_text().format(**words))
    return list(targets.values())
