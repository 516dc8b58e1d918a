"""Write what a model would write, faster, by letting a smaller one propose."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import GrowingCache
from manyheads.errors import OptionError
from manyheads.models.generation.draw import Draws
from manyheads.models.generation.opening import Keeping, open_writer
from manyheads.models.generation.prompt import Tokens
from manyheads.models.generation.record import Record, Step, with_tokens
from manyheads.models.generation.sampling import Sampling
from manyheads.models.generation.writer import Writer
from manyheads.shapes import check_count


@dataclass(frozen=True)
class Draft:
    """A smaller model that proposes tokens, which the model itself takes or replaces.

    The model reads all proposals in one call, and each is taken with the probability that leaves
    the model's own distribution as it is. Rows of a batch go on together: where one refuses a
    token, the later proposals for the others are dropped too.

    Args:
        model: Of the same vocabulary.
        ahead: How many tokens it proposes at once.
        cache: How its keys and values are kept; see `generate`. A `RingCache`, here and of the
            model itself, must be able to ``undo`` as many tokens.

    Raises:
        OptionError: If `ahead` counts nothing.

    Source:
        Leviathan et al. 2023, algorithm 1 (arXiv:2211.17192).

    Example:
        >>> import torch, manyheads as mh
        >>> config = mh.TransformerConfig(20, 20, d_model=32, num_heads=4, d_hidden=64)
        >>> model, small, source = mh.Transformer(config), mh.Transformer(config), [[5, 6, 7]]
        >>> text = mh.generate(model, source, max_new_tokens=4, draft=mh.Draft(small))
        >>> torch.equal(text, mh.generate(model, source, max_new_tokens=4))
        True
    """

    model: nn.Module
    ahead: int = 4
    cache: Keeping = GrowingCache

    def __post_init__(self) -> None:
        check_count("ahead", self.ahead)

    def open(self, tokens: Tokens, writer: Writer, max_new_tokens: int) -> Writer:
        """This model before the same prompts as the one that it drafts for."""
        own = open_writer(self.model, tokens, self.cache, max_new_tokens)
        if own.vocab_size != writer.vocab_size:
            raise OptionError(
                f"a draft must have the model's vocab_size={writer.vocab_size}; got "
                f"{own.vocab_size}. Take a model that was trained on the same vocabulary."
            )
        return own


@torch.no_grad()
def speculate(
    writer: Writer, draft: Writer, ahead: int, record: Record, sampling: Sampling, draws: Draws
) -> Iterator[Step]:
    """The steps of a text, several for each call of the model."""
    if record.finished:
        return
    logits = writer.begin()
    draft.begin()
    step = record.add(sampling.pick(record.possible(logits), record.seen, draws))
    yield step
    unread = step.tokens.clamp(min=0)[:, None]  # what the draft has not read; the last, nobody
    while not record.finished:
        count = min(ahead, record.most - record.count - 1)
        proposed = _propose(draft, unread, count, record, sampling, draws)
        logits = writer.read(torch.cat((unread[:, -1:], *(x[:, None] for x, _ in proposed)), 1))
        chosen = _settle(proposed, logits, record, sampling, draws)
        writer.rollback(count + 1 - len(chosen))
        draft.rollback(max(count - len(chosen), 0))
        for index, tokens in enumerate(chosen):
            step = record.add(tokens, drafted=index < len(chosen) - 1)
            if record.finished:
                writer.rollback(len(chosen) - 1 - index)  # the last token is never read
            yield step
            if record.finished:
                return
        # Of proposals that were all taken, the draft has not read the last one.
        fresh = 2 if len(chosen) == count + 1 and count else 1
        unread = torch.stack(chosen[-fresh:], dim=1)


Proposal = tuple[Tensor, Tensor]
"""A token of each row, and the weights that it was drawn by."""


def _propose(
    draft: Writer, unread: Tensor, count: int, record: Record, sampling: Sampling, draws: Draws
) -> list[Proposal]:
    proposed: list[Proposal] = []
    seen = record.seen
    for index in range(count):
        logits = record.possible(draft.read(unread)[:, -1], index)
        weights = sampling.weights(logits, seen)
        tokens = sampling.draw(weights, draws)
        proposed.append((tokens, weights))
        seen, unread = with_tokens(seen, tokens), tokens[:, None]
    return proposed


def _settle(
    proposed: list[Proposal], logits: Tensor, record: Record, sampling: Sampling, draws: Draws
) -> list[Tensor]:
    """The proposals up to the first that a row refuses, and one token of the model's own."""
    chosen: list[Tensor] = []
    seen = record.seen
    for index, (tokens, drafted) in enumerate(proposed):
        wanted = sampling.weights(record.possible(logits[:, index], index), seen)
        share = _of(wanted, tokens) / _of(drafted, tokens)
        taken = sampling.accept(share, draws)
        if not (taken | record.done).all():
            # Rows that take theirs keep it; the others draw from what the draft left out.
            missing = (wanted - drafted).clamp(min=0)
            certain = taken | (missing.sum(dim=1) == 0)
            missing = torch.where(certain[:, None], wanted, missing)
            chosen.append(torch.where(taken, tokens, sampling.draw(missing, draws)))
            return chosen
        chosen.append(tokens)
        seen = with_tokens(seen, tokens)
    chosen.append(sampling.pick(record.possible(logits[:, -1], len(proposed)), seen, draws))
    return chosen


def _of(weights: Tensor, tokens: Tensor) -> Float[Tensor, " batch"]:
    return weights.gather(1, tokens[:, None])[:, 0]
