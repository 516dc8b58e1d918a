"""What the lens refuses before it does any work: what is no call, no tensor, no model."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.errors import DTypeError, OptionError, ShapeError
from manyheads.functional import Statistics


def check_call(call: Any) -> None:
    """Refuse what is no call of attention."""
    if not isinstance(call, Statistics):
        raise OptionError(
            f"call must be one that probe.watch saw, or come of statistics or of_weights; got "
            f"call={_named(call)}. Give one call: calls[0], or of_weights(weights) of (batch, "
            f"heads, q_len, kv_len)."
        )


def check_calls(calls: Any) -> None:
    """Refuse what is no list of calls, or an empty one."""
    wrong = calls
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        wrong = next((each for each in calls if not isinstance(each, Statistics)), None)
        if calls and wrong is None and None not in calls:
            return
        wrong = wrong if calls else calls
    shown = "[]" if isinstance(wrong, list) and not wrong else _named(wrong)
    raise ShapeError(
        f"calls must be a list of at least one call of attention; got {shown} in it. Give what "
        f"probe.watch saw, or [of_weights(weights)]."
    )


def check_tensor(name: str, x: Any, *, kinds: str = "real") -> None:
    """Refuse what is no tensor with values.

    Args:
        name: What the caller calls it.
        x: What was given.
        kinds: "real" for numbers, "whole" for integers alone, "truth" for bool alone.
    """
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"{name} must be a tensor; got {name}={_named(x)}. Write torch.as_tensor({name})."
        )
    if x.is_meta:
        raise OptionError(
            f"{name} must hold values; got {name} on the meta device. Compute it on another."
        )
    fits = {
        "real": not x.is_complex(),
        "whole": not (x.is_complex() or x.is_floating_point() or x.dtype == torch.bool),
        "truth": x.dtype == torch.bool,
    }
    if not fits[kinds]:
        wanted = {"real": "real numbers", "whole": "integers", "truth": "bool"}[kinds]
        raise DTypeError(
            f"{name} must be of {wanted}; got {name} of {x.dtype}. Convert it with {name}.to(...)."
        )


def check_texts(name: str, texts: Any, count: int, example: str) -> None:
    """Refuse what is no list of so many texts."""
    is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
    if not is_list or not all(isinstance(each, str) for each in texts):
        raise OptionError(
            f"{name} must be a list of texts; got {name}={_named(texts)}. Write {example}."
        )
    if len(texts) != count:
        raise OptionError(
            f"{name} must be {count} texts; got {name} of {len(texts)}. Write {example}."
        )


def check_text(name: str, text: Any) -> None:
    """Refuse what is no text."""
    if not isinstance(text, str):
        raise OptionError(
            f"{name} must be a text; got {name}={_named(text)}. Write {name}='what it shows'."
        )


def check_model(model: Any) -> None:
    """Refuse what is no module."""
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model must be a torch.nn.Module; got model={_named(model)}. Give the model itself."
        )


def check_number(name: str, function: Callable[[], Any]) -> Tensor:
    """What a function of the user's gives: one number, as a tensor."""
    if not callable(function):
        raise OptionError(
            f"{name} must be a function that runs the model; got {name}={_named(function)}. Write "
            f"lambda: ... around it."
        )
    found = function()
    if not isinstance(found, Tensor) or found.numel() != 1:
        shown = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else _named(found)
        raise ShapeError(
            f"{name} must give one number as a tensor; got {shown}. Add up or average what "
            f"it gives."
        )
    return found.reshape(())


def check_heads(heads: Any) -> None:
    """Refuse what is no list of heads by their layer and number."""
    is_list = isinstance(heads, Sequence) and not isinstance(heads, str)
    for each in heads if is_list else [heads]:
        is_head = isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str)
        if not is_head or not isinstance(each[1], int):
            raise OptionError(
                f"heads must be a list of (layer, head), as summarize_heads names them; got "
                f"{each!r}. Write [('layers.0', 3)]."
            )


def _named(x: object) -> str:
    return "None" if x is None else type(x).__name__
