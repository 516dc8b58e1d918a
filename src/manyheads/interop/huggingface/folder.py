"""A checkpoint of Hugging Face on disk."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from manyheads.errors import CheckpointError

CONFIG, WHOLE, PARTS = "config.json", "model.safetensors", "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a checkpoint.

    Raises:
        CheckpointError: If there is none.
    """
    return _json(folder / CONFIG)


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a checkpoint by its name, one after another.

    Raises:
        CheckpointError: If a file is missing or damaged.
    """
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"weights must be whole safetensors files; got {path} ({error}). Download it again."
            ) from None


def _files(folder: Path) -> list[Path]:
    if (folder / WHOLE).exists():
        return [folder / WHOLE]
    if (folder / PARTS).exists():
        parts = _json(folder / PARTS).get("weight_map")
        if not isinstance(parts, dict):
            raise CheckpointError(
                f"{PARTS} must hold a weight_map; got {folder / PARTS} without. Download it again."
            )
        return [folder / name for name in sorted(set(parts.values()))]
    raise CheckpointError(
        f"a checkpoint must hold {WHOLE} or {PARTS}; got {folder} without. Save it with "
        f"model.save_pretrained(folder), which writes safetensors."
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"a checkpoint must hold {path.name}; got {path} ({error}). Name the folder of a model "
            f"that was downloaded or saved."
        ) from None
    if not isinstance(read, dict):
        raise CheckpointError(
            f"{path.name} must hold an object; got {path} with another thing. Download it again."
        )
    return read
