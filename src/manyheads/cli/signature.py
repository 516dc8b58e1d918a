"""What a model's `forward` must be given, and how to write it on the command line."""

import inspect
from typing import Any

from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.infer import CONTEXTS, MASKS, PADDINGS, POSITIONS, VALUES
from manyheads.errors import ExamineError


def check_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse an example that `forward` cannot take.

    Args:
        model: The model.
        args: What it is given by place.
        kwargs: What it is given by name.

    Raises:
        ExamineError: If something is missing or too much; the message shows an example.
    """
    try:
        signature = _bare(inspect.signature(model.forward))
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = dict(Call.of(model, args, kwargs).items())
        raise ExamineError(
            f"--inputs must give what forward{signature} needs; got "
            f"{', '.join(given) or 'nothing'} ({error}). Write --inputs "
            f"{' '.join(_words(signature, given))}, for one; a name in the file gives any other "
            f"value, such as a mask of bools."
        ) from error


def _words(signature: inspect.Signature, given: dict[str, Any]) -> list[str]:
    """An example for each argument that has no default, as --inputs takes them."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [
        name
        for name, each in signature.parameters.items()
        if each.kind in named and each.default is each.empty
    ]
    streams = [each for each in given.values() if isinstance(each, Tensor) and each.ndim > 1]
    like = _shape(streams[0]) if streams else "2x11x24"
    batch, length, *_ = like.partition(":")[0].split("x")
    kinds = {
        **dict.fromkeys((*CONTEXTS, *VALUES), like),
        **dict.fromkeys(MASKS, f"{length}x{length}:2"),
        **dict.fromkeys(PADDINGS, f"{batch}x{length}:2"),
        **dict.fromkeys(POSITIONS, f"{batch}x{length}:{length}"),
    }
    kinds |= {name: _shape(value) for name, value in given.items() if isinstance(value, Tensor)}
    return [f"{name}={kinds.get(name, like)}" for name in needed]


def _bare(signature: inspect.Signature) -> inspect.Signature:
    """Names and defaults without types, which fill a line."""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    return inspect.Signature(parameters)


def _shape(tensor: Tensor) -> str:
    sizes = "x".join(map(str, tensor.shape))
    return sizes if tensor.is_floating_point() else f"{sizes}:{int(tensor.max()) + 1}"
