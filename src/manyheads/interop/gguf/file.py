"""A GGUF file: metadata, and weights that are made numbers again one after another."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import CheckpointError, MissingExtraError
from manyheads.extras import install_line


@dataclass(frozen=True)
class GGUFFile:
    """What a GGUF file holds.

    Args:
        metadata: Numbers, texts and lists by their names, such as "llama.block_count".
        tensors: What the `gguf` library knows of each weight; they stay in the file until read.
    """

    metadata: Mapping[str, Any]
    tensors: tuple[Any, ...]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight by its name, in float32."""
        from gguf import dequantize

        for tensor in self.tensors:
            # A copy, since numbers that were not quantised are a view of the file.
            values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
            # The file counts the fastest axis first.
            yield tensor.name, values.reshape(tuple(tensor.shape.tolist())[::-1])

    def __getitem__(self, name: str) -> Any:
        if name not in self.metadata:
            raise CheckpointError(
                f"a GGUF file must say {name}; got one that does not. Is it a whole language model?"
            )
        return self.metadata[name]


def read_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file.

    Raises:
        MissingExtraError: If the `gguf` library is missing.
        CheckpointError: If there is no such file, or it is another thing.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise MissingExtraError(
            f"reading GGUF must find the gguf library; got gguf=missing. Run: "
            f"{install_line('smollm2')}"
        ) from None
    try:
        reader = GGUFReader(Path(path))
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"a GGUF file must be there and whole; got {path} ({error}). Download it again."
        ) from None
    return GGUFFile(metadata, tuple(reader.tensors))
