"""The modules that a model's nodes come from, as a tree: from torchport's origins, torch's own, or the nodes' names."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from torchport.irtools.metadata import module_of
from torchport.irtools.names import name_of

_SCOPES = "pkg.torch.onnx.name_scopes"  # torch.onnx.export writes it: a list of module paths, then the node's own name


@dataclasses.dataclass
class ModuleTree:
    """The modules of a model, the model itself first.

    Attributes:
        source: how the modules are known: ``origins``, ``torch``, ``names``, or empty if nothing tells.
        parents: of each module, the number of the module around it; -1 for the model itself.
        labels: the last part of each path.
        paths: the whole path of each.
    """

    source: str
    parents: list[int] = dataclasses.field(default_factory=lambda: [-1])
    labels: list[str] = dataclasses.field(default_factory=lambda: [""])
    paths: list[str] = dataclasses.field(default_factory=lambda: [""])
    _numbers: dict[tuple[int, str], int] = dataclasses.field(default_factory=dict)

    def number(self, parts: Sequence[str], separator: str) -> int:
        """Return the number of the module at a path; it and those around it are added where they are new."""
        current = 0
        for depth, label in enumerate(parts):
            key = (current, label)
            if key not in self._numbers:
                self._numbers[key] = len(self.labels)
                self.parents.append(current)
                self.labels.append(label)
                self.paths.append(separator.join(parts[: depth + 1]))
            current = self._numbers[key]
        return current


def module_tree(nodes: Iterable[ir.Node]) -> tuple[ModuleTree, list[int]]:
    """Return the tree, and of each node the number of its module."""
    every = list(nodes)
    for source, parts_of, separator in _SOURCES:
        found = [parts_of(node) for node in every]
        if any(found):
            tree = ModuleTree(source)
            return tree, [tree.number(parts, separator) for parts in found]
    return ModuleTree(""), [0] * len(every)


def _by_origin(node: ir.Node) -> tuple[str, ...]:
    path = module_of(node)
    return tuple(path.split(".")) if path else ()


def _by_scopes(node: ir.Node) -> tuple[str, ...]:
    """Return the deepest module of torch's list, whose last entry is the node itself."""
    text = node.metadata_props.get(_SCOPES, "")
    try:
        scopes = ast.literal_eval(text) if len(text) < 10_000 else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # anyone may write anything there
        return ()
    paths = [scope for scope in scopes[:-1] if isinstance(scope, str) and scope] if isinstance(scopes, list) else []
    return tuple(paths[-1].split(".")) if paths else ()


def _by_name(node: ir.Node) -> tuple[str, ...]:
    """Return what stands before the last slash: ``/layer1/layer1.0/conv1/Conv`` of TorchScript, TensorFlow's scopes."""
    return tuple(part for part in name_of(node).split("/")[:-1] if part)[:_DEEPEST]


_DEEPEST = 40
_SOURCES: tuple[tuple[str, Callable[[ir.Node], tuple[str, ...]], str], ...] = (
    ("origins", _by_origin, "."),
    ("torch", _by_scopes, "."),
    ("names", _by_name, "/"),
)
