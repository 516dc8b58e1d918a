"""Facts that name an argument or a part of the output, held to what the model has."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.facts import ARGUMENTS, STREAMS, Facts, Slot
from manyheads.doctor.output import part
from manyheads.errors import ExamineError, nearest


def check_arguments(model: nn.Module, call: Call, declared: Facts) -> None:
    """Refuse facts that name an argument which the model does not take.

    Args:
        model: The model.
        call: The example call.
        declared: What was declared of it.

    Raises:
        ExamineError: If there is one; the message names what the model takes.
    """
    named = {name: getattr(declared, name) for name in ARGUMENTS}
    if declared.cache is not None:
        named["cache.argument"] = declared.cache.argument
    takes_any = _takes_any(model)
    for fact, slot in named.items():
        if slot is None:
            continue
        if not _is_argument(call, slot, takes_any):
            raise ExamineError(
                f"{fact} must name an argument of the model; got {fact}={slot!r}. "
                f"{_choose(slot, _arguments(call), 'takes')}"
            )
        if fact in STREAMS and call.get(slot) is None:
            raise ExamineError(
                f"{fact} must name an argument that the example input gives; got {fact}={slot!r}, "
                f"which was not given. Give it to examine(model, ...)."
            )


def check_marks(call: Call, declared: Facts, facts: Facts) -> None:
    """Refuse a mark that stands nowhere in the mask that it is said to be a mark of.

    Args:
        call: The example call.
        declared: What was declared.
        facts: The same, and what could be inferred.

    Raises:
        ExamineError: If there is one; the message names what the mask holds.
    """
    for fact, name in (("real", "padding"), ("real", "context_padding"), ("seen", "mask")):
        mark, slot = getattr(declared, fact), getattr(facts, name)
        mask = call.get(slot)
        if mark is None or not isinstance(mask, Tensor) or not mask.numel():
            continue
        if not bool((mask == mark).any()):
            holds = ", ".join(map(str, mask.unique()[:5].tolist()))
            raise ExamineError(
                f"{fact} must be a value that the example's {slot} holds; got {fact}={mark!r}. It "
                f"holds {holds}."
            )


def check_parts(output: Any, facts: dict[str, Slot | None]) -> None:
    """Refuse facts that name a part which the output does not have.

    Args:
        output: What the model answered.
        facts: The slots by the names of their facts.

    Raises:
        ExamineError: If there is one; the message names the parts that there are.
    """
    for fact, slot in facts.items():
        if slot is not None and part(output, slot) is None:
            raise ExamineError(
                f"{fact} must name a part of the output; got {fact}={slot!r}. "
                f"{_choose(slot, _parts(output), 'has')}"
            )


def _choose(slot: Slot, there: Sequence[Slot], verb: str) -> str:
    if not there:
        return f"It {verb} none with a name: leave the fact out."
    names = [each for each in there if isinstance(each, str)]
    cure = nearest(slot, names, "Name one of these, or leave the fact out.")
    return f"It {verb} {', '.join(map(str, there))}. {cure}"


def _is_argument(call: Call, slot: Slot, takes_any: bool) -> bool:
    if isinstance(slot, str) and slot.isdecimal():
        slot = int(slot)
    if isinstance(slot, int):
        return 0 <= slot < max(len(call.args), len(call.names))
    return takes_any or slot in _arguments(call)


def _arguments(call: Call) -> list[str]:
    """Names that the model takes, and those under which it was given something."""
    return list(dict.fromkeys([*call.names, *call.kwargs]))


def _takes_any(model: nn.Module) -> bool:
    """Whether `forward` takes keywords that it does not name."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


def _parts(output: Any) -> list[Slot]:
    if isinstance(output, Mapping):
        return list(output)
    if isinstance(output, tuple | list):
        return [*getattr(output, "_fields", ()), *range(len(output))]
    if isinstance(output, Tensor):
        return []
    return list(vars(output)) if hasattr(output, "__dict__") else []
