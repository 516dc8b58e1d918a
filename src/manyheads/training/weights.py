"""Weights into a module: wrappers' prefixes taken off, tied tensors kept tied, nothing lost."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from manyheads.errors import CheckpointError

_SHOWN = 5  # names in a message


def plain_names(
    tensors: Mapping[str, Tensor], *, expected: Collection[str] = ()
) -> dict[str, Tensor]:
    """Take the names of wrappers off: data parallel's ``module.``, compile's ``_orig_mod.``.

    Leading ones go in any order and number, ``_orig_mod`` also from within. ``module`` further
    inside is a name like any other, and so is every name in ``expected``.

    Args:
        tensors: By name.
        expected: Names that the module really has; they are left as they are.

    Raises:
        CheckpointError: If two names become one.

    Example:
        >>> names = ["_orig_mod.module.a.weight", "b._orig_mod.weight", "module_list.0.weight"]
        >>> list(plain_names(dict.fromkeys(names, torch.zeros(1))))
        ['a.weight', 'b.weight', 'module_list.0.weight']
    """
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        short = name if name in expected else _plain(name)
        if short in plain:
            raise CheckpointError(
                f"names must stay apart without their wrappers; got name={name!r} twice as "
                f"{short!r}. Load the wrapped module instead."
            )
        plain[short] = tensor
    return plain


def _plain(name: str) -> str:
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in ("module", "_orig_mod"):
        parts.pop(0)
    return ".".join(part for part in parts if part != "_orig_mod")


def load_weights(
    module: nn.Module, weights: Mapping[str, Tensor] | str | Path, *, strict: bool = True
) -> tuple[str, ...]:
    """Load weights into a module: all of them, or an error before any is touched.

    Names are freed of wrappers (``plain_names``). Where the module ties two parameters, one name
    is enough, whichever it is; they stay tied. Parameters of equal values that the module does
    not tie stay apart.

    Args:
        module: It gets the weights.
        weights: By name; or a file, ".safetensors" or one of ``torch.save``, which is read with
            ``weights_only=True`` so that it cannot run code.
        strict: Every name must be found, on both sides. Without, at least one must.

    Returns:
        The names of the module that got nothing; empty if strict.

    Raises:
        CheckpointError: If names, shapes or ties do not fit, or the file cannot be read.
    """
    if isinstance(weights, str | Path):
        weights = _read(Path(weights))
    own = module.state_dict()
    given = plain_names(weights, expected=own)
    for ties in _tied(own):
        present = [name for name in ties if name in given]
        if any(not torch.equal(given[present[0]], given[name]) for name in present[1:]):
            raise CheckpointError(
                f"weights that the model ties must be equal; got {' and '.join(present)} with "
                "different values. Build the model without tying them."
            )
        given |= {name: given[present[0]] for name in ties if present}
    missing, unknown = (own.keys() - given.keys()), (given.keys() - own.keys())
    if (strict and (missing or unknown)) or (own and not given.keys() & own.keys()):
        raise CheckpointError(
            f"weights must have the names of the model; got missing={_some(missing)}, "
            f"unknown={_some(unknown)}. Build the model with the config of the checkpoint."
        )
    for name in given.keys() & own.keys():
        if given[name].shape != own[name].shape:
            raise CheckpointError(
                f"weights must have the shapes of the model, {name} {tuple(own[name].shape)}; "
                f"got shape={tuple(given[name].shape)}. Build the model with the config of the "
                "checkpoint."
            )
    module.load_state_dict(given, strict=False)
    return tuple(sorted(missing))


def _tied(tensors: Mapping[str, Tensor]) -> Iterable[list[str]]:
    places = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.numel() and not tensor.is_meta:
            places[tensor.data_ptr(), tensor.shape, tensor.stride()].append(name)
    return [names for names in places.values() if len(names) > 1]


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return f"{ordered[:_SHOWN]}{more}"


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"weights must be a file of tensors that can be read without running code; got "
            f"path={str(path)!r} ({type(error).__name__}). Save them as safetensors."
        ) from error
    if not isinstance(tensors, Mapping) or not all(
        isinstance(tensor, Tensor) for tensor in tensors.values()
    ):
        raise CheckpointError(
            f"weights must be tensors by name; got path={str(path)!r} holding something else. "
            "Save module.state_dict()."
        )
    return dict(tensors)
