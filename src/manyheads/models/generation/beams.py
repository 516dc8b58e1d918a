"""Write the likeliest texts, as far as a few at a time can find them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.cache import GrowingCache
from manyheads.errors import OptionError
from manyheads.models.generation.opening import Keeping, open_writer
from manyheads.models.generation.prompt import Tokens
from manyheads.models.generation.record import Record, check_kind, check_lengths
from manyheads.models.generation.sampling import check_possible
from manyheads.models.generation.stop import Stop
from manyheads.models.generation.stream import NOWHERE
from manyheads.models.generation.writer import Writer
from manyheads.shapes import check_count, is_number


@dataclass(frozen=True, eq=False)
class Beams:
    """The best texts of each row, the best one first.

    Args:
        tokens: int (batch, best, length); behind the end of a text what stands for no token.
        scores: float64 (batch, best): the text's log-likelihood over its length to the power of
            the length penalty; -inf where there are no more texts.
    """

    tokens: Tensor
    scores: Tensor


@torch.no_grad()
def beam_search(
    model: nn.Module,
    tokens: Tokens,
    *,
    max_new_tokens: int,
    beams: int = 4,
    best: int = 1,
    length_penalty: float = 1.0,
    min_new_tokens: int = 0,
    stop: Stop = NOWHERE,
    cache: Keeping = GrowingCache,
) -> Beams:
    """Write the best texts that a beam search finds.

    Every text that ends is kept beside the beams that go on, and the search stops when none of
    these can become better than the worst that is returned.

    Args:
        model: A `Decoder`, a `Transformer`, or any `LanguageModel`.
        tokens: Prompts (batch, length), or rows of any lengths; sources for a `Transformer`.
        max_new_tokens: The greatest length of what is written; texts end there.
        beams: How many texts of a row go on.
        best: How many texts are returned, at most `beams`.
        length_penalty: 0 compares log-likelihoods, 1 their mean over tokens; more favours longer
            texts.
        min_new_tokens: No text ends before.
        stop: Tokens that end a text, beside those with which the model itself ends one.
        cache: A kind of cache, caches that hold what goes before, or None; see `generate`. Given
            caches follow the search: afterwards they hold each row's beams.

    Raises:
        OptionError: If a number is out of range, or strings are to end a text.

    Source:
        Length penalty: Murray and Chiang 2018, section 4 (arXiv:1808.10006).

    Example:
        >>> import torch, manyheads as mh
        >>> config = mh.TransformerConfig(20, 20, d_model=32, num_heads=4, d_hidden=64)
        >>> found = mh.beam_search(mh.Transformer(config), [[5, 6]], max_new_tokens=3, best=2)
        >>> found.scores.shape, bool(found.scores[0, 0] >= found.scores[0, 1])
        (torch.Size([1, 2]), True)
    """
    _check(max_new_tokens, min_new_tokens, beams, best, length_penalty, stop)
    writer = open_writer(model, tokens, cache, max_new_tokens)
    search = _Search(writer, beams, length_penalty, max_new_tokens)
    record = Record(writer, stop, min_new_tokens, max_new_tokens)
    if not record.finished:
        _run(search, record, torch.tensor([*stop.tokens, *writer.stop_tokens]), best)
    return search.found(best)


def _run(search: "_Search", record: Record, ends: Tensor, best: int) -> None:
    logits = search.writer.begin()
    rows = torch.arange(len(logits), device=logits.device).repeat_interleave(search.beams)
    search.writer.reorder(rows)
    logits, ends = logits[rows], ends.to(logits.device, torch.long)
    while True:
        search.go_on(record.possible(logits), ends)
        record.count += 1
        if record.count == record.most or search.cannot_improve(best):
            return
        logits = search.writer.read(search.texts[:, :, -1].reshape(-1, 1))[:, -1]


class _Search:
    """The beams that go on, and the best texts that have ended.

    Args:
        writer: Reads and follows the beams.
        beams: How many there are of a row.
        penalty: Power of a text's length that its log-likelihood is divided by.
        most: The greatest length.
    """

    def __init__(self, writer: Writer, beams: int, penalty: float, most: int) -> None:
        tokens = writer.prompt.tokens
        shape = (len(tokens), beams)
        self.writer, self.beams, self.penalty, self.most = writer, beams, penalty, most
        self.texts = tokens.new_zeros(*shape, 0)
        # All beams of a row are alike at first: only one of them counts.
        self.sums = torch.full(shape, -torch.inf, dtype=torch.float64, device=tokens.device)
        self.sums[:, 0] = 0.0
        self.ended = tokens.new_full((*shape, most), writer.pad_id)
        self.scores = torch.full_like(self.sums, -torch.inf)

    def go_on(self, logits: Float[Tensor, "rows vocab"], ends: Int[Tensor, " ends"]) -> None:
        """Write the next token of every beam, and follow the best."""
        check_possible(logits)
        batch, beams = self.sums.shape
        totals = self.sums[:, :, None] + logits.double().log_softmax(-1).view(batch, beams, -1)
        self._end(totals, ends)
        totals[:, :, ends] = -torch.inf
        self.sums, flat = totals.flatten(1).topk(beams, dim=1)
        parents, tokens = flat // logits.shape[-1], flat % logits.shape[-1]
        self.texts = torch.cat((_rows(self.texts, parents), tokens[:, :, None]), dim=2)
        if self.texts.shape[2] == self.most:
            self._keep(self.texts, self.sums)
        else:
            first = beams * torch.arange(batch, device=flat.device)
            self.writer.reorder((parents + first[:, None]).flatten())

    def _end(self, totals: Tensor, ends: Tensor) -> None:
        """Keep the beams that a stop token ends."""
        if not len(ends):
            return
        sums = totals[:, :, ends].flatten(1)  # (batch, beams * ends)
        texts = self.texts.repeat_interleave(len(ends), dim=1)
        last = ends.repeat(self.beams).expand(len(texts), -1)
        self._keep(torch.cat((texts, last[:, :, None]), dim=2), sums)

    def _keep(self, texts: Tensor, sums: Tensor) -> None:
        length = texts.shape[2]
        scores = torch.cat((self.scores, sums / length**self.penalty), dim=1)
        texts = nn.functional.pad(texts, (0, self.most - length), value=self.writer.pad_id)
        self.scores, chosen = scores.topk(self.beams, dim=1)
        self.ended = _rows(torch.cat((self.ended, texts), dim=1), chosen)

    def cannot_improve(self, best: int) -> bool:
        """Whether no beam can become one of the best: a log-likelihood only falls."""
        length = self.most if self.penalty > 0 else self.texts.shape[2] + 1
        reach = self.sums[:, 0] / length**self.penalty
        return bool((self.scores[:, best - 1] >= reach).all())

    def found(self, best: int) -> Beams:
        """The best texts, no longer than the longest of them."""
        scores, texts = self.scores[:, :best], self.ended[:, :best]
        nobody = (scores == -torch.inf)[:, :, None]
        texts = texts.masked_fill(nobody, self.writer.pad_id)
        written = (texts != self.writer.pad_id).flatten(0, 1).any(dim=0)
        length = int(written.sum())
        return Beams(texts[:, :, :length], scores)


def _rows(texts: Tensor, index: Tensor) -> Tensor:
    return texts.gather(1, index[:, :, None].expand(-1, -1, texts.shape[2]))


def _check(most: int, least: int, beams: int, best: int, length_penalty: float, stop: Stop) -> None:
    check_lengths(most, least)
    check_kind("stop", stop, Stop)
    check_count("beams", beams)
    check_count("best", best)
    if best > beams:
        raise OptionError(
            f"best must be at most beams={beams}; got best={best}. Search with more beams."
        )
    if not is_number(length_penalty) or not -100 < length_penalty < 100:
        raise OptionError(
            f"length_penalty must be a number; got length_penalty={length_penalty!r}. It is the "
            f"power of the length that a log-likelihood is divided by."
        )
    if stop.strings:
        raise OptionError(
            f"stop must hold tokens alone in a beam search; got strings={stop.strings}. Cut the "
            f"texts that are found."
        )
