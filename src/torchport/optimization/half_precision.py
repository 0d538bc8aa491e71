"""float16: half the size. A layer computes in float16 where the engine has a kernel, else between two casts.

bfloat16 is not written: ONNX Runtime has no bfloat16 arithmetic on a CPU, and OpenVINO computes float32 files in
bfloat16 when it is asked to, `--option precision=bf16`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchport.process import silence


def quantize(source: Path, target: Path, exclude: Sequence[str]) -> None:
    """Convert all nodes but these; inputs and outputs keep their dtypes."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with silence():
        model = onnx.load(source)
        found = convert_float_to_float16(model, keep_io_types=True, node_block_list=list(exclude))
    onnx.save(found, target)
