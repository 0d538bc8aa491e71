"""tp.rewrite"""

from __future__ import annotations

import textwrap
from typing import Any

from torchport.capture import models
from torchport.capture.control_flow.plan import Plan, Rewritten, plan_by_reading
from torchport.capture.routes.rewrite import rewritten_program
from torchport.capture.routes.route import Request
from torchport.conversion.options import DEFAULT_OPSET, ExampleOptions
from torchport.conversion.subject import opened
from torchport.errors import NothingToRewriteError
from torchport.process import silence

_HEADER = """\
# Rewritten by torchport. `flow` takes Python's way for plain values; where a tensor or an unknown size decides, under
# torch.export, cond becomes an If of the graph, while_loop and for_loop a Loop.
from torchport import flow
"""


def rewrite(model: Any, args: Any = None, *, kwargs: dict[str, Any] | None = None, dynamic: Any = None) -> str:
    """The source of a model's functions with control flow on tensors rewritten, as the route `rewrite` does.

    Nothing of the model is changed. The source runs as it is, in place of the functions it comes from.

    Args:
        model: an `nn.Module` or a function.
        args: example inputs, as for `export`. With them, only what the capture stumbles over is rewritten; without,
            everything that looks as if it depended on a tensor.
        kwargs: example inputs by name.
        dynamic: which axes may vary, as for `export`.

    Returns:
        Python source.

    Example:
        >>> print(rewrite(model, (x,)))
    """
    if args is None and kwargs is None:
        plan, refused = plan_by_reading(models.subject(model).target)
    else:
        plan, refused = _captured_plan(model, args if args is not None else (), kwargs, dynamic), []
    if not plan.functions and not refused:
        return "# nothing to rewrite: no control flow depends on a tensor or on a size that varies\n"
    notes = "".join(f"# not rewritten: {line}\n" for line in refused)
    return notes + _HEADER + "\n\n" + "\n\n".join(_shown(f) for f in plan.functions)


def _captured_plan(model: Any, args: Any, kwargs: dict[str, Any] | None, dynamic: Any) -> Plan:
    subject = models.subject(model)
    call = models.call(subject, args, kwargs)
    with opened(subject, call, ExampleOptions(dynamic=dynamic), allow_random=True) as source:
        request = Request(call, source.capture_tensors(), source.spec.inputs, opset=DEFAULT_OPSET)
        try:
            with silence():
                return rewritten_program(request, [])[0]
        except NothingToRewriteError:
            return Plan()


def _shown(function: Rewritten) -> str:
    text = function.text()
    if not function.owner:
        return text + "\n"
    return f"class {function.owner}:  # its other methods stay as they are\n{textwrap.indent(text, '    ')}\n"
