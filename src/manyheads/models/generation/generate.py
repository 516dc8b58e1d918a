"""Write text."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.cache import GrowingCache
from manyheads.models.generation.draw import Draws
from manyheads.models.generation.opening import Keeping
from manyheads.models.generation.prompt import Tokens
from manyheads.models.generation.sampling import Sampling
from manyheads.models.generation.speculative import Draft
from manyheads.models.generation.stop import Stop
from manyheads.models.generation.stream import GREEDY, NOWHERE, stream


def generate(
    model: nn.Module,
    tokens: Tokens,
    *,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    sampling: Sampling = GREEDY,
    stop: Stop = NOWHERE,
    draft: Draft | None = None,
    cache: Keeping = GrowingCache,
    generator: Draws = None,
) -> Int[Tensor, "batch length"]:
    """Write on from each prompt; see `stream` for the arguments and for what is refused.

    Args:
        model: A `Decoder`, a `Transformer`, or any `LanguageModel`.
        tokens: Prompts (batch, length), or rows of any lengths; sources for a `Transformer`.
        max_new_tokens: The greatest length of what is written.
        min_new_tokens: No row ends before.
        sampling: How tokens are chosen.
        stop: What ends a row.
        draft: A smaller model that proposes tokens.
        cache: A kind of cache, caches that hold what goes before, or None.
        generator: Where draws come from.

    Returns:
        The new tokens of each row, a stop token included; behind it `pad_id` of a `Transformer`,
        and -1, which is no token, for others. No longer than the longest row.

    Example:
        >>> import torch, manyheads as mh
        >>> config = mh.TransformerConfig(20, 20, d_model=32, num_heads=4, d_hidden=64)
        >>> model = mh.Transformer(config)
        >>> mh.generate(model, [[5, 6, 7], [8, 9]], max_new_tokens=3).shape[0]
        2
    """
    steps = stream(
        model,
        tokens,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        sampling=sampling,
        stop=stop,
        draft=draft,
        cache=cache,
        generator=generator,
    )
    columns = [step.tokens for step in steps]
    if columns:
        return torch.stack(columns, dim=1)
    device = tokens.device if isinstance(tokens, Tensor) else None
    return torch.zeros(len(tokens), 0, dtype=torch.long, device=device)
