"""Tensors and a note in one file, which holds no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from manyheads.errors import CheckpointError
from manyheads.files import write_whole

_KEY = "manyheads"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Write tensors and a JSON note into one safetensors file; tied tensors are stored once.

    Args:
        path: Where the file shall stand.
        tensors: By name. Two names of one tensor (same memory, same shape) become one stored
            tensor and an alias; equal values in separate memory stay two.
        note: What else belongs to them; it must be JSON.
    """
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        first = names.setdefault(_place(tensor), name) if tensor.numel() else name
        if first == name:
            stored[name] = tensor.detach().cpu().contiguous()
        else:
            aliases[name] = first
    if len({t.untyped_storage().data_ptr() for t in stored.values()}) < len(stored):
        stored = {name: tensor.clone() for name, tensor in stored.items()}  # overlapping views
    text = json.dumps({"note": note, "aliases": aliases})
    write_whole(path, lambda file: save_file(stored, file, metadata={_KEY: text}))


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def read_tensors(path: Path, *, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote: nothing in such a file can run code.

    Returns:
        The tensors, an alias being the same tensor as its first name; and the note.

    Raises:
        CheckpointError: If the file is missing, damaged, or was not written by manyheads.
    """
    if not path.is_file():
        raise CheckpointError(
            f"checkpoint must be a file; got path={str(path)!r}. "
            "Pass the folder of a run that has saved one."
        )
    try:
        with safe_open(path, framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint must be a whole safetensors file; got path={str(path)!r} ({error}). "
            "Copy it again, or go back to an earlier one."
        ) from error
    try:
        head = json.loads(metadata[_KEY])
        note, aliases = dict(head["note"]), dict(head["aliases"])
        tensors |= {alias: tensors[name] for alias, name in aliases.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint must be written by manyheads; got path={str(path)!r} without a note "
            f"that can be read ({error!r}). Load other weights with load_weights."
        ) from error
    return tensors, note
