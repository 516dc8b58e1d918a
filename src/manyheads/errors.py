"""The mistakes that manyheads names.

Each is also a ``ValueError``, ``TypeError`` or ``RuntimeError``, so that code which knows nothing
of this package catches them as it would expect.

>>> try:
...     raise ShapeError("d_model must be divisible by num_heads; got d_model=10, num_heads=4.")
... except ValueError as error:
...     print(error)
d_model must be divisible by num_heads; got d_model=10, num_heads=4.
"""

from collections.abc import Container, Iterable
from difflib import get_close_matches


class ManyheadsError(Exception):
    """Any mistake that this package reports."""


class ShapeError(ManyheadsError, ValueError):
    """A rank, a length or a width that cannot be."""


class DTypeError(ManyheadsError, TypeError):
    """A tensor of a dtype that has no meaning here, or tensors whose dtypes differ."""


class DeviceError(ManyheadsError, ValueError):
    """Tensors of one call that live on different devices."""


class OptionError(ManyheadsError, ValueError):
    """An option outside of its range."""


class MaskError(ManyheadsError, ValueError):
    """A mask that is ambiguous, or that does not fit the tokens of the call."""


class PositionError(ManyheadsError, ValueError):
    """Positions that do not fit the tokens of the call."""


class BackendError(ManyheadsError, RuntimeError):
    """A named backend that cannot do the call."""


class CacheError(ManyheadsError, RuntimeError):
    """A cache asked for what it cannot hold or no longer holds."""


class ExamineError(ManyheadsError, RuntimeError):
    """A model that the doctor cannot examine."""


class CheckpointError(ManyheadsError, RuntimeError):
    """A checkpoint that is missing, damaged or of another model."""


class ProbeError(ManyheadsError, RuntimeError):
    """Attention that could not be seen, or not be told rightly from what was seen."""


class MissingExtraError(ManyheadsError, RuntimeError):
    """A part of the package whose optional dependencies are not installed."""


class MaskWarning(UserWarning):
    """A mask that is legal and probably not what was meant."""


class ProbeWarning(UserWarning):
    """Attention of which a part could not be seen."""


def is_named(name: object, names: Container[str]) -> bool:
    """Whether there is something of this name; whatever is no text names nothing.

    Example:
        >>> is_named("relu", {"relu": 1}), is_named(["relu"], {"relu": 1})
        (True, False)
    """
    return isinstance(name, str) and name in names


def nearest(name: object, names: Iterable[str], otherwise: str) -> str:
    """The end of an error about a wrong name: the right one if it is near, else what to do.

    Example:
        >>> nearest("Causl", ["Causal", "Window"], "Choose one.")
        "Did you mean 'Causal'?"
        >>> nearest("?", ["Causal", "Window"], "Choose one.")
        'Choose one.'
    """
    near = get_close_matches(name, names, n=1) if isinstance(name, str) else []
    return f"Did you mean {near[0]!r}?" if near else otherwise
