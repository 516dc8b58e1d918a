"""Write text with a model, one token after another."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.shapes import check_count

if TYPE_CHECKING:
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
    """Write a target for each source.

    Args:
        model: An encoder-decoder; its mode (train or eval) is left as it is.
        source: Token ids.
        max_new_tokens: The longest target, in tokens.
        temperature: 0 takes the likeliest token; above, draws from softmax(logits / temperature).
        generator: Where draws come from; None means torch's own.
        cached: Whether keys and values are kept between steps; the result is the same, the time
            is not.

    Returns:
        Token ids without the first `bos_id`; `pad_id` after each row's `eos_id`. No longer than
        the longest target needed.
    """
    check_count("max_new_tokens", max_new_tokens, least=0)
    _check_temperature(temperature)
    config, memory = model.config, model.encode(source)
    caches = model.new_caches() if cached and len(model.decoder) else None
    written = source.new_full((source.shape[0], 1), config.bos_id)
    done = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
    for _ in range(max_new_tokens):
        target = written if caches is None else written[:, -1:]
        logits = model.decode(target, memory, caches=caches)[:, -1]
        token = pick(logits, temperature, generator).masked_fill(done, config.pad_id)
        written = torch.cat((written, token[:, None]), dim=1)
        done = done | (token == config.eos_id)
        if done.all():
            break
    return written[:, 1:]


def pick(
    logits: Float[Tensor, "batch vocab"], temperature: float, generator: torch.Generator | None
) -> Int[Tensor, " batch"]:
    """The next token of each row: the likeliest at temperature 0, else a draw."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    weights = torch.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def _check_temperature(temperature: float) -> None:
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature < math.inf:
        raise OptionError(
            f"temperature must be a finite number of at least 0; got temperature={temperature!r}. "
            f"0 takes the likeliest token."
        )
