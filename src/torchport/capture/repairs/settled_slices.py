"""A slice whose length was unknown when it was captured, and is known when the program is run again.

`x[:n]` with an `n` from a value gives a size torch has no name for yet. Once it has learned more of `n`, from
`torch.arange(n)` a line later, say, running the program anew gives ``Min(s0, n)`` there, and torch.export stops with
"should have been constant" because the size it had noted is gone. Nothing depends on the note: without it the program
is run anew with the new size.

torch 2.13; `rebind_unbacked` in torch/fx/experimental/symbolic_shapes.py.
"""

from __future__ import annotations

import torch

from torchport.capture.repairs.repair import program_repair


@program_repair("sizes of slices that became known")
def settled_slices(program: torch.export.ExportedProgram, error: Exception) -> torch.export.ExportedProgram | None:
    if "should have been constant, but got" not in str(error):
        return None
    noted = [
        n for n in program.graph.nodes if n.target is torch.ops.aten.slice.Tensor and "unbacked_bindings" in n.meta
    ]
    for node in noted:
        del node.meta["unbacked_bindings"]
    return program if noted else None
