"""Of a file with many nodes, a model of only those that a cut can need.

Making objects of ten thousand nodes takes most of the time of a small cut. So the file is only skimmed, a node is
nothing but bytes; from the tensors where the part ends, the nodes that make them are looked up in those bytes, and the
message that comes out has these nodes, their weights and the types of their values. The checks of a file and the cut
itself are then those of a whole model.

Whatever is unclear (a name that is unknown or given twice, a type that nothing tells) is left to the whole model, where
it can be explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from torchport.errors import FileError
from torchport.files.protobuf import Packed, SkimmedModel, UnclearError, number, weight_name, with_length
from torchport.files.reader import UNREADABLE
from torchport.files.validation import check_functions, check_versions
from torchport.irtools.inference import UNINFERABLE, infer_shapes
from torchport.irtools.serialization import proto_scopes, proto_subgraphs

_SMALL = 1024  # bytes of a weight worth showing to inference, as it may be a shape


_FEW = 200  # nodes looked up one by one; for more a table of all is quicker


class _UntypedError(UnclearError):
    """The file does not say the type of a tensor where the part begins or ends."""


def narrowed(content: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> ModelProto | None:
    """The model with no nodes but those between some tensors; None if the whole is needed to tell.

    Args:
        content: of the file.
        inputs: tensors the part begins at, or nodes; none for the model's inputs.
        outputs: tensors the part ends at, or nodes; none for the model's outputs.
    """
    if not inputs and not outputs:
        return None
    try:
        return _Narrowing(SkimmedModel(content)).between(inputs, outputs)
    except _UntypedError:
        return _narrowed_with_types(content, inputs, outputs)
    except (UnclearError, IndexError, ValueError, *UNREADABLE):
        return None


def _narrowed_with_types(content: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> ModelProto | None:
    """As `narrowed`, after types were inferred: of the message, which is quicker than of a model."""
    try:
        return _Narrowing(SkimmedModel(_typed(content)), SkimmedModel(content)).between(inputs, outputs)
    except (UnclearError, FileError, IndexError, *UNREADABLE, *UNINFERABLE):
        return None


def _typed(content: bytes) -> bytes:
    """The file with the types and shapes that follow for values of which none is stated; large weights are empty."""
    proto = ModelProto.FromString(content)
    check_versions(proto, "")
    if proto.functions:
        check_functions(proto, "")  # those that call each other in a circle would keep onnx busy for ever
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > _SMALL:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    inferred = infer_shapes(proto)
    for stated, completed in zip(proto_scopes(proto.graph), proto_scopes(inferred.graph), strict=True):
        _restore(stated, completed)
    return bytes(inferred.SerializeToString())


def _restore(stated: Any, completed: Any) -> None:
    """What a graph states stays as it is; inference may know better."""
    for field in ("input", "output", "value_info"):
        known = {v.name: v for v in getattr(stated, field) if v.type.tensor_type.HasField("shape")}
        _refill(getattr(completed, field), [known.get(v.name, v) for v in list(getattr(completed, field))])


class _Narrowing:
    def __init__(self, skimmed: SkimmedModel, source: SkimmedModel | None = None) -> None:
        """Weights are those of the source, if it is another."""
        self._skimmed = skimmed
        self._nodes = _Nodes(skimmed["node"])
        self._infos = _Messages(skimmed["value_info"], ValueInfoProto, "name")
        self._inputs = {v.name: v for v in map(ValueInfoProto.FromString, skimmed["input"])}
        self._outputs = {v.name: v for v in map(ValueInfoProto.FromString, skimmed["output"])}
        tensors = (source or skimmed)["initializer"]
        self._weights = {weight_name(tensor): tensor for tensor in tensors}
        if len(self._weights) < len(tensors):
            raise UnclearError
        self._meant_nodes: set[int] = set()

    def between(self, inputs: Sequence[str], outputs: Sequence[str]) -> ModelProto:
        begin = list(dict.fromkeys(name for given in inputs for name in self._meant(given, begin=True)))
        end = [name for given in outputs for name in self._meant(given, begin=False)] or list(self._outputs)
        chosen, used = self._needed(set(begin), end)
        made = {name for index in chosen for name in self._nodes[index].output if name}
        entering = [name for name in begin if name not in made and not self._is_there(name)]
        if not used.issuperset(entering) or not self._meant_nodes.issubset(chosen):
            raise UnclearError  # what is given, but not needed, must be there too
        used.update(begin, end, made)
        infos = self._typed(used, entering, {*begin, *end})
        return self._message(chosen, used, entering, infos)

    def _meant(self, given: str, *, begin: bool) -> list[str]:
        """The tensors meant by a name: itself, or what the node of that name takes or gives."""
        if self._is_there(given) or self._nodes.maker(given) is not None:
            return [given]
        index = self._nodes.named(given)
        self._meant_nodes.add(index)
        node = self._nodes[index]
        if not begin:
            return [name for name in node.output if name]
        return [name for name in _uses(node) if self._enters(name)]

    def _enters(self, name: str) -> bool:
        """Whether a node gets this from outside: no weight, no constant, nothing its own branches make."""
        maker = self._nodes.maker(name)
        if maker is None or name in self._weights:
            return name in self._inputs and name not in self._weights
        return self._nodes[maker].op_type != "Constant"

    def _is_there(self, name: str) -> bool:
        return name in self._inputs or name in self._weights

    def _needed(self, begin: set[str], end: Iterable[str]) -> tuple[list[int], set[str]]:
        """The nodes that lead to the end, in the order of the file, and all names they use."""
        used: set[str] = set()
        chosen: set[int] = set()
        waiting = list(end)
        while waiting:
            name = waiting.pop()
            if name in used:
                continue
            used.add(name)
            maker = None if name in begin else self._nodes.maker(name)
            if maker is not None and maker not in chosen:
                chosen.add(maker)
                waiting += _uses(self._nodes[maker])
        return sorted(chosen), used

    def _typed(self, used: set[str], entering: list[str], ends: set[str]) -> dict[str, ValueInfoProto]:
        """What is stated of the values used; where the part begins and ends a type must be."""
        stated = {name: info for name in used if (info := self._stated(name)) is not None}
        known = stated | {n: v for table in (self._outputs, self._inputs) for n, v in table.items() if n in used}
        untyped = [n for n in ends if n not in self._weights and not (n in known and known[n].type.WhichOneof("value"))]
        if untyped:
            raise _UntypedError
        return stated | {name: known[name] for name in entering}

    def _stated(self, name: str) -> ValueInfoProto | None:
        found = [info for index in self._infos.holding(name) if (info := self._infos[index]).name == name]
        if len(found) > 1:
            raise UnclearError
        return found[0] if found else None

    def _message(
        self, chosen: list[int], used: set[str], entering: list[str], infos: dict[str, ValueInfoProto]
    ) -> ModelProto:
        dropped = {name for name in self._weights if name not in used}
        inputs = [*(v for n, v in self._inputs.items() if n not in dropped), *(infos.pop(n) for n in entering)]
        kept: dict[str, list[bytes | memoryview]] = {
            "node": [self._nodes.content(index) for index in chosen],
            "initializer": [tensor for name, tensor in self._weights.items() if name in used],
            "input": [v.SerializeToString() for v in inputs],
            "output": [v.SerializeToString() for n, v in self._outputs.items() if n in used],
            "value_info": [v.SerializeToString() for v in infos.values()],
        }
        fields = [with_length(number(GraphProto, field), c) for field, contents in kept.items() for c in contents]
        graph = with_length(number(ModelProto, "graph"), *self._skimmed.others(*kept), *fields)
        return ModelProto.FromString(b"".join((*self._skimmed.around, graph)))


class _Messages:
    """Messages left as bytes, found by a text that one of their fields holds; parsed when asked for."""

    def __init__(self, packed: Packed, kind: Any, field: str) -> None:
        self._packed = packed
        self._kind = kind
        self._search = packed.search(number(kind, field), first=field == "name")
        self._parsed: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: int) -> Any:
        if index not in self._parsed:
            self._parsed[index] = self._kind.FromString(self.content(index))
        return self._parsed[index]

    def content(self, index: int) -> memoryview:
        return self._packed[index]

    def holding(self, text: str) -> list[int]:
        """The messages in whose bytes the text is written as that field, perhaps deep inside."""
        return self._search.holding(text)


class _Nodes(_Messages):
    """The nodes of a graph, found by what they make."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed, NodeProto, "output")
        self._makers: dict[str, int | None] = {}
        self._complete = False

    def maker(self, name: str) -> int | None:
        """Which node makes a value, if one does."""
        if name not in self._makers and not self._complete:
            if len(self._makers) >= _FEW:
                self._look_at_all()
            else:
                self._makers[name] = _one([i for i in self.holding(name) if name in self[i].output])
        return self._makers.get(name)

    def _look_at_all(self) -> None:
        made = [(name, index) for index in range(len(self)) for name in self[index].output if name]
        self._makers = dict(made)
        self._complete = True
        if len(self._makers) < len(made):
            raise UnclearError

    def named(self, name: str) -> int:
        """The first node of that name."""
        for index in range(len(self)):
            if self[index].name == name:
                return index
        raise UnclearError


def _one(found: list[int]) -> int | None:
    if len(found) > 1:
        raise UnclearError
    return found[0] if found else None


def _uses(node: NodeProto) -> list[str]:
    """What a node needs by name: its inputs, and the outer values its branches use."""
    graphs = [g for attribute in node.attribute for g in proto_subgraphs(attribute)]
    return [*filter(None, node.input), *(name for graph in graphs for name in _captured(graph))]


def _captured(graph: GraphProto) -> list[str]:
    made = {v.name for v in (*graph.input, *graph.initializer)}.union(*(node.output for node in graph.node))
    used = [name for node in graph.node for name in _uses(node)] + [v.name for v in graph.output]
    return [name for name in used if name not in made]


def _refill(field: Any, contents: list[Any]) -> None:
    del field[:]
    field.extend(contents)
