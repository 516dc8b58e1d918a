"""Write text with a model, one token after another."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.shapes import check_count, is_number

if TYPE_CHECKING:
    from manyheads.models.config import TransformerConfig
    from manyheads.models.transformer import Transformer


@torch.no_grad()
def generate(
    model: "Transformer",
    source: Int[Tensor, "batch source_len"],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Int[Tensor, "batch length"]:
    """Write a target for each source; nothing is dropped meanwhile, whatever the model's mode.

    Args:
        model: An encoder-decoder; its mode (train or eval) is afterwards as it was.
        source: Token ids.
        max_new_tokens: The longest target, in tokens; with learned positions at most the config's
            `max_length`.
        temperature: 0 takes the likeliest token; above, draws from softmax(logits / temperature).
        generator: Where draws come from; None means torch's own.
        cached: Whether keys and values are kept between steps; the result is the same, the time
            is not.

    Returns:
        Token ids without the first `bos_id`; `pad_id` after each row's `eos_id`, and nowhere else.
        No longer than the longest target needed.

    Raises:
        OptionError: If a number is out of range.
        PositionError: If the source is longer than learned positions reach.
    """
    config = model.config
    check_count("max_new_tokens", max_new_tokens, least=0)
    _check_reach(max_new_tokens, config)
    _check_temperature(temperature)
    with _evaluating(model):
        memory = model.encode(source)
        caches = model.new_caches() if cached and len(model.decoder) else None
        written = source.new_full((source.shape[0], 1), config.bos_id)
        done = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
        for _ in range(max_new_tokens):
            if done.all():
                break
            target = written if caches is None else written[:, -1:]
            logits = model.decode(target, memory, caches=caches)[:, -1]
            logits[:, config.pad_id] = -torch.inf  # it stands for no token
            token = pick(logits, temperature, generator).masked_fill(done, config.pad_id)
            written = torch.cat((written, token[:, None]), dim=1)
            done = done | (token == config.eos_id)
    return written[:, 1:]


def pick(
    logits: Float[Tensor, "batch vocab"], temperature: float, generator: torch.Generator | None
) -> Int[Tensor, " batch"]:
    """The next token of each row: the likeliest at temperature 0, else a draw."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    # Less the greatest, so that no temperature however small makes two of them infinite.
    logits = logits.double()
    weights = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / temperature, dim=-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check_reach(max_new_tokens: int, config: "TransformerConfig") -> None:
    if config.positions == "learned" and max_new_tokens > config.max_length:
        raise OptionError(
            f"max_new_tokens must be at most the model's max_length={config.max_length}; got "
            f"max_new_tokens={max_new_tokens}. Ask for less, or build the model with a longer one."
        )


def _check_temperature(temperature: float) -> None:
    if not is_number(temperature) or not 0 <= temperature < math.inf:
        raise OptionError(
            f"temperature must be a finite number of at least 0; got temperature={temperature!r}. "
            f"0 takes the likeliest token."
        )
