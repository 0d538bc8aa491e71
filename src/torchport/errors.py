"""Every error torchport raises.

    TorchportError
    ├── UserError                 the caller can mend it; the command line exits 2
    │   ├── OptionError           an option or argument has a value that cannot be meant
    │   ├── SourceError           the model cannot be found, imported or is no model
    │   ├── UntrustedError        loading the file would run code that came with it
    │   ├── InputError            the inputs do not fit the model
    │   ├── DynamicError          the dynamic dimensions do not fit the inputs
    │   ├── ForwardError          the PyTorch model itself raises on the given inputs
    │   ├── FileError             an ONNX file is missing, broken or of another format
    │   │   └── UnsafeFileError   an ONNX file reaches outside its folder or lies about sizes
    │   ├── SaveError             the target cannot be written
    │   ├── EngineMissingError    the engine asked for is not installed
    │   └── ViewerMissingError    the script of the HTML pages has not been built from its sources
    └── RefusedError              the model was refused; the command line exits 1
        ├── CaptureError          no route could capture the model
        │   ├── FixedDimensionError     the capture fixed a size or number that should vary
        │   ├── NothingToRewriteError   the capture named no line that control flow could be rewritten at
        │   ├── SettledOtherwiseError   the capture settled a condition on sizes otherwise than the example does
        │   └── TimeLimitError          a capture takes too long beside the first one
        ├── MissingPartError      the installed torch or onnxscript lacks a private part that a feature needs
        ├── OpsetError            the model cannot be expressed in the opset asked for
        ├── EngineError           the engine refuses the model or fails while running it
        ├── RandomModelError      the model answers differently each time it is asked
        ├── QuantizationError     the model cannot be quantized, or not within the limits asked for
        └── ProofError            the ONNX model's answers differ from PyTorch's

Each says what happened, where, and what to do next:

    >>> raise InputError("input 'x' has rank 2, the model wants 4",
    ...                  where="--input x=float32[1,3]",
    ...                  next_step="give it as x=float32[N,C,H,W]")
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchport.results import Attempt, Proof


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return the first line of an exception's text, for a message that chains it; its class where it has no text."""
    text = str(error).strip()
    return text.splitlines()[0].strip()[:limit] if text else type(error).__name__


def close_names(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5) -> list[str]:
    """Return the known names most like a mistyped one, the closest first."""
    return get_close_matches(name, list(known), n=most, cutoff=cutoff)


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, most: int = 3, cutoff: float = 0.5, more: str = ""
) -> str:
    """Return the next step for a name that does not exist.

    Args:
        name: the mistyped name.
        known: the names that exist.
        otherwise: the text where none of them is close.
        most: the number of names to offer; a single one stands in quotes.
        cutoff: the least similarity of a name worth offering, 0 to 1.
        more: text to follow the names that are close.
    """
    close = close_names(name, known, most=most, cutoff=cutoff)
    if not close:
        return otherwise
    names = f"'{close[0]}'" if most == 1 else ", ".join(close)
    return f"did you mean {names}?{more and ' '}{more}"


class TorchportError(Exception):
    """Base of all errors: `what` happened, `where`, and the `next_step` to take."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"where: {self.where}")
        if self.next_step:
            lines.append(f"next:  {self.next_step}")
        return "\n".join(lines)


class UserError(TorchportError):
    """Something the caller can mend."""

    exit_code = 2


class OptionError(UserError):
    """An option has a value that cannot be meant."""


class SourceError(UserError):
    """The model cannot be found, imported, or is no model."""


class UntrustedError(UserError):
    """Loading the file would run code that came with it."""


class InputError(UserError):
    """The inputs do not fit the model."""


class DynamicError(UserError):
    """The dynamic dimensions do not fit the inputs."""


class ForwardError(UserError):
    """The PyTorch model itself raises on the given inputs."""


class FileError(UserError):
    """An ONNX file is missing, broken or of another format."""


class UnsafeFileError(FileError):
    """An ONNX file reaches outside its folder or lies about sizes."""


class SaveError(UserError):
    """The target cannot be written."""


class EngineMissingError(UserError):
    """The engine asked for is not installed."""


class ViewerMissingError(UserError):
    """The script of the HTML pages has not been built from its sources."""


class RefusedError(TorchportError):
    """The model was refused."""


class CaptureError(RefusedError):
    """No route could capture the model; `attempts` says why each one failed."""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        next_step: str | None = None,
        attempts: Sequence[Attempt] = (),
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.attempts = tuple(attempts)


class FixedDimensionError(CaptureError):
    """The capture fixed a size that should vary, or a number computed from it, to the example's."""


class SettledOtherwiseError(CaptureError):
    """The capture settled a condition on sizes otherwise than the example does."""


class TimeLimitError(CaptureError):
    """A capture takes too long beside the first one."""


class NothingToRewriteError(CaptureError):
    """The capture named no line at which control flow could be rewritten."""


class MissingPartError(RefusedError):
    """The installed torch or onnxscript lacks a private part, so that a feature is off; `part` is its name."""

    def __init__(self, what: str, *, part: str, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.part = part


class OpsetError(RefusedError):
    """The model cannot be expressed in the opset asked for.

    Attributes:
        blockers: the operators standing in the way, e.g. ``("GridSample (first in opset 16)",)``.
        nearest: the closest opset that works, if any.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        next_step: str | None = None,
        blockers: Sequence[str] = (),
        nearest: int | None = None,
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.blockers = tuple(blockers)
        self.nearest = nearest


class EngineError(RefusedError):
    """The engine refuses the model or fails while running it; `node` has the name of the node at fault, if known."""

    def __init__(
        self, what: str, *, where: str | None = None, next_step: str | None = None, node: str | None = None
    ) -> None:
        super().__init__(what, where=where or (f"node '{node}'" if node else None), next_step=next_step)
        self.node = node or ""


class RandomModelError(RefusedError):
    """The model answers differently each time it is asked the same."""


class QuantizationError(RefusedError):
    """The model cannot be quantized, is quantized already, or loses more than the limits allow."""


class ProofError(RefusedError):
    """The ONNX model's answers differ from PyTorch's; `proof` has every case."""

    def __init__(
        self,
        what: str,
        *,
        proof: Proof,
        where: str | None = None,
        next_step: str | None = None,
        attempts: Sequence[Attempt] = (),
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.proof = proof
        self.attempts = tuple(attempts)


class RewriteError(Exception):
    """The route `rewrite` met code that no graph can hold; the route adds the user's line from the stack."""
