"""The edits there are, by the name they have in a recipe and on the command line.

Nothing heavy is imported here: `torchport edit --help` reads this table.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Form = Literal["flag", "name", "optional name", "pairs", "assign", "fields", "steps"]


@dataclasses.dataclass(frozen=True)
class Edit:
    """One kind of change.

    Attributes:
        name: as in a recipe; ``--name`` on the command line.
        home: where the function is: ``module:function``.
        form: what it takes. ``pairs``: one mapping; ``assign``: two arguments for each pair of a mapping; ``fields``:
            arguments by name; ``steps``: a list of steps, or arguments by name.
        metavar: how the value is shown in the help.
        help: one line.
        between: words between two fields in their short form: ``Relu after conv1``.
        options: arguments that go to the function as they are.
        new: whether the function gives a new model back instead of changing the one it gets.
        same: whether it touches names and notes only, so that what was proven of the model still holds.
        new_outputs: whether it is there to change what the model gives, so that to verify it makes no sense.
    """

    name: str
    home: str
    form: Form
    metavar: str
    help: str
    between: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    new: bool = False
    same: bool = False
    new_outputs: bool = False

    @property
    def function(self) -> str:
        return self.home.partition(":")[2]


_EDITS = [
    Edit(
        "rename",
        "torchport.editing.rename:rename",
        "pairs",
        "OLD=NEW",
        "A tensor, node or dimension; enc.*=encoder.* too.",
        same=True,
    ),
    Edit(
        "rename-dim",
        "torchport.editing.rename:rename",
        "pairs",
        "OLD=NEW",
        "The dimension, where a tensor has that name too.",
        options=(("kind", "dim"),),
        same=True,
    ),
    Edit(
        "rename-node",
        "torchport.editing.rename:rename",
        "pairs",
        "OLD=NEW",
        "The node, where a tensor has that name too.",
        options=(("kind", "node"),),
        same=True,
    ),
    Edit(
        "rename-tensor",
        "torchport.editing.rename:rename",
        "pairs",
        "OLD=NEW",
        "The tensor, where a node has that name too.",
        options=(("kind", "tensor"),),
        same=True,
    ),
    Edit("bypass", "torchport.editing.remove:bypass", "name", "NODE", "Take a node out: what it gets goes on."),
    Edit("remove", "torchport.editing.remove:remove", "name", "NODE", "Take a node out, and what only it needed."),
    Edit(
        "replace",
        "torchport.editing.replace:replace",
        "fields",
        "WHAT by NEW",
        "Nodes, or a pattern, by an operator, nodes or a model.",
        between=(("what", ""), ("by", "by")),
    ),
    Edit(
        "insert",
        "torchport.editing.insert:insert",
        "fields",
        "OP after TENSOR",
        "An operator behind a tensor, or `OP before NODE`.",
        between=(("node", ""), ("after", "after"), ("before", "before")),
    ),
    Edit(
        "set-attribute",
        "torchport.editing.attributes:set_attribute",
        "fields",
        "NODE:NAME=VALUE",
        "Of a node, or of all of an operator.",
    ),
    Edit(
        "set-dim",
        "torchport.editing.shapes:set_dim",
        "assign",
        "DIM=SIZE",
        "Fix a dimension; or make one dynamic: x:0=batch.",
    ),
    Edit("set-shape", "torchport.editing.shapes:set_shape", "assign", "TENSOR=[N,3]", "State a tensor's shape."),
    Edit("clear-shapes", "torchport.editing.shapes:clear_shapes", "flag", "", "Forget the shapes of inner tensors."),
    Edit(
        "set-dtype",
        "torchport.editing.dtype:set_dtype",
        "assign",
        "NAME=DTYPE",
        "Of an input or output, with a cast inside.",
        new_outputs=True,
    ),
    Edit(
        "preprocess",
        "torchport.editing.preprocessing.edit:preprocess",
        "steps",
        "STEPS",
        "Before the model: 'scale: 255, normalize: imagenet'.",
        new_outputs=True,
    ),
    Edit(
        "postprocess",
        "torchport.editing.preprocessing.edit:postprocess",
        "steps",
        "STEPS",
        "After it: 'softmax, topk: 5'.",
        new_outputs=True,
    ),
    Edit(
        "to-input",
        "torchport.editing.weights:to_input",
        "name",
        "WEIGHT",
        "Make a constant an input.",
        new_outputs=True,
    ),
    Edit(
        "to-constant",
        "torchport.editing.weights:to_constant",
        "assign",
        "INPUT=VALUE",
        "Make an input a constant: a number, list or .npy.",
        new_outputs=True,
    ),
    Edit(
        "set-weights",
        "torchport.editing.weights:set_weights",
        "fields",
        "FILE",
        "Weights from a .safetensors, .npz or .pt.",
        between=(("source", ""),),
        new_outputs=True,
    ),
    Edit(
        "set-opset",
        "torchport.opset.convert:convert",
        "name",
        "NUMBER",
        "Up or down; refused where that is not exact.",
        new=True,
    ),
    Edit("fold", "torchport.editing.fold:fold", "flag", "", "Compute what is constant."),
    Edit(
        "inline",
        "torchport.editing.functions:inline",
        "optional name",
        "NAME",
        "Write local functions out; all, or one.",
    ),
    Edit(
        "outline",
        "torchport.editing.functions:outline",
        "fields",
        "NODES as NAME",
        "Make a function: 'module:encoder.* as my::Layer'.",
        between=(("nodes", ""), ("name", "as")),
    ),
    Edit(
        "chain",
        "torchport.editing.compose:chain",
        "fields",
        "FILE",
        "Feed the outputs to another model.",
        between=(("second", ""),),
        new=True,
        new_outputs=True,
    ),
    Edit(
        "merge",
        "torchport.editing.compose:merge",
        "fields",
        "FILE",
        "Put another model beside it.",
        between=(("second", ""),),
        new=True,
        new_outputs=True,
    ),
    Edit(
        "set-metadata",
        "torchport.editing.metadata:set_metadata",
        "pairs",
        "KEY=TEXT",
        "Of the model; KEY= takes it away.",
        same=True,
    ),
    Edit(
        "rename-metadata",
        "torchport.editing.metadata:rename_metadata",
        "pairs",
        "OLD=NEW",
        "Keys of the model's metadata.",
        same=True,
    ),
    Edit(
        "strip-metadata",
        "torchport.editing.metadata:strip_metadata",
        "optional name",
        "PATTERN",
        "Metadata and doc strings; all, or keys like this.",
        same=True,
    ),
    Edit("sort", "torchport.editing.cleanup:sort", "flag", "", "Put nodes after what they need.", same=True),
    Edit("deduplicate", "torchport.editing.cleanup:deduplicate", "flag", "", "Keep equal weights once."),
    Edit("remove-unused", "torchport.editing.cleanup:remove_unused", "flag", "", "Take out what no output needs."),
]

EDITS = {e.name: e for e in _EDITS}
