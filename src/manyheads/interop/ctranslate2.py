"""Files of weights that CTranslate2 wrote, which it runs and does not give back."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import CheckpointError

VERSION = 6
_TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}


def read_variables(path: Path) -> dict[str, Tensor]:
    """Every variable of a model by its name; floats become float32.

    Args:
        path: A ``model.bin``.

    Raises:
        CheckpointError: If it is of another version, or its numbers are of a type that is none of
            ours to read, such as bfloat16.

    Source:
        CTranslate2, ``model_spec.py``: how it writes a file.
    """
    with path.open("rb") as file:
        number, text = _readers(file)
        if (version := number("<I")) != VERSION:
            raise CheckpointError(
                f"path must be a file of CTranslate2 in version {VERSION}; got version={version} "
                f"in {path.name}. Convert the model again with a release that writes {VERSION}."
            )
        text(), number("<I")  # the kind of model, and its revision
        variables: dict[str, Tensor] = {}
        for _ in range(number("<I")):
            name = text()
            shape = [number("<I") for _ in range(number("<B"))]
            kind = number("<B")
            content = file.read(number("<I"))
            if kind not in _TYPES:
                raise CheckpointError(
                    f"variables must be floats or integers; got type {kind} for {name!r}. Convert "
                    f"the model with --quantization float16."
                )
            values = np.frombuffer(content, _TYPES[kind]).reshape(shape)
            is_float = values.dtype.kind == "f"
            variables[name] = torch.from_numpy(values.astype(np.float32) if is_float else
                                               values.copy())  # fmt: skip
    return variables


def _readers(file: BinaryIO) -> tuple[Callable[[str], Any], Callable[[], str]]:
    def number(kind: str) -> Any:
        return struct.unpack(kind, file.read(struct.calcsize(kind)))[0]

    def text() -> str:
        return file.read(number("<H"))[:-1].decode()  # a 0 stands at the end

    return number, text
