"""Which operators of a running PyTorch model an exported operator may have become."""

from __future__ import annotations

_PRODUCT = {
    "addmm",
    "mm",
    "bmm",
    "baddbmm",
    "add",
    "view",
    "unsafe_view",
    "matmul",
    "linear",
    "mv",
    "addmv",
    "dot",
}
_FAMILIES = {
    "linear": _PRODUCT,
    "matmul": _PRODUCT,
    "addmm": _PRODUCT,
    "einsum": {*_PRODUCT, "sum", "permute", "mul", "squeeze"},
    "convolution": {"convolution", "mkldnn_convolution", "conv2d", "slow_conv2d_forward", "thnn_conv2d"},
    "conv": {"convolution", "mkldnn_convolution"},
    "batch_norm": {"batch_norm", "cudnn_batch_norm", "batch_norm_legit_no_training", "batch_norm_legit"},
    "relu6": {"hardtanh"},
    "rsub": {"sub"},
    "scaled_dot_product_attention": {"transpose", "bmm", "unsafe_view", "view", "clone"},
}


def base(operator: str) -> str:
    """``aten._native_batch_norm_legit_no_training.default`` as ``batch_norm_legit_no_training``."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.strip("_").removeprefix("native_").removesuffix("_")


def kin(torch_operator: str, origin: str) -> bool:
    """Whether a running operator's output may be what an ONNX node of that origin computes."""
    if not origin:
        return True
    one, other = base(torch_operator), base(origin)
    words = set(one.split("_")), set(other.split("_"))
    if words[0] <= words[1] or words[1] <= words[0]:
        return True
    return any(other.startswith(name) and one in family for name, family in _FAMILIES.items())
