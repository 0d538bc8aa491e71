"""PyTorch's own files: torch's readers for them, and the private names that stand in them."""

from __future__ import annotations

import sys
from typing import Any

from torchport.torch_compat.parts import part

# Python functions that a program of a .pt2 file may call although they are private: they switch modes on and off.
PROGRAM_FUNCTIONS = (
    *("torch._C._set_grad_enabled", "torch.amp.autocast_mode._enter_autocast"),
    "torch.amp.autocast_mode._exit_autocast",
)
# Functions that the pickles of a TorchScript file name, by module; torch's C++ unpickler makes their results of data.
PICKLED_FUNCTIONS = {
    "torch": "Tensor device",
    "torch._utils": "_rebuild_tensor_v2 _rebuild_qtensor _rebuild_sparse_tensor",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch.jit._pickle": "build_intlist build_tensorlist build_doublelist build_boollist build_tensor_from_id "
    "restore_type_tag",
}


def archive_reader(path: str) -> Any:
    """Return torch's reader of an archive; it raises RuntimeError for a broken one."""
    return part("PyTorchFileReader")(path)


def program_record(kind: str, fields: Any) -> Any:
    """Return the JSON of a .pt2 file as the class `kind` of torch's schema."""
    schema = sys.modules[part("serde_schema").__module__]
    return part("_dict_to_dataclass")(getattr(schema, kind), fields)


def load_program(path: str) -> Any:
    """Return the program of a .pt2 file.

    Not by torch.export.load: on a failure it would go on to try the layout that is all pickles.
    """
    return part("load_pt2")(path).exported_programs["model"]


def script_schemas(name: str) -> Any:
    """Return the schemas of an operator that TorchScript can call, such as ``aten::save``."""
    return part("_jit_get_schemas_for_operator")(name)


def is_higher_order(operator: Any) -> bool:
    """Check that an operator takes graphs."""
    return isinstance(operator, part("HigherOrderOperator"))
