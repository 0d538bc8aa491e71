"""Messages of torch that torchport decides by: the one table of them.

torch has few exception classes of its own, so repairs are selected by the words of its messages. A new release may
reword one. Then the repair is not selected any more; tests/torch_compat/test_error_texts.py raises each message on the
installed release and names the one that changed.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class ErrorText:
    """A message of torch.

    Attributes:
        pattern: a regular expression, searched in the exception's class name, a colon and its message.
        selects: what torchport does when it reads it.
        until: the last release that raises it for the model of the test, if later ones capture that model themselves.
    """

    pattern: str
    selects: str
    until: str = ""


_VALUES = "the repair 'functions that look at values by ones that do not'"
_SIZES = "the repair 'sizes kept symbolic through int(), math and tensors'"
_REWRITE = "rewriting the line as control flow"

# Read in torch 2.13.0; the same in 2.14.1 and 2.15.0, but for those with `until`.
TEXTS: dict[str, ErrorText] = {
    "data-dependent": ErrorText(r"data-dependent", "repairs of sizes, and rewriting the line as control flow"),
    "view of fake tensor": ErrorText(r"Cannot view a tensor", "the repair 'views as reshapes'"),
    "view in kernel": ErrorText(r"view size is not compatible", "the repair 'views as reshapes'"),
    "slice became known": ErrorText(
        r"should have been constant, but got", "the repair 'sizes of slices that became known'", until="2.13"
    ),
    "no translation": ErrorText(r"No ONNX function found", "the repair 'weights made of weights computed beforehand'"),
    "weights not swapped": ErrorText(
        r"_apply\(\): Couldn't swap", "the repair 'layers that are cast while the model runs'"
    ),
    "graph of branch lost": ErrorText(
        r"(?s)^AttributeError:.*object has no attribute '\w+_graph_\d+'",
        "the repair 'switching gradients on and off beside a branch'",
    ),
    "gradients off": ErrorText(
        r"does not require grad and does not have a grad_fn", "running the model with gradients"
    ),
    "gradient inside": ErrorText(
        r"fake tensor in the exported program|view functorch tensor|has no attribute 'constant'|is not tracked with",
        "the repair 'gradients taken while the model runs'",
    ),
    "no shape function": ErrorText(
        r"^UnsupportedOperatorException:", "the repair 'shapes of operators learned from runs'"
    ),
    "packed object": ErrorText(r"__obj_flatten__", "the repair 'quantized layers unpacked'"),
    "quantized tensor": ErrorText(r"QuantizedMeta", "the repair 'quantized layers unpacked'"),
    "symbolic place": ErrorText(r"got SymInt", "repairs of sizes, and of writing at a place that one says"),
    "size in divmod": ErrorText(r"for divmod\(\): 'SymInt'", _SIZES),
    "size as array": ErrorText(r"numpy\(\) is not supported for tensor subclasses", _SIZES),
    "size as key": ErrorText(r"unhashable type: non-nested SymInt", _SIZES),
    "sparse": ErrorText(r"[Ss]parse", "the repair 'functions of sparse tensors by dense ones'"),
    "equal": ErrorText(r"aten\.equal", _VALUES),
    "allclose": ErrorText(r"aten\.allclose", _VALUES),
    "ctc_loss": ErrorText(r"aten\._ctc_loss", _VALUES),
    "lstsq": ErrorText(r"aten\.linalg_lstsq", _VALUES),
    "unbacked symbols": ErrorText(r"unbacked symbols", _VALUES, until="2.13"),
    "value of output": ErrorText(
        r"^(DataDependentOutputException|DynamicOutputShapeException):", "the reason that an attempt shows"
    ),
    "value or size": ErrorText(r"DataDependent|SymInt|SymFloat|SymBool|symbolic", _REWRITE),
    "name of a number": ErrorText(r"KeyError|has no attribute", _REWRITE),  # that only the running model knows
    "number out of a tensor": ErrorText(r"doesn't define __", _REWRITE),
    "not a number": ErrorText(r"sympy expression is NaN", _REWRITE),
}
VALUE_FUNCTIONS = ("equal", "allclose", "ctc_loss", "lstsq", "unbacked symbols")

# In a log and in warnings, with what is read out of them.
GUARD_ADDED = re.compile(r"(?:eval|runtime_assert) (.+) \[guard added\]")
UNTRANSLATED = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
TRANSLATED = re.compile(r"target=torch\.ops\.([\w.]+)")
SCRIPT_OPERATOR = re.compile(r"operator '([^']+)'|unrecognized namespace (\w+::\w+)")
SCRIPT_SINCE = re.compile(r"added in version (\d+)")
TRACER_WARNING = "TracerWarning"


def says(error: BaseException, *names: str) -> bool:
    """Check that an exception has one of the messages of the table."""
    text = f"{type(error).__name__}: {error}"
    return any(re.search(TEXTS[name].pattern, text) for name in names)
