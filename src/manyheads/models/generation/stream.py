"""Write text step by step."""

from collections.abc import Iterator

import torch
from torch import nn

from manyheads.cache import GrowingCache
from manyheads.models.generation.draw import Draws, check_draws
from manyheads.models.generation.opening import Keeping, open_writer
from manyheads.models.generation.prompt import Tokens
from manyheads.models.generation.record import Record, Step, check_kind, check_lengths
from manyheads.models.generation.sampling import Sampling
from manyheads.models.generation.speculative import Draft, speculate
from manyheads.models.generation.stop import Stop
from manyheads.models.generation.writer import Writer

GREEDY, NOWHERE = Sampling(), Stop()


def stream(
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
) -> Iterator[Step]:
    """Write on from each prompt, and hand out every step as it is made.

    What cannot be is refused by this call, before any work. Afterwards the model computes only
    while the next step is asked for; whoever stops asking leaves nothing behind.

    Args:
        model: A `Decoder`, a `Transformer`, or any `LanguageModel`.
        tokens: Prompts (batch, length), or rows of any lengths: each is written as if alone. For a
            `Transformer`, sources.
        max_new_tokens: The greatest length of what is written.
        min_new_tokens: No row ends before.
        sampling: How tokens are chosen.
        stop: What ends a row, beside the tokens with which the model itself ends a text.
        draft: A smaller model that proposes tokens; the text is the same, in distribution if
            tokens are drawn.
        cache: A kind of cache, such as `PagedCache`; or the caches of a text that the prompts go
            on from, which grow by all that is read; None computes everything anew in each step.
        generator: Where draws come from: one, or one for each row, or None for torch's own.

    Yields:
        A `Step` for each new token; at most `max_new_tokens`, fewer if all rows end before.

    Raises:
        CacheError: If caches are not those of the model's layers and rows.
        OptionError: If an option is of another kind or out of range, or the text would be longer
            than the model's positions or a cache allow.
        ShapeError: If a prompt is empty.

    Example:
        >>> import torch, manyheads as mh
        >>> config = mh.TransformerConfig(20, 20, d_model=32, num_heads=4, d_hidden=64)
        >>> model = mh.Transformer(config)
        >>> steps = mh.stream(model, torch.tensor([[5, 6, 7]]), max_new_tokens=3)
        >>> next(steps).tokens.shape
        torch.Size([1])
    """
    check_lengths(max_new_tokens, min_new_tokens)
    for name, value, kind in (("sampling", sampling, Sampling), ("stop", stop, Stop)):
        check_kind(name, value, kind)
    if draft is not None:
        check_kind("draft", draft, Draft)
    writer = open_writer(model, tokens, cache, max_new_tokens)
    check_draws(generator, len(writer.prompt.tokens))
    remember = sampling.repetition_penalty is not None
    record = Record(writer, stop, min_new_tokens, max_new_tokens, remember=remember)
    if draft is None:
        return _write(writer, record, sampling, generator)
    helper = draft.open(tokens, writer, max_new_tokens)
    return speculate(writer, helper, draft.ahead, record, sampling, generator)


@torch.no_grad()
def _write(writer: Writer, record: Record, sampling: Sampling, draws: Draws) -> Iterator[Step]:
    if record.finished:
        return
    logits = writer.begin()
    while True:
        step = record.add(sampling.pick(record.possible(logits), record.seen, draws))
        yield step
        if record.finished:
            return
        logits = writer.read(step.tokens.clamp(min=0)[:, None])[:, -1]
