"""Hand a changed model from one process to another without its weights: those that are unchanged go by name.

child:   sender = Sender(model)   ...passes...   sender.send(model, folder)
parent:  receive(folder, original)      weights of the original stand where the child left them as they were
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from torchport.files.protobuf import remember, write_back
from torchport.irtools.names import own_tensor
from torchport.irtools.serialization import pour, reference, settled, streams, to_proto
from torchport.process import uncollected

_UNCHANGED = "unchanged:"  # before the name of a weight of the original, where the name of a data file would stand
_NEW = "new.data"
_MODEL = "changed.onnx"
_SMALL = 4096  # bytes of a weight that is sent in any case


class Sender:
    """Knows the weights that a model had at first.

    Args:
        model: the model before it is changed.
    """

    def __init__(self, model: ir.Model) -> None:
        named = ((name, value.const_value) for name, value in model.graph.initializers.items())
        self._kept = {tensor: name for name, tensor in named if tensor is not None}  # by identity, and kept alive

    def send(self, model: ir.Model, folder: Path) -> None:
        """Write the model for `receive`."""
        with (folder / _NEW).open("wb") as file:

            def place(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
                if not streams(tensor) or tensor.nbytes < _SMALL:
                    return settled(tensor)
                if tensor in self._kept:
                    return reference(tensor, _UNCHANGED + self._kept[tensor], 0)
                file.write(bytes(-file.tell() % 64))
                start = file.tell()
                pour(tensor, file)
                return reference(tensor, _NEW, start)

            proto = write_back(model, to_proto(model, place=place, nested=settled))
        (folder / _MODEL).write_bytes(proto.SerializeToString())


def receive(folder: Path, original: ir.Model) -> ir.Model:
    """Return the model that `send` wrote. Its new weights are mapped into memory and outlive the folder."""
    proto = onnx.ModelProto.FromString((folder / _MODEL).read_bytes())
    with uncollected():
        model = ir.from_proto(proto)
        remember(proto, model)
    known = original.graph.initializers
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            place = str(tensor.location)
            if place.startswith(_UNCHANGED):
                kept = known[place.removeprefix(_UNCHANGED)].const_value
                assert kept is not None
                value.const_value = own_tensor(kept, name)
            else:
                tensor.base_dir = folder
                tensor.numpy()  # maps the file
    return model
