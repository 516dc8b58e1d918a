"""A language model of Hugging Face becomes a `Decoder`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.interop.huggingface.families import Family, family_of
from manyheads.interop.huggingface.folder import read_config, read_weights
from manyheads.interop.weights import fill_decoder
from manyheads.models import Decoder


def from_huggingface(
    source: nn.Module | str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Decoder:
    """Our decoder with the weights of a model of theirs, which gives the same logits.

    Args:
        source: A folder with ``config.json`` and safetensors, or a model of transformers; its
            weights are copied.
        device: Where the weights go; None leaves them where they are.
        dtype: Of what type they become; None leaves them as they are.

    Returns:
        The decoder, in evaluation mode, without dropout.

    Raises:
        OptionError: If the model is of a family, or has an option, that a `Decoder` has not.
        CheckpointError: If files or weights are missing, damaged or too many.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=99, hidden_size=32, num_attention_heads=4)
        >>> theirs, tokens = LlamaForCausalLM(config), torch.tensor([[1, 2, 3]])
        >>> ours = from_huggingface(theirs)
        >>> torch.allclose(ours(tokens), theirs(tokens).logits, atol=1e-5)
        True
    """
    if isinstance(source, nn.Module):
        config = getattr(source, "config", None)
        if not hasattr(config, "to_dict"):
            raise OptionError(
                f"a model must be one of transformers, with a config; got "
                f"{type(source).__name__}. Give such a model, or a folder."
            )
        numbers = config.to_dict()  # type: ignore[union-attr]
        found: Iterable[tuple[str, Tensor]] = source.state_dict().items()
    else:
        numbers, found = read_config(Path(source)), read_weights(Path(source))
    family = family_of(numbers)
    copy = isinstance(source, nn.Module)
    weights = _as_ours(family, found, copy=copy, device=device, dtype=dtype)
    return fill_decoder(family.config(numbers), weights, family.names, ignored=family.ignored)


def _as_ours(
    family: Family,
    weights: Iterable[tuple[str, Tensor]],
    *,
    copy: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights:
        # A base model saves its weights without the prefix.
        name = name.removeprefix(family.prefix)
        if family.transposed and name.startswith("h.") and weight.ndim == 2:
            weight = weight.T.contiguous()
        wanted = dtype if weight.is_floating_point() else None
        yield name, weight.detach().to(device=device, dtype=wanted, copy=copy)
