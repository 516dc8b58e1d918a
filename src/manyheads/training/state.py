"""The state of a run that can be continued, stored without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from torch import Tensor

from manyheads.errors import CheckpointError
from manyheads.training.tensors import read_tensors, write_tensors

FORMAT = "manyheads-resume-1"


class SafeState(CheckpointIO):
    """Lightning's way to disk, with safetensors and JSON in the place of pickle.

    Hand it to a Trainer as ``plugins=[SafeState()]``. Lightning collects what a run is made of
    (weights, optimiser, schedule, progress, callbacks, data position); this turns the tree into
    one file that is whole or not there, and that cannot run code when it is read.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        tensors: dict[str, Tensor] = {}
        tree = pack(checkpoint, tensors)
        write_tensors(Path(path), tensors, {"format": FORMAT, "tree": tree})

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return read_state(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a run.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds something else.
    """
    tensors, note = read_tensors(path)
    if note.get("format") != FORMAT:
        raise CheckpointError(
            f"a run to continue must be of the format {FORMAT}; got format={note.get('format')!r} "
            f"in {str(path)!r}. Pass a folder that this version has trained in."
        )
    state: dict[str, Any] = unpack(note["tree"], tensors)
    return state


def pack(value: object, tensors: dict[str, Tensor]) -> object:
    """Turn a tree into JSON, moving its tensors out into ``tensors``.

    Raises:
        CheckpointError: If it holds anything but tensors, numbers, texts, None, lists, tuples
            and dicts; anything else could only be stored as code.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            name = str(len(tensors))
            tensors[name] = value
            return {"tensor": name}
        case Mapping():
            return {"dict": [[pack(k, tensors), pack(v, tensors)] for k, v in value.items()]}
        case list():
            return [pack(item, tensors) for item in value]
        case tuple():
            return {"tuple": [pack(item, tensors) for item in value]}
    raise CheckpointError(
        "the state of a run must be tensors, numbers, texts, lists, tuples and dicts; got "
        f"type={type(value).__name__}. Give it as numbers in the callback's state_dict."
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Turn what ``pack`` gave back into the tree."""
    match value:
        case {"tensor": name}:
            return tensors[name]
        case {"dict": pairs}:
            return {unpack(k, tensors): unpack(v, tensors) for k, v in pairs}
        case {"tuple": items}:
            return tuple(unpack(item, tensors) for item in items)
        case list():
            return [unpack(item, tensors) for item in value]
    return value
