"""Nodes of domains that are neither ONNX's nor an engine's, and who provides what it takes to run them.

A node of such a domain runs by a kernel from a library, by its body in the model, or by the PyTorch call it stands for.
Packages that define operators register an `OperatorProvider`; engines ask the providers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from torchport.errors import EngineError, OptionError
from torchport.irtools import metadata, types
from torchport.irtools.names import name_of
from torchport.irtools.traversal import all_nodes
from torchport.tensors import Array


class OperatorCall(Protocol):
    """A call in Python that computes what a node computes."""

    @property
    def name(self) -> str:
        """Return the name of the function, for messages."""
        ...

    def run(self, *inputs: Array | None) -> list[Array]:
        """Return the node's outputs."""
        ...


class OperatorProvider(Protocol):
    """Knows operators of domains of their own."""

    def knows(self, node: ir.Node) -> bool:
        """Check that the node is one of its operators."""
        ...

    def has_kernel(self, node: ir.Node) -> bool:
        """Check that there is a library with a kernel for the node, or sources of one."""
        ...

    def library(self, node: ir.Node) -> Path | None:
        """Return the library that has the node's kernel, built if it must be; None without a kernel."""
        ...

    def libraries(self, nodes: Sequence[ir.Node]) -> list[Path]:
        """Return the libraries for several nodes with kernels, one for each domain."""
        ...

    def call(self, node: ir.Node) -> OperatorCall | None:
        """Return the call that the node stands for; None if it is not known."""
        ...

    def lacking(self, node: ir.Node) -> Sequence[str]:
        """Return the tensors that the call needs and the node has not, where that is why no call is known."""
        ...


_providers: list[OperatorProvider] = []


def register_provider(provider: OperatorProvider) -> None:
    """Let engines find the operators that `provider` knows."""
    _providers.append(provider)


def has_kernel(node: ir.Node) -> bool:
    """Check that an operator with a kernel was defined in this process for the node."""
    return any(provider.has_kernel(node) for provider in _providers)


def call_of(node: ir.Node) -> OperatorCall | None:
    """Return the call in Python that the node stands for; None if this process knows none."""
    return next((call for provider in _providers if (call := provider.call(node)) is not None), None)


def kernel_libraries_of(nodes: Sequence[ir.Node]) -> list[Path]:
    """Return the libraries with the kernels of these nodes."""
    found = [provider.libraries([n for n in nodes if provider.has_kernel(n)]) for provider in _providers]
    return [path for paths in found for path in paths]


def own_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of domains that are neither ONNX's nor an engine's, in branches and bodies too."""
    return [node for node in all_nodes(model) if types.is_custom(node)]


def with_bodies_only(model: ir.Model) -> ir.Model | None:
    """Return a copy in which bodies replace the nodes that have a kernel and a body; None without such nodes."""
    both = {n.op_identifier() for n in own_nodes(model) if has_kernel(n) and n.op_identifier() in model.functions}
    if not both:
        return None
    copy = model.clone()
    InlinePass(criteria=lambda function: function.identifier() in both)(copy)
    return copy


def described(model: ir.Model, given: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Return the model's own operators, each with the library that has its kernel, for the model's metadata."""
    found: dict[str, dict[str, Any]] = {}
    for node in own_nodes(model):
        library = next(filter(None, (provider.library(node) for provider in _providers)), None)
        entry: dict[str, Any] = {"name": f"{node.domain}::{node.op_type}"}
        if library is not None:
            entry |= {"library": library.name, "sha256": digest(library)}
        elif given and not any(provider.knows(node) for provider in _providers):
            entry |= {"library": " or ".join(Path(p).name for p in given)}
        if node.op_identifier() in model.functions:
            entry["body"] = True
        found.setdefault(entry["name"], entry)
    return list(found.values())


def library_paths(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return operator libraries as paths; one path stands for a list of one.

    Raises:
        OptionError: one of them is not there.
    """
    paths = tuple(Path(p) for p in ([given] if isinstance(given, (str, os.PathLike)) else given))
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise OptionError(
            f"there is no operator library '{missing[0]}'",
            where=f"--library {missing[0]}, in Python libraries=['{missing[0]}']",
            next_step="give the path of a built one; `torchport ops build` compiles it",
        )
    return paths


def digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def no_kernel(
    model: ir.Model, node: ir.Node, *, looked_in: Sequence[Path] = (), loads_libraries: bool = True
) -> EngineError:
    """Return the error that says which operator has no kernel, and which library had it when the model was saved."""
    name = f"{node.domain}::{node.op_type}"
    library = metadata.operator_libraries(model).get(name)
    kernel = f"the model was saved with its kernel in {library}" if library else "the model names no library for it"
    example = library or f"lib{node.op_type.lower()}.so"
    where = "" if loads_libraries else "in an engine that loads libraries, "
    if looked_in:
        kernel = f"none of {', '.join(p.name for p in looked_in)} has it"
    lacking = [argument for provider in _providers for argument in provider.lacking(node)]
    if lacking and not looked_in:
        return EngineError(
            f"nothing here runs the operator {name}: {kernel}, and the node lacks the inputs {', '.join(lacking)}, "
            "so that PyTorch cannot run it for the proof",
            node=name_of(node),
            next_step=f"pass them to g.op too, or name a library with its kernel: --library {example}, "
            f"in Python libraries=['{example}']",
        )
    return EngineError(
        f"nothing here runs the operator {name} (domain '{node.domain}'): {kernel}",
        node=name_of(node),
        next_step=f"name a library with its kernel: {where}--library {example}, in Python libraries=['{example}'] "
        f"(torchport ops build compiles one); or import the file that defines {name} with @tp.operator",
    )
