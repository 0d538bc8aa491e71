"""Put layers of a model in lower precision back to how its float original has them.

A node of the original takes and gives tensors whose counterparts in the other model `quantized_tensors` finds. Nodes
between which no tensor has a counterpart (fused ones) are one layer, and so are the nodes of one module. What is most
of the model is no layer: to put it back is to have the original.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir
from networkx.utils import UnionFind  # type: ignore[import-untyped,unused-ignore]
from onnx_ir.passes.common import LiftConstantsToInitializersPass, RemoveUnusedNodesPass

from torchport.comparison.quantized_tensors import FLOATS, Carriers, fake_quantized
from torchport.comparison.tensor_cache import typed
from torchport.engines.registry import DEFAULT
from torchport.errors import InputError
from torchport.irtools.metadata import module_of
from torchport.irtools.names import Names
from torchport.irtools.traversal import subgraphs, used_values

_FEW = 8  # nodes that may be all there is
_MOST = 0.8  # of the nodes


@dataclasses.dataclass(frozen=True)
class Layer:
    """Nodes of the float original that go back to float together.

    Attributes:
        name: the module, or the first and last node.
        nodes: the names of the nodes.
        takes: tensors of the original that go in.
        gives: tensors of the original that come out.
    """

    name: str
    nodes: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    places: tuple[int, ...] = dataclasses.field(repr=False, default=())


class Restorer:
    """A float model and one in lower precision, of which layers can be put back.

    Args:
        reference: the float original.
        candidate: the model in float16 or int8.
        engine: what tells the types of tensors that ONNX does not know.
        libraries: operator libraries you trust, by path.

    Example:
        >>> restorer = Restorer(fp32, fp16)
        >>> mixed = restorer.mixed([restorer.layers[3]])
    """

    def __init__(
        self,
        reference: ir.Model,
        candidate: ir.Model,
        *,
        engine: str = DEFAULT,
        libraries: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self.reference = _lifted(typed(reference, engine, libraries))
        self.candidate = _lifted(typed(candidate, engine, libraries))
        fake_quantized(self.candidate)
        self._nodes = list(self.reference.graph)
        self._constant = _constant_nodes(self._nodes)
        self.carriers = Carriers(self.reference, self.candidate)
        groups = [self._layer(places) for places in self._grouped()]
        self.layers = [g for g in groups if self._why_not(g) is None]
        self.unjudged = {g.name: str(why) for g in groups if (why := self._why_not(g))}

    def _grouped(self) -> Iterator[tuple[int, ...]]:
        """Nodes that are one layer, by their places."""
        sets = UnionFind(range(len(self._nodes)))
        makers = {v: i for i, n in enumerate(self._nodes) for v in n.outputs}
        modules: dict[str, int] = {}
        sizes = collections.Counter(module_of(n) for n in self._nodes if n not in self._constant)
        for i, node in enumerate(self._nodes):
            module = module_of(node)
            if module and self._nodes[i] not in self._constant and not self._is_most(sizes[module]):
                sets.union(modules.setdefault(module, i), i)
            for value in used_values(node):
                maker = makers.get(value)
                if maker is not None and not self.is_constant(value) and self.carriers.hidden(str(value.name)):
                    sets.union(maker, i)
        for places in sorted(map(sorted, sets.to_sets())):
            given = [v for i in places if self._nodes[i] not in self._constant for v in self._nodes[i].outputs]
            if any(v.dtype in FLOATS for v in given):
                yield tuple(places)

    def _layer(self, places: Sequence[int]) -> Layer:
        nodes = dict.fromkeys(self._nodes[i] for i in places)
        takes = [v for n in nodes for v in used_values(n) if v.producer() not in nodes and not self.is_constant(v)]
        gives = [
            v for n in nodes for v in n.outputs if v.is_graph_output() or any(u not in nodes for u in v.consumers())
        ]
        names = tuple(str(n.name or n.outputs[0].name) for n in nodes)
        module = module_of(next(iter(nodes)))
        shared = module and all(module_of(n) == module for n in nodes)
        label = module if shared else names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        return Layer(label, names, _named(takes), _named(gives), tuple(places))

    def is_constant(self, value: ir.Value) -> bool:
        return value.is_initializer() or value.producer() in self._constant

    def _why_not(self, layer: Layer) -> str | None:
        """Why a layer cannot be put back."""
        nodes = [self._nodes[i] for i in layer.places]
        lost = [n for n in (*layer.takes, *layer.gives) if n not in self.carriers]
        if lost:
            return f"nothing carries '{lost[0]}' in the other model"
        if any(subgraphs(n) for n in nodes):
            return "it has branches or a loop"
        if any(n.op_identifier() in self.reference.functions for n in nodes):
            return "it is a local function"
        if self._is_most(sum(n not in self._constant for n in nodes)):
            return "it is most of the model: hardly a tensor inside was found in the other model"
        changed = [n.op_type for n in nodes if not self._means_the_same(n)]
        return f"{changed[0]} means something else in the other model's opset" if changed else None

    def _is_most(self, count: int) -> bool:
        """Whether so many nodes are nearly the whole model, and not because it is small: they are no layer of it."""
        return count > max(_FEW, _MOST * sum(n not in self._constant for n in self._nodes))

    def _means_the_same(self, node: ir.Node) -> bool:
        ours, theirs = (m.graph.opset_imports.get(node.domain) for m in (self.reference, self.candidate))
        if ours == theirs or theirs is None or not onnx.defs.has(node.op_type, node.domain):
            return True
        schemas = [onnx.defs.get_schema(node.op_type, v, node.domain) for v in (ours or 1, theirs)]
        return bool(schemas[0].since_version == schemas[1].since_version)

    def mixed(self, layers: Iterable[Layer]) -> ir.Model:
        """The model in lower precision, with these layers as the original has them."""
        model = self.candidate.clone()
        chosen = sorted({i for layer in layers for i in layer.places})
        restored = _Restored(model, self)
        for i in chosen:
            restored.add(self._nodes[i])
        restored.connect([v for i in chosen if self._nodes[i] not in self._constant for v in self._nodes[i].outputs])
        for domain, version in self.reference.graph.opset_imports.items():
            model.graph.opset_imports.setdefault(domain, version)
        model.graph.sort()
        RemoveUnusedNodesPass()(model)
        return model


class _Restored:
    """Nodes of the original on their way into the other model."""

    def __init__(self, model: ir.Model, match: Restorer) -> None:
        self._graph = model.graph
        self._values = Names(model).values
        self._match = match
        self._made: dict[str, ir.Value] = {}

    def add(self, node: ir.Node) -> None:
        if node.outputs and str(node.outputs[0].name) in self._made:
            return
        inputs = [None if v is None else self._taken(v) for v in node.inputs]
        new = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=f"{node.name or node.op_type}_in_float",
            metadata_props=dict(node.metadata_props),
        )
        for old, out in zip(node.outputs, new.outputs, strict=True):
            out.name = f"{old.name}_in_float" if old.name else ""
            out.type = old.type
            if old.name:
                self._made[old.name] = out
        self._graph.append(new)

    def _taken(self, value: ir.Value) -> ir.Value:
        name = str(value.name)
        if name in self._made:
            return self._made[name]
        if value.is_initializer():
            return self._weight(value)
        producer = value.producer()
        if producer is not None and self._match.is_constant(value):
            self.add(producer)
            return self._made[name]
        return self._cast(self._match.carriers.one(name, self._values), value.dtype)

    def _weight(self, value: ir.Value) -> ir.Value:
        """The original's own weight under another name. A tensor knows its name too: this one borrows the numbers."""
        held, name = value.const_value, f"{value.name}_in_float"
        if held is None:
            raise InputError(
                f"the weight '{value.name}' has no numbers", next_step="load the model with its external data"
            )
        shape = ir.Shape(held.shape.numpy())
        lent = ir.LazyTensor(lambda: held, dtype=held.dtype, shape=shape, name=name)
        made = ir.Value(name=name, shape=shape, type=ir.TensorType(held.dtype), const_value=lent)
        self._graph.register_initializer(made)
        self._made[str(value.name)] = made
        return made

    def connect(self, values: Iterable[ir.Value]) -> None:
        """Let those who used the other model's tensors use the restored ones."""
        names = [v.name for v in values if v.name]
        pairs = [
            (carrier, self._made[name]) for name in names for carrier in self._match.carriers.of(name, self._values)
        ]
        for carrier, made in pairs:
            self._replace(carrier, self._cast(made, carrier.dtype))

    def _cast(self, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        if dtype is None or value.dtype == dtype or value.dtype is None:
            return value
        node = ir.node("Cast", [value], {"to": dtype.value}, name=f"{value.name}_to_{dtype.name.lower()}")
        node.outputs[0].name, node.outputs[0].type = f"{node.name}_{len(self._graph)}", ir.TensorType(dtype)
        self._graph.append(node)
        return node.outputs[0]

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        ends = old.is_graph_output()
        if ends and new.is_graph_output():  # one value cannot be two outputs
            node = ir.node("Identity", [new], name=f"{old.name}_too")
            node.outputs[0].type = new.type
            self._graph.append(node)
            new = node.outputs[0]
        shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if ends:
            old.name, new.name, new.shape = f"{old.name}_before", old.name, shape


def _lifted(model: ir.Model) -> ir.Model:
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


def _constant_nodes(nodes: Sequence[ir.Node]) -> set[ir.Node | None]:
    """Nodes that only weights go into: they come with the nodes that use them."""
    found: set[ir.Node | None] = set()
    for node in nodes:
        used = used_values(node)
        if used and all(v.is_initializer() or v.producer() in found for v in used):
            found.add(node)
    return found


def _named(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(v.name) for v in values if v.name))
